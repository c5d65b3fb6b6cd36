#include "server/metrics/server_metrics.h"

#include <algorithm>
#include <cmath>

#include "server/metrics/methods.h"
#include "server/metrics/process_collector.h"

namespace simgrad::server::metrics {
namespace {

const std::array<std::string, 3> kPhases = {"input", "forward", "adjoint"};
const std::array<std::string, 4> kLostIn = {"queued", "forward", "adjoint", "stream"};

MethodMetrics MakeMethod(const Registry& registry, const Method& method) {
  const std::vector<std::string> labels = {method.type, kGrpcService, method.name};
  MethodMetrics metrics;
  metrics.started = registry.Counter("grpc_server_started_total", labels);
  for (const std::string& code : method.codes) {
    std::vector<std::string> with_code = labels;
    with_code.push_back(code);
    metrics.handled[code] = registry.Counter("grpc_server_handled_total", with_code);
  }
  metrics.handling_seconds = registry.Histogram("grpc_server_handling_seconds", labels);
  metrics.in_flight = registry.Gauge("simgrad_rpc_in_flight", {method.name});
  if (method.type != "server_stream") return metrics;
  for (size_t i = 0; i < kLostIn.size(); ++i) {
    metrics.cancelled[i] =
        registry.Counter("simgrad_rpc_cancelled_total", {method.name, kLostIn[i]});
    metrics.deadline_exceeded[i] =
        registry.Counter("simgrad_rpc_deadline_exceeded_total", {method.name, kLostIn[i]});
  }
  metrics.first_message_seconds =
      registry.Histogram("simgrad_rpc_time_to_first_message_seconds", {method.name});
  return metrics;
}

CallerMetrics MakeCaller(const Registry& registry, const std::string& name) {
  CallerMetrics metrics;
  metrics.requests = registry.Counter("simgrad_caller_requests_total", {name});
  metrics.instance_steps = registry.Counter("simgrad_caller_instance_steps_total", {name});
  constexpr std::array<const char*, 5> kReasons = {"full", "memory", "requests", "rate", "share"};
  for (size_t i = 0; i < kReasons.size(); ++i) {
    metrics.rejected[i] = registry.Counter("simgrad_caller_rejected_total", {name, kReasons[i]});
  }
  return metrics;
}

bool IsZero(const sim::Tensor& tensor, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    if (tensor.Get(i) != 0.0) return false;
  }
  return true;
}

// Scaled by the largest magnitude, so that no square overflows.
double Norm(const sim::Tensor& tensor) {
  double largest = 0.0;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double x = tensor.Get(i);
    if (!std::isfinite(x)) return x;
    largest = std::max(largest, std::abs(x));
  }
  if (largest == 0.0) return 0.0;
  double sum = 0.0;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double x = tensor.Get(i) / largest;
    sum += x * x;
  }
  return std::min(largest * std::sqrt(sum), std::numeric_limits<double>::max());
}

bool IsRecorded(sim::Phase phase, Recorded what) {
  return what == Recorded::kAll || phase == sim::Phase::kAdjoint;
}

}  // namespace

void MethodMetrics::Handled(const std::string& code) {
  auto found = handled.find(code);
  if (found == handled.end()) found = handled.find("Internal");
  if (found != handled.end()) found->second.Increment();
}

