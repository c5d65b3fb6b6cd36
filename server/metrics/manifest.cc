#include "server/metrics/manifest.h"

#include <algorithm>

#include "server/metrics/methods.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::server::metrics {
namespace {

using Rows = std::vector<std::vector<std::string>>;
using Values = std::vector<std::string>;
using enum MetricType;
using enum Scope;

// Every combination of the values of some labels.
Rows Product(const std::vector<Values>& labels) {
  Rows rows = {{}};
  for (const Values& values : labels) {
    Rows longer;
    for (const auto& row : rows) {
      for (const std::string& value : values) {
        longer.push_back(row);
        longer.back().push_back(value);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

const Rows kOne = {{}};
const Values kStreams = {"Rollout", "Gradient", "Vjp", "Compare"};
const Values kRunModes = {"rollout", "gradient", "vjp", "compare"};
const Values kRoles = {"state",   "dynamics",  "solver", "termination", "event",
                       "network", "objective", "tape",   "adjoint",     "gradient"};
const Values kPhases = {"input", "forward", "adjoint"};
const Values kLostIn = {"queued", "forward", "adjoint", "stream"};

const std::vector<double> kSeconds = {1e-5, 2.5e-5, 5e-5,  1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3,
                                      5e-3, 0.01,   0.025, 0.05, 0.1,    0.25, 0.5,  1,
                                      2.5,  5,      10,    30,   60,     120,  300};
const std::vector<double> kBatch = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};
// The executors count in these very buckets.
const std::vector<double> kIterations(sim::kIterationBounds.begin(), sim::kIterationBounds.end());
// Powers of two, so that the executors' buckets add up to them exactly.
const std::vector<double> kUlps = {0,    1,    2,     4,     16,      64,      256,
                                   1024, 4096, 16384, 65536, 1048576, 16777216};
const std::vector<double> kSteps = {0, 1, 10, 100, 1000, 10000, 100000, 1000000};
const std::vector<double> kDecades = {1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1,
                                      1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8};

Rows MethodRows() {
  Rows rows;
  for (const Method& method : Methods()) rows.push_back({method.type, kGrpcService, method.name});
  return rows;
}

Rows MethodCodeRows() {
  Rows rows;
  for (const Method& method : Methods()) {
    for (const std::string& code : method.codes) {
      rows.push_back({method.type, kGrpcService, method.name, code});
    }
  }
  return rows;
}

Values MethodNames() {
  Values names;
  for (const Method& method : Methods()) names.push_back(method.name);
  return names;
}

void AddRpc(std::vector<Family>& all) {
  const Values labels = {"grpc_type", "grpc_service", "grpc_method"};
  all.push_back(
      {"grpc_server_started_total", kCounter, kServer, "RPCs started.", labels, MethodRows(), {}});
  all.push_back({"grpc_server_handled_total",
                 kCounter,
                 kServer,
                 "RPCs completed, by status code.",
                 {"grpc_type", "grpc_service", "grpc_method", "grpc_code"},
                 MethodCodeRows(),
                 {}});
  all.push_back({"grpc_server_handling_seconds", kHistogram, kServer,
                 "Time from the arrival of an RPC to its end.", labels, MethodRows(), kSeconds});
  all.push_back({"simgrad_rpc_in_flight",
                 kGauge,
                 kServer,
                 "RPCs being handled. One whose request has not come completely is in no metric of "
                 "RPCs yet; what came of it is in simgrad_memory_reserved_bytes (upload).",
                 {"grpc_method"},
                 Product({MethodNames()}),
                 {}});
  all.push_back({"simgrad_rpc_cancelled_total",
                 kCounter,
                 kServer,
                 "RPCs cancelled by the caller or by draining, by where the work was lost.",
                 {"grpc_method", "phase"},
                 Product({kStreams, kLostIn}),
                 {}});
  all.push_back({"simgrad_rpc_deadline_exceeded_total",
                 kCounter,
                 kServer,
                 "RPCs whose deadline passed, by where the work was lost.",
                 {"grpc_method", "phase"},
                 Product({kStreams, kLostIn}),
                 {}});
  all.push_back({"simgrad_rpc_time_to_first_message_seconds",
                 kHistogram,
                 kServer,
                 "Time from the arrival of a streaming RPC to its first message.",
                 {"grpc_method"},
                 Product({kStreams}),
                 kSeconds});
  all.push_back(
      {"simgrad_stream_dropped_messages_total",
       kCounter,
       kServer,
       "Parts of answers that were not sent: slow_client, as their reader was too slow over "
       "--slow_reader_timeout and its call failed; sampled, progress that newer progress "
       "replaced before the reader took it.",
       {"reason"},
       Product({{"slow_client", "sampled"}}),
       {}});
}

void AddWork(std::vector<Family>& all) {
  all.push_back({"simgrad_queue_requests",
                 kGauge,
                 kLoad,
                 "Requests that came in and do not run yet: they wait, or are prepared.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_queue_capacity_requests",
                 kGauge,
                 kLoad,
                 "--queue_capacity: the most that may wait; a quarter more if some are small.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_queue_wait_seconds",
                 kHistogram,
                 kServer,
                 "Time that a request which was taken up had waited in all, to be prepared and to "
                 "run.",
                 {},
                 kOne,
                 kSeconds});
  all.push_back(
      {"simgrad_queue_rejected_total",
       kCounter,
       kServer,
       "Requests not admitted: deadline, it had passed on arrival or passed while the "
       "request was prepared, or the request did not come in time; expired, the deadline "
       "passed while the request waited; caller, a limit of the caller's own; too_large, "
       "the request never fits the memory; too_long, it has more bytes than a request may "
       "have. Of those that were admitted slow_reader: the answer was given up.",
       {"reason"},
       Product({{"full", "memory", "deadline", "expired", "draining", "caller", "too_large",
                 "too_long", "slow_reader"}}),
       {}});
  all.push_back({"simgrad_batch_instances",
                 kHistogram,
                 kServer,
                 "Instances of a request.",
                 {"direction"},
                 Product({{"forward", "adjoint"}}),
                 kBatch});
  all.push_back(
      {"simgrad_phase_duration_seconds",
       kHistogram,
       kServer,
       "Time a request spent in a phase. Copies to and from a GPU are in those of the work.",
       {"phase"},
       Product({{"decode", "compile", "forward", "recompute", "adjoint", "encode"}}),
       kSeconds});
  all.push_back({"simgrad_program_cache_total",
                 kCounter,
                 kServer,
                 "Look-ups of lowered programs; failed: the program was refused.",
                 {"result"},
                 Product({{"hit", "miss", "failed"}}),
                 {}});
  all.push_back({"simgrad_steps_total",
                 kCounter,
                 kServer,
                 "Instance-steps; recompute over forward is the cost of checkpointing.",
                 {"direction"},
                 Product({{"forward", "recompute", "adjoint"}}),
                 {}});
  all.push_back({"simgrad_rollouts_total",
                 kCounter,
                 kWorld,
                 "Requests that were admitted, by end; of compare, each of its runs that began.",
                 {"mode", "outcome"},
                 Product({kRunModes, {"ok", "failed", "cancelled", "expired"}}),
                 {}});
  all.push_back(
      {"simgrad_instances_total",
       kCounter,
       kWorld,
       "Instances of admitted requests; of vjp, of each cotangent; of compare, of each run.",
       {"mode"},
       Product({kRunModes}),
       {}});
}

// Adds the families of load: what is in use, and how much there is.
void AddLoad(std::vector<Family>& all, const ServerLabels& server) {
  const Values lanes = {"small", "large"};
  all.push_back({"simgrad_workers",
                 kGauge,
                 kLoad,
                 "Requests that may run at once; small work has workers of its own.",
                 {"lane"},
                 Product({lanes}),
                 {}});
  all.push_back({"simgrad_workers_busy",
                 kGauge,
                 kLoad,
                 "Workers that run a request; one that waits for its reader has none.",
                 {"lane"},
                 Product({lanes}),
                 {}});
  all.push_back(
      {"simgrad_memory_reserved_bytes",
       kGauge,
       kLoad,
       "Memory set aside: for work and its answers, for programs that are lowered, for "
       "programs that are kept and contents that were uploaded, for requests as they came, for "
       "rollouts that callers keep.",
       {"use"},
       Product({{"work", "compile", "cache", "upload", "kept"}}),
       {}});
  all.push_back({"simgrad_memory_limit_bytes",
                 kGauge,
                 kLoad,
                 "Memory that all uses of simgrad_memory_reserved_bytes share.",
                 {},
                 kOne,
                 {}});
  const Values qualities = {"quick", "best"};
  all.push_back(
      {"simgrad_kernel_compiles_total",
       kCounter,
       kServer,
       "Compilations of a program's code that succeeded, by where it runs (cpu, cuda) and how "
       "much was made of it: quick, to run soon, or best.",
       {"backend", "quality"},
       Product({{server.device_kind}, qualities}),
       {}});
  all.push_back({"simgrad_kernel_compile_seconds",
                 kHistogram,
                 kServer,
                 "Time that one of them took.",
                 {"backend", "quality"},
                 Product({{server.device_kind}, qualities}),
                 kSeconds});
  all.push_back({"simgrad_tape_bytes",
                 kGauge,
                 kLoad,
                 "Bytes of the rollouts that callers keep for Vjp.",
                 {"tier"},
                 Product({{"host"}}),
                 {}});
  all.push_back({"simgrad_tape_limit_bytes",
                 kGauge,
                 kLoad,
                 "Bytes that they may take: --kept_run_bytes.",
                 {"tier"},
                 Product({{"host"}}),
                 {}});
  all.push_back({"simgrad_tape_evictions_total",
                 kCounter,
                 kServer,
                 "Rollouts kept for Vjp that went: limit, for newer ones; ttl, unused for "
                 "--kept_run_ttl; released, as work needed their memory.",
                 {"reason"},
                 Product({{"limit", "ttl", "released"}}),
                 {}});
  const Values caches = {"worlds", "programs", "plans", "kernels", "contents"};
  all.push_back(
      {"simgrad_cache_bytes",
       kGauge,
       kLoad,
       "Bytes that a cache holds, measured: worlds as they were verified, programs as "
       "they were lowered; of the CPU: plans, and kernels, its machine code; contents that callers "
       "uploaded.",
       {"cache"},
       Product({caches}),
       {}});
  all.push_back({"simgrad_cache_entries",
                 kGauge,
                 kLoad,
                 "Entries of a cache.",
                 {"cache"},
                 Product({caches}),
                 {}});
}

// Names that the operator wrote down, and one for all others.
void AddCallers(std::vector<Family>& all, const ServerLabels& server) {
  Values callers(server.callers.begin(),
                 server.callers.begin() +
                     static_cast<std::ptrdiff_t>(std::min(server.callers.size(), kMostCallers)));
  callers.push_back(kOtherCaller);
  all.push_back({"simgrad_caller_requests_total",
                 kCounter,
                 kServer,
                 "Rollouts and gradients that a caller asked for, refused ones included.",
                 {"caller"},
                 Product({callers}),
                 {}});
  all.push_back({"simgrad_caller_instance_steps_total",
                 kCounter,
                 kServer,
                 "Instance-steps that were admitted for a caller.",
                 {"caller"},
                 Product({callers}),
                 {}});
  all.push_back({"simgrad_caller_rejected_total",
                 kCounter,
                 kServer,
                 "Requests of a caller that were refused: the queue was full, memory was short, or "
                 "the caller reached its own limit of requests in flight, of instance-steps per "
                 "second (rate) or of memory (share).",
                 {"caller", "reason"},
                 Product({callers, {"full", "memory", "requests", "rate", "share"}}),
                 {}});
}

void AddSites(std::vector<Family>& all) {
  all.push_back({"simgrad_solver_iterations",
                 kHistogram,
                 kTerminationSite,
                 "Iterations of each run of a loop.",
                 {},
                 kOne,
                 kIterations});
  all.push_back({"simgrad_terminations_total",
                 kCounter,
                 kTerminationSite,
                 "Runs of a loop, by why they stopped.",
                 {"reason"},
                 Product({{"converged", "max_iter", "nonfinite", "not_entered", "counter"}}),
                 {}});
  all.push_back({"simgrad_termination_margin_ulps",
                 kHistogram,
                 kTerminationSite,
                 "Absolute distance of the tested value from its threshold at the stop, in ulps. "
                 "The sum counts each at the upper end of its power of two.",
                 {},
                 kOne,
                 kUlps});
  all.push_back(
      {"simgrad_termination_near_boundary_total",
       kCounter,
       kTerminationSite,
       "Tests within the band of simgrad_termination_near_band_ulps, by what they decided.",
       {"side"},
       Product({{"stopped", "continued"}}),
       {}});
  all.push_back(
      {"simgrad_termination_checks_total", kCounter, kTerminationSite, "Tests.", {}, kOne, {}});
  all.push_back(
      {"simgrad_termination_near_band_ulps", kGauge, kServer, "The band in force.", {}, kOne, {}});
  all.push_back({"simgrad_events_total",
                 kCounter,
                 kEventSite,
                 "Elements for which an event held.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_event_changes_total",
                 kCounter,
                 kEventSite,
                 "Elements for which an event differed from its last evaluation.",
                 {},
                 kOne,
                 {}});
  all.push_back(
      {"simgrad_path_comparisons_total",
       kCounter,
       kServer,
       "Instances that Compare held against the same instance of another run, by paths or, "
       "without them, by signatures: whether they decide alike.",
       {"result"},
       Product({{"equal", "diverged"}}),
       {}});
  all.push_back(
      {"simgrad_path_flips_total",
       kCounter,
       kSite,
       "Decisions that differed between two runs that were compared: of elements, in all steps.",
       {},
       kOne,
       {}});
}

void AddNumbers(std::vector<Family>& all) {
  all.push_back(
      {"simgrad_nonfinite_values_total",
       kCounter,
       kServer,
       "Non-finite values seen, whatever diagnostics were asked for: every element of the inputs, "
       "of the final states and of the gradients; births with a certificate (at most 16 a "
       "request); observations that a metric refused.",
       {"phase", "kind", "role"},
       Product({kPhases, {"nan", "inf"}, kRoles}),
       {}});
  all.push_back({"simgrad_nonfinite_instances_total",
                 kCounter,
                 kServer,
                 "Instances that went non-finite, by the phase where and what was done.",
                 {"phase", "action"},
                 Product({kPhases, {"reported", "stopped"}}),
                 {}});
  all.push_back({"simgrad_nonfinite_first_step",
                 kHistogram,
                 kServer,
                 "First non-finite step of an instance.",
                 {"phase"},
                 Product({kPhases}),
                 kSteps});
  all.push_back({"simgrad_underflows_total",
                 kCounter,
                 kServer,
                 "Casts that became zero or subnormal; states, and cotangents of states, that are "
                 "subnormal behind a step.",
                 {"role"},
                 Product({kRoles}),
                 {}});
  all.push_back(
      {"simgrad_overflows_total",
       kCounter,
       kServer,
       "Casts and state stores that gave an infinity or the largest value, also where it was "
       "one before.",
       {"role"},
       Product({kRoles}),
       {}});
  all.push_back({"simgrad_absorbed_total",
                 kCounter,
                 kServer,
                 "Additions into states, at sampled steps, whose sum as it is stored is one of its "
                 "operands although the other is not zero.",
                 {"role"},
                 Product({kRoles}),
                 {}});
  all.push_back({"simgrad_additions_total",
                 kCounter,
                 kServer,
                 "Additions into states, at sampled steps, of finite operands that are not zero.",
                 {"role"},
                 Product({kRoles}),
                 {}});
  all.push_back(
      {"simgrad_arithmetic_results_total",
       kCounter,
       kServer,
       "Numbers that operations gave, in the instances, at the steps and in the costs that "
       "requests with `arithmetic_instances` counted.",
       {"role"},
       Product({kRoles}),
       {}});
  all.push_back({"simgrad_arithmetic_additions_total",
                 kCounter,
                 kServer,
                 "Additions of two finite numbers that are not zero among these, each one inside a "
                 "sum or a product of matrices too.",
                 {"role"},
                 Product({kRoles}),
                 {}});
  all.push_back({"simgrad_arithmetic_losses_total",
                 kCounter,
                 kServer,
                 "Results among these that underflowed or overflowed, and additions that were "
                 "absorbed.",
                 {"role", "loss"},
                 Product({kRoles, {"underflow", "overflow", "absorbed"}}),
                 {}});
  all.push_back({"simgrad_gradients_total",
                 kCounter,
                 kWorld,
                 "Gradients: one per differentiated input and instance.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_gradient_zero_total",
                 kCounter,
                 kWorld,
                 "Gradients that are zero in every element (a shared input: for all instances).",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_gradient_disconnected_total",
                 kCounter,
                 kWorld,
                 "Gradients whose executed path never used the input.",
                 {},
                 kOne,
                 {}});
  all.push_back(
      {"simgrad_gradient_norm",
       kHistogram,
       kWorld,
       "Euclidean norm of a returned gradient, one for each differentiated input of a request; "
       "finite ones only.",
       {},
       kOne,
       kDecades});
  all.push_back({"simgrad_loss_scale",
                 kGauge,
                 kServer,
                 "Lowest loss scale among the gradient requests in flight; of the last one where "
                 "there is none.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_loss_scale_adjustments_total",
                 kCounter,
                 kServer,
                 "Gradients behind which a dynamic loss scale grew or fell.",
                 {"direction"},
                 Product({{"up", "down"}}),
                 {}});
}

// Without a GPU the families are there, without series.
void AddGpus(std::vector<Family>& all, const ServerLabels& server) {
  std::vector<std::vector<std::string>> gpus;
  std::vector<std::vector<std::string>> infos;
  for (const GpuLabels& gpu : server.gpus) {
    gpus.push_back({gpu.gpu});
    infos.push_back({gpu.gpu, gpu.uuid, gpu.name});
  }
  all.push_back({"simgrad_gpu_info",
                 kGauge,
                 kGpu,
                 "1; a GPU that is used.",
                 {"gpu", "uuid", "name"},
                 infos,
                 {}});
  all.push_back({"simgrad_gpu_memory_used_bytes",
                 kGauge,
                 kGpu,
                 "Memory of a GPU that this process holds for running work.",
                 {"gpu"},
                 gpus,
                 {}});
  all.push_back({"simgrad_gpu_memory_total_bytes",
                 kGauge,
                 kGpu,
                 "Memory that a GPU has.",
                 {"gpu"},
                 gpus,
                 {}});
  all.push_back({"simgrad_gpu_busy_seconds_total",
                 kCounter,
                 kGpu,
                 "Time in which kernels of this process ran or stood in line on a GPU, of all its "
                 "streams together: more than the time that passed where requests run at once.",
                 {"gpu"},
                 gpus,
                 {}});
  all.push_back({"simgrad_cuda_errors_total",
                 kCounter,
                 kGpu,
                 "Failed CUDA calls; `device_lost` ends the process.",
                 {"kind"},
                 {{"out_of_memory"}, {"device_lost"}, {"other"}},
                 {}});
}

void AddServer(std::vector<Family>& all, const ServerLabels& server) {
  all.push_back({"simgrad_build_info",
                 kGauge,
                 kServer,
                 "1; what runs.",
                 {"version", "revision", "cuda"},
                 {{server.version, server.revision, server.cuda}},
                 {}});
  all.push_back({"simgrad_device_info",
                 kGauge,
                 kServer,
                 "1; where it runs.",
                 {"kind", "name"},
                 {{server.device_kind, server.device_name}},
                 {}});
  AddGpus(all, server);
  all.push_back(
      {"simgrad_ready",
       kGauge,
       kServer,
       "1 while requests are taken; 0 before the server listens, while draining, after a lost "
       "device, and while the server finds that it does not serve (--self_check_interval).",
       {},
       kOne,
       {}});
  all.push_back({"simgrad_connections",
                 kGauge,
                 kServer,
                 "Connections that are open, of the health port too.",
                 {},
                 kOne,
                 {}});
  all.push_back({"simgrad_connections_rejected_total",
                 kCounter,
                 kServer,
                 "Connections refused or cut: too many in all or of one peer, a handshake that "
                 "failed or took too long, calls cancelled in numbers, no file descriptors.",
                 {"reason"},
                 Product({{"total", "peer", "handshake", "resets", "descriptors"}}),
                 {}});
  all.push_back({"simgrad_tls_certificate_expiry_timestamp_seconds",
                 kGauge,
                 kServer,
                 "Unix time at which the server's certificate expires; 0 without TLS.",
                 {},
                 kOne,
                 {}});
  all.push_back(
      {"simgrad_reload_failures_total",
       kCounter,
       kServer,
       "Times that changed files of TLS or of tokens could not be used; those known before "
       "stay in use. Grows with every look at files that stay so.",
       {"what"},
       Product({{"certificate", "tokens"}}),
       {}});
  all.push_back(
      {"simgrad_trace_spans_total",
       kCounter,
       kServer,
       "Spans of requests that ended, for --otlp_endpoint: sent, the collector took them; "
       "dropped, too many waited or the collector gave no answer in time; refused, it said no.",
       {"result"},
       Product({{"sent", "dropped", "refused"}}),
       {}});
  all.push_back({"process_cpu_seconds_total",
                 kCounter,
                 kProcess,
                 "User and system CPU time of the process.",
                 {},
                 kOne,
                 {}});
  all.push_back(
      {"process_resident_memory_bytes", kGauge, kProcess, "Resident memory.", {}, kOne, {}});
  all.push_back(
      {"process_virtual_memory_bytes", kGauge, kProcess, "Virtual memory.", {}, kOne, {}});
  all.push_back({"process_open_fds", kGauge, kProcess, "Open file descriptors.", {}, kOne, {}});
  all.push_back(
      {"process_max_fds", kGauge, kProcess, "Limit of open file descriptors.", {}, kOne, {}});
  all.push_back({"process_start_time_seconds",
                 kGauge,
                 kProcess,
                 "Start of the process, since the epoch.",
                 {},
                 kOne,
                 {}});
}

}  // namespace

std::vector<Family> Manifest(const ServerLabels& server) {
  std::vector<Family> all;
  AddRpc(all);
  AddWork(all);
  AddLoad(all, server);
  AddCallers(all, server);
  AddSites(all);
  AddNumbers(all);
  AddServer(all, server);
  return all;
}

}  // namespace simgrad::server::metrics
