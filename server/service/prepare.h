// From a request to work: checks, then conversion, in the one order that allocates nothing for a
// request that is refused.
//
// Errors: those of the checks; CANCELLED where `compile.stop` of the control said so: it is asked
// every 2^17 numbers or so. Cost: linear in the request, n log n in its ids; verifying and lowering
// a program only where the cache has none.
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/conversion/program_cache.h"
#include "server/conversion/work.h"
#include "server/service/kept_runs.h"
#include "server/service/stage_clock.h"
#include "server/validation/request_limits.h"

namespace simgrad::server::service {

struct PrepareOptions {
  validation::RequestLimits limits;
  conversion::WorkSettings work;
  // Estimates the memory of large work. Null: bounds that hold for any executor are taken.
  std::shared_ptr<const sim::Engine> engine;
  // Worlds of the programs that the request, or a variant of it, names.
  conversion::NamedWorlds worlds;
};

// The budget of one request beside the options, and the signal for it to end.
struct PrepareControl {
  conversion::CompileControl compile;
  sim::ReserveCallback reserve;  // of the work, while it runs; empty: it asks for all in advance
  // Takes memory for uploaded content that the request names. Empty: there always is memory.
  std::function<bool(int64_t bytes)> take_content;
  // Takes memory for what the numbers of a request take beyond it. Empty: there always is memory.
  std::function<bool(int64_t bytes)> take_numbers;
  // Whether work and its answer may have so many bytes, of the limit and of the caller's share, beside
  // what the request holds. Empty: they may.
  std::function<bool(int64_t bytes)> may_have;
};

class Variants;

struct PreparedWork {
  std::shared_ptr<const conversion::CachedProgram> program;
  sim::Work work;
  // The spec of a rollout that is to be kept, for the reversals; without a program.
  std::shared_ptr<const v1::RolloutSpec> keep_spec;
  // The run that a Vjp reverses, for each of these cotangents; `work` has none of them.
  std::shared_ptr<const sim::KeptRun> kept;
  std::vector<sim::Cotangents> cotangents;
  std::shared_ptr<Variants> variants;  // of a Compare, whose reference this is
  std::vector<conversion::Recorded> recorded;
  conversion::NonFiniteInputs nonfinite_inputs;
  int64_t memory_bytes = 0;  // of the work and its answer
  bool send_diagnostics = true;
  std::optional<v1::DynamicLossScale> loss_scaler;  // the request's, where it is dynamic
  v1::ProgramDetail program_detail = v1::PROGRAM_DETAIL_FINGERPRINT;
  double decode_seconds = 0.0;
  double compile_seconds = 0.0;  // cache look-ups, verifying, lowering
  StageExtent decode, compile;   // when both were
};

// Copies that a request takes beside its bytes: the parsed message, and the work made of it.
inline constexpr int64_t kRequestCopies = 2;

// A request of more bytes is read by a worker, not by gRPC's threads.
inline constexpr int64_t kQuickBytes = int64_t{16} << 10;

// The cost of preparing a request. Quick: below a few milliseconds, so that gRPC's own threads may
// do it: a program of so few operations and elements that nothing its passes write can be large, or
// a built-in world of few elements. Else it is work for others.
// Cost: looks at no more operations than a quick program has, and at the shapes of its values.
enum class Preparation { kQuick, kCostly };
Preparation PreparationOf(const v1::World& world);

absl::StatusOr<PreparedWork> Prepare(const v1::RolloutRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control = {});
absl::StatusOr<PreparedWork> Prepare(const v1::GradientRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control = {});

// Takes the cotangents from the request. `kept`: what its handle stands for.
absl::StatusOr<PreparedWork> Prepare(v1::VjpRequest&& request, const KeptRuns::Kept& kept,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control = {});

// Threads that a batch of this size is worth: one per some hundred instances.
int ThreadsFor(int64_t instances, int most);

}  // namespace simgrad::server::service