ServerMetrics::ServerMetrics(const ServerLabels& server, const std::vector<WorldLabels>& worlds,
                             GpuCollector::Read read_gpus, LoadCollector::Read read_load)
    : registry_(Manifest(server), worlds),
      process_(std::make_shared<ProcessCollector>(Manifest(server))),
      gpus_(std::make_shared<GpuCollector>(Manifest(server), std::move(read_gpus))),
      load_(std::make_shared<LoadCollector>(Manifest(server), std::move(read_load))) {
  for (const Method& method : Methods()) methods_[method.name] = MakeMethod(registry_, method);
  for (const WorldLabels& labels : worlds) {
    worlds_[labels.world] = MakeWorldMetrics(registry_, labels);
  }
  for (size_t i = 0; i < std::min(server.callers.size(), kMostCallers); ++i) {
    callers_[server.callers[i]] = MakeCaller(registry_, server.callers[i]);
  }
  callers_[kOtherCaller] = MakeCaller(registry_, kOtherCaller);
  near_band_ulps = registry_.Gauge("simgrad_termination_near_band_ulps");
  ready = registry_.Gauge("simgrad_ready");
  tls_certificate_expiry = registry_.Gauge("simgrad_tls_certificate_expiry_timestamp_seconds");
  certificate_reload_failures = registry_.Counter("simgrad_reload_failures_total", {"certificate"});
  token_reload_failures = registry_.Counter("simgrad_reload_failures_total", {"tokens"});
  loss_scale_ = registry_.Gauge("simgrad_loss_scale");
  loss_scale_.Set(1.0);
  loss_scale_adjustments_ = {registry_.Counter("simgrad_loss_scale_adjustments_total", {"up"}),
                             registry_.Counter("simgrad_loss_scale_adjustments_total", {"down"})};
  queue_wait_seconds = registry_.Histogram("simgrad_queue_wait_seconds");
  for (const char* reason : {"full", "memory", "deadline", "expired", "draining", "caller",
                             "too_large", "too_long", "slow_reader"}) {
    queue_rejected[reason] = registry_.Counter("simgrad_queue_rejected_total", {reason});
  }
  stream_dropped = {registry_.Counter("simgrad_stream_dropped_messages_total", {"slow_client"}),
                    registry_.Counter("simgrad_stream_dropped_messages_total", {"sampled"})};
  for (const char* phase : {"decode", "compile", "forward", "recompute", "adjoint", "encode"}) {
    phase_seconds[phase] = registry_.Histogram("simgrad_phase_duration_seconds", {phase});
  }
  for (const char* result : {"hit", "miss", "failed"}) {
    program_cache[result] = registry_.Counter("simgrad_program_cache_total", {result});
  }
  for (const std::string result : {"equal", "diverged"}) {
    path_comparisons[result] = registry_.Counter("simgrad_path_comparisons_total", {result});
  }
  for (const char* reason : {"limit", "ttl", "released"}) {
    tape_evictions[reason] = registry_.Counter("simgrad_tape_evictions_total", {reason});
  }
  const std::array<std::string, 2> qualities = {"quick", "best"};
  for (size_t quality = 0; quality < qualities.size(); ++quality) {
    const std::vector<std::string> row = {server.device_kind, qualities[quality]};
    kernel_compiles[quality] = registry_.Counter("simgrad_kernel_compiles_total", row);
    kernel_compile_seconds[quality] = registry_.Histogram("simgrad_kernel_compile_seconds", row);
  }
  trace_spans = {registry_.Counter("simgrad_trace_spans_total", {"sent"}),
                 registry_.Counter("simgrad_trace_spans_total", {"dropped"}),
                 registry_.Counter("simgrad_trace_spans_total", {"refused"})};
  connections.open = registry_.Gauge("simgrad_connections");
  for (const char* reason : {"total", "peer", "handshake", "resets", "descriptors"}) {
    connections.rejected[reason] =
        registry_.Counter("simgrad_connections_rejected_total", {reason});
  }
  batch_instances = {registry_.Histogram("simgrad_batch_instances", {"forward"}),
                     registry_.Histogram("simgrad_batch_instances", {"adjoint"})};
  steps_ = {registry_.Counter("simgrad_steps_total", {"forward"}),
            registry_.Counter("simgrad_steps_total", {"recompute"}),
            registry_.Counter("simgrad_steps_total", {"adjoint"})};
  for (int role = 0; role < precision::kRoleCount; ++role) {
    const std::string name(precision::RoleName(static_cast<precision::Role>(role)));
    underflows_[role] = registry_.Counter("simgrad_underflows_total", {name});
    overflows_[role] = registry_.Counter("simgrad_overflows_total", {name});
    absorbed_[role] = registry_.Counter("simgrad_absorbed_total", {name});
    additions_[role] = registry_.Counter("simgrad_additions_total", {name});
    const auto lost = [&](const char* how) {
      return registry_.Counter("simgrad_arithmetic_losses_total", {name, how});
    };
    arithmetic_[role] = {registry_.Counter("simgrad_arithmetic_results_total", {name}),
                         registry_.Counter("simgrad_arithmetic_additions_total", {name}),
                         lost("underflow"), lost("overflow"), lost("absorbed")};
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      for (int nan = 0; nan < 2; ++nan) {
        nonfinite_[phase][nan][role] = registry_.Counter(
            "simgrad_nonfinite_values_total", {kPhases[phase], nan ? "nan" : "inf", name});
      }
    }
  }
  for (size_t phase = 0; phase < kPhases.size(); ++phase) {
    const std::string family = "simgrad_nonfinite_instances_total";
    nonfinite_instances_[phase] = {registry_.Counter(family, {kPhases[phase], "reported"}),
                                   registry_.Counter(family, {kPhases[phase], "stopped"})};
    nonfinite_first_step_[phase] =
        registry_.Histogram("simgrad_nonfinite_first_step", {kPhases[phase]});
  }
  registry_.Gauge("simgrad_build_info", {server.version, server.revision, server.cuda}).Set(1.0);
  registry_.Gauge("simgrad_device_info", {server.device_kind, server.device_name}).Set(1.0);
}

