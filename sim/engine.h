// The only door into the simulation: runs one piece of work on an executor and returns data.
//
// A non-finite instance is a result, not an error.
// Errors: INVALID_ARGUMENT for work that does not fit its program; RESOURCE_EXHAUSTED if it does
//   not fit its memory budget; CANCELLED or DEADLINE_EXCEEDED if the observer says so. The observer
//   is asked between chunks, and for the reason when RunOptions::stop has ended a chunk.
// Threads: an Engine is immutable and may be used from many threads; each Run belongs to its
//   caller.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "precision/aligned_sum.h"
#include "sim/backend/executor.h"
#include "sim/diagnostics/arithmetic.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/program/halts.h"
#include "sim/program/numerical_program.h"
#include "sim/tensor.h"

namespace simgrad::sim {

enum class InstanceReduction : uint8_t {
  kAll,
  kFiniteOnly,  // instances with a non-finite value, forward or adjoint, are left out and counted
};

struct GradientWork {
  InstanceReduction reduction = InstanceReduction::kAll;
  bool return_tree = false;              // InputGradient::tree
  bool tell_steps = true;                // WorkResult::backward, 288 bytes for each step
  std::optional<double> clip_norm = {};  // positive; see sim/engine/clip.h
};

// Asks for bytes beyond those that EstimateBytes counted. If it returns true, the work keeps them
// until it ends.
using ReserveCallback = std::function<bool(int64_t more_bytes)>;

struct KeptRun;  // sim/engine/kept_run.h

struct Work {
  Batch batch;  // batch.program->adjoint is set where `gradient` is, and where it is kept
  RunOptions options;
  std::optional<GradientWork> gradient;
  bool keep = false;                           // WorkResult::kept; not together with `gradient`
  std::vector<double> weights;                 // of instances in sums over them; empty: ones
  int64_t chunk_steps = 0;                     // 0: chosen
  int64_t max_chunk_steps = int64_t{1} << 40;  // limits both
  int64_t checkpoint_interval = 0;             // steps; 0: chosen within the budget
  // The most that checkpoints and tapes of a gradient may allocate.
  int64_t memory_budget_bytes = int64_t{4} << 30;
  // Called if the loops of the forward run iterated more often than was counted. If it is empty,
  // EstimateBytes counts the caps of the loops, up to memory_budget_bytes.
  ReserveCallback reserve;
  int32_t max_certificates = 16;
  int64_t arithmetic_instances = 0;  // WorkResult::arithmetic, of the first so many
};

enum class WorkPhase : uint8_t { kForward, kRecompute, kAdjoint, kArithmetic };

// Called between chunks, from the thread that runs the work.
class Observer {
 public:
  virtual ~Observer() = default;
  // An error ends the work with that status before the next chunk.
  virtual absl::Status Continue(WorkPhase) { return absl::OkStatus(); }
  // A chunk of so many steps begins: kForward, kRecompute or kAdjoint. It may be stopped inside.
  virtual void OnChunk(WorkPhase, int64_t /*steps*/) {}
  // Called first, with z[0] of the recorded states (RunOptions::record_states), [instances][shape].
  virtual void OnStart(const std::vector<Tensor>& /*recorded_states*/) {}
  virtual void OnForward(const ForwardChunk&) {}
  // The number of steps that ran again for the adjoint.
  virtual void OnRecompute(int64_t /*steps*/) {}
  virtual void OnAdjoint(int64_t /*first_step*/, const AdjointChunk&) {}
  // So many of the instances whose arithmetic is counted are done.
  virtual void OnArithmetic(int64_t /*counted*/, int64_t /*instances*/) {}
};

// The gradient of one input. A shared input has the weighted sum over instances, in the pairwise
// tree aligned to their ids. A per-instance input has one row per instance, times its weight.
struct InputGradient {
  int32_t input = -1;
  Tensor gradient;        // shape of what was sent, format of role gradient
  int64_t connected = 0;  // instances
  GradientMagnitudes magnitudes;
  // If connected == 0: the site that blocked the value in all instances and steps of this run;
  // empty if no site did (a kink, for example). See sim/engine/gate.h.
  std::string gated_by;
  // The tree of a shared input, if asked for: its sums over the aligned blocks of ids between
  // the smallest and the largest of the request, in the accumulator of role gradient, with the loss
  // scale. Nodes of requests that share no id merge to the bits of one request (aligned_sum.h).
  std::vector<precision::AlignedNode> tree;
};

// A loop whose derivative is implicit, and its runs that did not converge: they ended at the cap, so
// what was differentiated is no solution.
struct Unconverged {
  std::string site;
  uint64_t runs = 0;
};

// The linear systems of an implicit derivative that its adjoint solved in turns: over all instances
// and steps, and all runs of the loop in them.
struct AdjointSolves {
  std::string site;     // "SITE.adjoint"
  uint64_t solves = 0;  // counts are exact up to 2^24 per instance
  uint64_t turns = 0;
  uint64_t most_turns = 0;  // of one solve
  uint64_t capped = 0;      // solves that ended above their tolerance
  // The largest at the end of a solve, as it was compared with the tolerance; NaN: one was.
  double residual = 0;
};

struct PhaseSeconds {
  double compile = 0;          // preparing the executor for the program
  double compile_adjoint = 0;  // waiting for what it prepared meanwhile for the adjoint
  double forward = 0, recompute = 0, adjoint = 0;
  double arithmetic = 0;  // counting it
};

struct WorkResult {
  int64_t steps_done = 0;
  std::vector<Tensor> final_states;  // per state of the world, [instances][shape]
  std::vector<double> values;        // per instance, where an objective was chosen
  double value = 0;                  // sum of weight * value, aligned pairwise, role objective
  std::vector<uint64_t> path_signatures;
  uint64_t batch_path_signature = 0;
  std::vector<InstanceHealth> health;
  std::vector<std::vector<int64_t>> first_event_steps;  // per event site, per instance
  std::vector<std::optional<Halt>> halts;  // per instance; empty where the program has none
  std::vector<InputGradient> gradients;
  double loss_scale = 1.0;
  bool skipped = false;  // a scaled gradient was not finite, or `overflowed` is not 0
  int64_t left_out = 0;  // by kFiniteOnly
  // Instances among these whose adjoint alone is not finite, where the loss scale is not 1.
  int64_t overflowed = 0;
  std::optional<double> norm;  // before clipping, where the work asks for that
  std::vector<Unconverged> unconverged;
  std::vector<AdjointSolves> adjoint_solves;
  std::vector<BackwardStep> backward;  // [steps], where the work asks for it
  uint64_t nonfinite_cotangents = 0;   // of all steps
  RangeCounts adjoint_ranges;
  std::vector<BirthCertificate> certificates;
  Arithmetic arithmetic;                // where the work asks for it
  std::shared_ptr<const KeptRun> kept;  // where the work asks for it
  PhaseSeconds seconds;
  int64_t forward_steps = 0, recompute_steps = 0, adjoint_steps = 0;  // instance-steps
};

class Engine {
 public:
  // The reference backend writes birth certificates for any executor, by a replay.
  explicit Engine(std::shared_ptr<Executor> executor);
  absl::StatusOr<WorkResult> Execute(Work work, Observer& observer) const;
  // Reverses a run that was kept. `work` is WorkOf(kept) with a gradient; its program may have
  // another adjoint. Returns the bits that Execute returns for the same work, without final
  // states. Where the executor cannot go on from what was kept, the forward pass runs again, and
  // the result has its forward_steps; else these are 0.
  absl::StatusOr<WorkResult> Reverse(const KeptRun& kept, Work work, Observer& observer) const;
  const Executor& executor() const { return *executor_; }
  int64_t Relieve(int64_t bytes) const { return executor_->Relieve(bytes); }  // see Executor

 private:
  absl::StatusOr<WorkResult> Perform(Work work, const KeptRun* kept, Observer& observer) const;

  std::shared_ptr<Executor> executor_;
};

// Returns the longest chunk of steps that Execute will run.
int64_t MostStepsOfAChunk(const Work& work);

// Returns an upper bound of the bytes that Execute allocates for this work on an executor of this
// kind (without an executor: on any), for admission. It leaves out what Work::reserve asks for and
// what the observer allocates. Errors: CANCELLED if RunOptions::stop returned true. Cost: that of
// compiling the plans, if the executor knows what it needs.
absl::StatusOr<int64_t> EstimateBytes(const Work& work, const Executor& executor);
int64_t EstimateBytes(const Work& work);

}  // namespace simgrad::sim
