// Every handle the server records into, taken from the registry once at start.
//
// Threads: any.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "server/metrics/gpu_collector.h"
#include "server/metrics/load_collector.h"
#include "server/metrics/manifest.h"
#include "server/metrics/registry.h"
#include "server/metrics/series.h"
#include "server/metrics/world_metrics.h"
#include "sim/engine.h"

namespace simgrad::server::metrics {

enum class Direction : uint8_t { kForward, kRecompute, kAdjoint };
enum class Dropped : uint8_t { kSlowClient, kSampled };
enum class LostIn : uint8_t { kQueued, kForward, kAdjoint, kStream };

struct MethodMetrics {
  GuardedCounter started;
  std::map<std::string, GuardedCounter> handled;  // by code
  GuardedHistogram handling_seconds;
  GuardedGauge in_flight;
  // Streams only:
  std::array<GuardedCounter, 4> cancelled;          // [LostIn]
  std::array<GuardedCounter, 4> deadline_exceeded;  // [LostIn]
  GuardedHistogram first_message_seconds;
  // A code that the method does not declare counts as Internal.
  void Handled(const std::string& code);
};

// The part of finished work that is counted: a reversal of a kept rollout leaves out what its rollout told.
enum class Recorded : uint8_t { kAll, kReversal };

// Why a request of a caller was refused, as far as a caller's series tell.
enum class Rejected : uint8_t { kFull, kMemory, kRequests, kRate, kShare };

struct CallerMetrics {
  GuardedCounter requests, instance_steps;
  std::array<GuardedCounter, 5> rejected;  // [Rejected]
};

// The metrics of connections of every port of gRPC.
struct ConnectionMetrics {
  GuardedGauge open;
  std::map<std::string, GuardedCounter> rejected;  // by reason
};

class ServerMetrics {
 public:
  // `read_gpus`: the use of server.gpus, at each scrape; `read_load`: workers, memory and caches.
  ServerMetrics(
      const ServerLabels& server, const std::vector<WorldLabels>& worlds,
      GpuCollector::Read read_gpus = [] { return std::vector<sim::cuda::DeviceUse>(); },
      LoadCollector::Read read_load = [] { return LoadCollector::Values(); });

  MethodMetrics& method(const std::string& name) { return methods_.at(name); }
  double CallsInFlight() const;  // of every method
  // `label` of conversion::WorldLabel; anything else is "custom".
  WorldMetrics& world(const std::string& label);
  // The metrics of a caller that the operator wrote down, or of all others.
  CallerMetrics& caller(const std::string& name);

  // Sites, underflows, overflows and additions of one chunk of steps.
  void RecordForward(const sim::StepDiagnostics& diagnostics, const SiteHandles& sites);
  // As they are done, so that work that is cancelled or fails counts too.
  void RecordSteps(Direction direction, int64_t instance_steps);
  // Records what finished work tells: instances, certificates, gradients, phases.
  void RecordResult(const sim::Work& work, const sim::WorkResult& result, Recorded what,
                    WorldMetrics& world);
  void RecordInputs(int64_t state_nan, int64_t state_inf, int64_t other_nan, int64_t other_inf);

  void BeginLossScale(double scale);
  void EndLossScale(double scale);
  void RecordScaler(double before, double after);  // of a dynamic loss scale

  std::vector<std::shared_ptr<prometheus::Collectable>> collectables() const;

  GuardedGauge near_band_ulps, ready;
  GuardedGauge tls_certificate_expiry;  // Unix seconds; 0 without TLS
  GuardedCounter certificate_reload_failures, token_reload_failures;
  GuardedHistogram queue_wait_seconds;
  std::map<std::string, GuardedCounter> queue_rejected;    // by reason
  std::array<GuardedCounter, 2> stream_dropped;            // [Dropped]
  std::array<GuardedHistogram, 2> batch_instances;         // forward, adjoint
  std::map<std::string, GuardedHistogram> phase_seconds;   // by phase
  std::map<std::string, GuardedCounter> program_cache;     // by result
  std::map<std::string, GuardedCounter> path_comparisons;  // by result
  std::map<std::string, GuardedCounter> tape_evictions;    // by reason
  // By sim::CompileQuality.
  std::array<GuardedCounter, 2> kernel_compiles;
  std::array<GuardedHistogram, 2> kernel_compile_seconds;
  ConnectionMetrics connections;
  std::array<GuardedCounter, 3> trace_spans;  // sent, dropped, refused

 private:
  GuardedCounter& NonFinite(sim::Phase phase, bool nan, precision::Role role);
  void RecordRanges(const sim::RangeCounts& ranges);
  void RecordArithmetic(const std::vector<sim::OperationArithmetic>& rows);
  void RecordHealth(const std::vector<sim::InstanceHealth>& health, Recorded what);
  void RecordFinalStates(const sim::WorkResult& result);
  void RecordGradient(const sim::Work& work, const sim::InputGradient& gradient,
                      WorldMetrics& world);

  Registry registry_;
  std::shared_ptr<prometheus::Collectable> process_, gpus_, load_;
  std::map<std::string, MethodMetrics> methods_;
  std::map<std::string, WorldMetrics> worlds_;
  std::map<std::string, CallerMetrics> callers_;
  std::array<GuardedCounter, 3> steps_;  // [Direction]
  std::array<GuardedCounter, precision::kRoleCount> underflows_, overflows_;
  std::array<GuardedCounter, precision::kRoleCount> absorbed_, additions_;
  // By role.
  struct ArithmeticMetrics {
    GuardedCounter results, additions, underflows, overflows, absorbed;
  };
  std::array<ArithmeticMetrics, precision::kRoleCount> arithmetic_;
  std::array<std::array<std::array<GuardedCounter, precision::kRoleCount>, 2>, 3> nonfinite_;
  std::array<std::array<GuardedCounter, 2>, 3> nonfinite_instances_;  // [phase][stopped]
  std::array<GuardedHistogram, 3> nonfinite_first_step_;
  GuardedGauge loss_scale_;
  std::array<GuardedCounter, 2> loss_scale_adjustments_;  // up, down
  std::mutex loss_scale_mutex_;
  std::multiset<double> loss_scales_;
};

}  // namespace simgrad::server::metrics