double ServerMetrics::CallsInFlight() const {
  double calls = 0;
  for (const auto& [name, method] : methods_) calls += method.in_flight.Value();
  return calls;
}

WorldMetrics& ServerMetrics::world(const std::string& label) {
  const auto found = worlds_.find(label);
  return found == worlds_.end() ? worlds_.at("custom") : found->second;
}

CallerMetrics& ServerMetrics::caller(const std::string& name) {
  const auto found = callers_.find(name);
  return found == callers_.end() ? callers_.at(kOtherCaller) : found->second;
}

GuardedCounter& ServerMetrics::NonFinite(sim::Phase phase, bool nan, precision::Role role) {
  return nonfinite_[static_cast<size_t>(phase)][nan ? 1 : 0][static_cast<size_t>(role)];
}

void ServerMetrics::RecordRanges(const sim::RangeCounts& ranges) {
  for (int role = 0; role < precision::kRoleCount; ++role) {
    underflows_[role].Add(ranges.underflows[role]);
    overflows_[role].Add(ranges.overflows[role]);
  }
}

// Rows of roles hold those of their operations.
void ServerMetrics::RecordArithmetic(const std::vector<sim::OperationArithmetic>& rows) {
  for (const sim::OperationArithmetic& row : rows) {
    if (!row.operation.empty()) continue;
    ArithmeticMetrics& metrics = arithmetic_[static_cast<size_t>(row.role)];
    metrics.results.Add(static_cast<double>(row.counts.results));
    metrics.additions.Add(static_cast<double>(row.counts.additions));
    metrics.underflows.Add(static_cast<double>(row.counts.underflows));
    metrics.overflows.Add(static_cast<double>(row.counts.overflows));
    metrics.absorbed.Add(static_cast<double>(row.counts.absorbed));
  }
}

void ServerMetrics::RecordForward(const sim::StepDiagnostics& diagnostics,
                                  const SiteHandles& sites) {
  for (size_t i = 0; i < diagnostics.terminations.size(); ++i) {
    if (sites.terminations[i] != nullptr) {
      sites.terminations[i]->Record(diagnostics.terminations[i]);
    }
  }
  for (size_t i = 0; i < diagnostics.events.size(); ++i) {
    if (sites.events[i] != nullptr) sites.events[i]->Record(diagnostics.events[i]);
  }
  RecordRanges(diagnostics.ranges);
  for (const sim::AdditionCounts& counts : diagnostics.additions) {
    const size_t role = static_cast<size_t>(counts.role);
    absorbed_[role].Add(static_cast<double>(counts.absorbed));
    additions_[role].Add(static_cast<double>(counts.additions));
  }
}

void ServerMetrics::RecordSteps(Direction direction, int64_t instance_steps) {
  steps_[static_cast<size_t>(direction)].Add(static_cast<double>(instance_steps));
}

void ServerMetrics::RecordInputs(int64_t state_nan, int64_t state_inf, int64_t other_nan,
                                 int64_t other_inf) {
  const auto add = [&](bool nan, precision::Role role, int64_t count) {
    NonFinite(sim::Phase::kInput, nan, role).Add(static_cast<double>(count));
  };
  add(true, precision::Role::kState, state_nan);
  add(false, precision::Role::kState, state_inf);
  add(true, precision::Role::kDynamics, other_nan);
  add(false, precision::Role::kDynamics, other_inf);
}

void ServerMetrics::RecordHealth(const std::vector<sim::InstanceHealth>& health, Recorded what) {
  for (const sim::InstanceHealth& instance : health) {
    if (instance.ok || !IsRecorded(instance.phase, what)) continue;
    const size_t phase = static_cast<size_t>(instance.phase);
    nonfinite_instances_[phase][instance.stopped ? 1 : 0].Increment();
    nonfinite_first_step_[phase].Observe(static_cast<double>(instance.step));
  }
}

