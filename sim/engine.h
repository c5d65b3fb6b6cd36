// The only door into the simulation: runs one piece of work on an executor and returns data.
//
// Threads: an Engine is immutable and may be used from many threads; each Run belongs to its
// caller. Errors: RESOURCE_EXHAUSTED when the work does not fit its memory budget, CANCELLED or
// DEADLINE_EXCEEDED when the observer says so between chunks, or where RunOptions::stop ended a
// chunk and the observer is asked for the reason, INVALID_ARGUMENT for work that does not fit its
// program. A non-finite instance is a result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/executor.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/program/numerical_program.h"
#include "sim/tensor.h"

namespace simgrad::sim {

enum class InstanceReduction : uint8_t {
  kAll,
  kFiniteOnly,  // instances with a non-finite value, forward or adjoint, are left out and counted
};

struct GradientWork {
  std::vector<double> weights;  // per instance; empty: ones
  InstanceReduction reduction = InstanceReduction::kAll;
};

// Asks for so many bytes more than EstimateBytes counted; true: they are the work's until it ends.
using ReserveCallback = std::function<bool(int64_t more_bytes)>;

struct Work {
  Batch batch;  // batch.program->adjoint is set where `gradient` is
  RunOptions options;
  std::optional<GradientWork> gradient;
  int64_t chunk_steps = 0;                     // 0: chosen
  int64_t max_chunk_steps = int64_t{1} << 40;  // whether chosen or asked for
  int64_t checkpoint_interval = 0;             // steps; 0: chosen within the budget
  // What the checkpoints and records of a gradient may take at most.
  int64_t memory_budget_bytes = int64_t{4} << 30;
  // Asked where the loops of the forward run iterated more often than was counted. Empty: nobody is
  // asked, and EstimateBytes counts the caps of the loops, up to memory_budget_bytes.
  ReserveCallback reserve;
  int32_t max_certificates = 16;
};

enum class WorkPhase : uint8_t { kForward, kRecompute, kAdjoint };

// Told between chunks; every method is called from the thread that runs the work.
class Observer {
 public:
  virtual ~Observer() = default;
  // Not OK ends the work with that status before the next chunk.
  virtual absl::Status Continue(WorkPhase) { return absl::OkStatus(); }
  // z[0] of the recorded states (RunOptions::record_states), [instances][shape]; before all else.
  virtual void OnStart(const std::vector<Tensor>& /*recorded_states*/) {}
  virtual void OnForward(const ForwardChunk&) {}
  // Steps that were run again, for the adjoint.
  virtual void OnRecompute(int64_t /*steps*/) {}
  virtual void OnAdjoint(int64_t /*first_step*/, const AdjointChunk&) {}
};

// Gradient of one input. Shared inputs: the weighted sum over instances, aligned pairwise tree over
// the instance ids; per-instance inputs: one row per instance, times its weight.
struct InputGradient {
  int32_t input = -1;
  Tensor gradient;        // shape of what was sent, format of role gradient
  int64_t connected = 0;  // instances
  // Where connected == 0: the site that kept its value from going anywhere, in all instances and
  // steps of this run; empty where none did (a kink ended it, say). See sim/engine/gate.h.
  std::string gated_by;
};

struct PhaseSeconds {
  double compile = 0;  // making the executor ready for the program
  double forward = 0, recompute = 0, adjoint = 0;
};

struct WorkResult {
  int64_t steps_done = 0;
  std::vector<Tensor> final_states;  // per state input, [instances][shape]
  std::vector<double> values;        // per instance, where an objective was chosen
  double value = 0;                  // sum of weight * value, aligned pairwise, role objective
  std::vector<uint64_t> path_signatures;
  uint64_t batch_path_signature = 0;
  std::vector<InstanceHealth> health;
  std::vector<std::vector<int64_t>> first_event_steps;  // per event site, per instance
  std::vector<InputGradient> gradients;
  double loss_scale = 1.0;
  bool skipped = false;                // a scaled gradient was not finite
  int64_t left_out = 0;                // by kFiniteOnly
  std::vector<BackwardStep> backward;  // [steps]
  RangeCounts adjoint_ranges;
  std::vector<BirthCertificate> certificates;
  PhaseSeconds seconds;
  int64_t forward_steps = 0, recompute_steps = 0, adjoint_steps = 0;  // instance-steps
};

class Engine {
 public:
  // Birth certificates are written by replays in the reference backend, whatever the executor.
  explicit Engine(std::shared_ptr<Executor> executor);
  absl::StatusOr<WorkResult> Execute(Work work, Observer& observer) const;
  const Executor& executor() const { return *executor_; }

 private:
  std::shared_ptr<Executor> executor_;
};

// The longest chunk of steps that Execute will run.
int64_t MostStepsOfAChunk(const Work& work);

// Upper bound of the bytes that Execute allocates for this work on an executor of this kind, for
// admission; without an executor, on any. Beside what is asked for by Work::reserve, and beside
// what happens in the observer. CANCELLED where RunOptions::stop said so. Cost: where the executor
// tells what it needs, that of compiling its plans.
absl::StatusOr<int64_t> EstimateBytes(const Work& work, const Executor& executor);
int64_t EstimateBytes(const Work& work);

}  // namespace simgrad::sim