// Sampled ranges of states would count as often as the caller's stride has it.
void ServerMetrics::RecordFinalStates(const sim::WorkResult& result) {
  const auto instances = static_cast<int64_t>(result.health.size());
  for (const sim::Tensor& state : result.final_states) {
    if (state.dtype > sim::DType::kE5m2 || instances == 0) continue;
    const int64_t count = state.count();
    const int64_t row = count / instances;
    for (int64_t i = 0; i < count; ++i) {
      if (result.health[static_cast<size_t>(i / row)].ok) {
        i += row - 1;  // all of its states are finite
        continue;
      }
      const double x = state.Get(i);
      if (std::isfinite(x)) continue;
      NonFinite(sim::Phase::kForward, std::isnan(x), precision::Role::kState).Increment();
    }
  }
}

void ServerMetrics::RecordGradient(const sim::Work& work, const sim::InputGradient& gradient,
                                   WorldMetrics& world) {
  const int64_t instances = work.batch.instances;
  world.gradients.Add(static_cast<double>(instances));
  world.gradient_disconnected.Add(static_cast<double>(instances - gradient.connected));
  const sim::Tensor& tensor = gradient.gradient;
  if (work.batch.inputs[gradient.input].per_instance && instances > 0) {
    const int64_t row = tensor.count() / instances;
    int64_t zero = 0;
    for (int64_t i = 0; i < instances; ++i) zero += IsZero(tensor, i * row, (i + 1) * row) ? 1 : 0;
    world.gradient_zero.Add(static_cast<double>(zero));
  } else if (IsZero(tensor, 0, tensor.count())) {
    world.gradient_zero.Add(static_cast<double>(instances));
  }
  // The elements that keep a norm from being finite are counted one by one below.
  if (const double norm = Norm(tensor); std::isfinite(norm)) world.gradient_norm.Observe(norm);
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double x = tensor.Get(i);
    if (!std::isfinite(x)) {
      NonFinite(sim::Phase::kAdjoint, std::isnan(x), precision::Role::kGradient).Increment();
    }
  }
}

void ServerMetrics::RecordResult(const sim::Work& work, const sim::WorkResult& result,
                                 Recorded what, WorldMetrics& world) {
  const bool all = what == Recorded::kAll;
  if (all) {
    phase_seconds.at("forward").Observe(result.seconds.forward);
    RecordFinalStates(result);
  }
  RecordHealth(result.health, what);
  for (const sim::BirthCertificate& birth : result.certificates) {
    if (birth.phase == sim::Phase::kInput) continue;  // counted on arrival, every element
    if (!IsRecorded(birth.phase, what)) continue;
    NonFinite(birth.phase, std::isnan(birth.result), birth.role).Increment();
  }
  RecordArithmetic(result.arithmetic.forward);
  if (!work.gradient) return;
  RecordArithmetic(result.arithmetic.adjoint);
  // A kept rollout that ran again counts as recomputation.
  const double again = all ? 0.0 : result.seconds.forward;
  phase_seconds.at("recompute").Observe(result.seconds.recompute + again);
  phase_seconds.at("adjoint").Observe(result.seconds.adjoint);
  RecordRanges(result.adjoint_ranges);
  for (const sim::InputGradient& gradient : result.gradients) RecordGradient(work, gradient, world);
}

void ServerMetrics::BeginLossScale(double scale) {
  std::lock_guard lock(loss_scale_mutex_);
  loss_scales_.insert(scale);
  loss_scale_.Set(*loss_scales_.begin());
}

void ServerMetrics::EndLossScale(double scale) {
  std::lock_guard lock(loss_scale_mutex_);
  loss_scales_.erase(loss_scales_.find(scale));
  if (!loss_scales_.empty()) loss_scale_.Set(*loss_scales_.begin());
}

void ServerMetrics::RecordScaler(double before, double after) {
  if (after != before) loss_scale_adjustments_[after > before ? 0 : 1].Increment();
}

std::vector<std::shared_ptr<prometheus::Collectable>> ServerMetrics::collectables() const {
  return {registry_.collectable(), process_, gpus_, load_};
}

}  // namespace simgrad::server::metrics
