// The interface of a backend: it runs the steps of one batch, forward and in reverse.
//
// The engine (sim/engine.h) decides on chunks, checkpoints and cancellation, and reduces over
// instances. An executor advances every instance of the batch through a range of steps. All
// executors give the same bits for everything declared here (docs/semantics.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/block_sums.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/program/numerical_program.h"
#include "sim/tensor.h"
#include "sim/work_meter.h"

namespace simgrad::sim {

// One input of a batch. Row-major [instance if per_instance][step if per_step][declared shape].
struct Binding {
  Tensor tensor;
  bool per_instance = false;
  bool per_step = false;  // control and data only; then `steps` entries
};

// Cotangents sent by the caller, as exact f64 numbers. AdjointSpec says which are sent; the others
// are empty. Row-major: final_state [instance][shape], trajectory_state [instance][steps + 1]
// [shape], trajectory_export [instance][steps][shape].
struct Cotangents {
  std::vector<std::vector<double>> final_state;        // per state input
  std::vector<std::vector<double>> trajectory_state;   // per state input
  std::vector<std::vector<double>> trajectory_export;  // per export
};

struct Batch {
  std::shared_ptr<const NumericalProgram> program;
  int64_t instances = 0;
  int64_t steps = 0;
  std::vector<uint64_t> instance_ids;  // [instances], distinct
  std::vector<Binding> inputs;         // per Program::inputs; config and step: ignored
  Cotangents cotangents;
};

// The detail of records. `kNone` exists for measurement only: the service always records.
enum class Recording : uint8_t {
  kNone,  // results only: no diagnostics at all, paths and ok stay empty
  // Results, counts and histograms, as in a summary. The values of smallest margins, event NaN
  // margins, tested values, sampled states and sampled margins are unspecified.
  kCounts,
  kSummary,
  kInstances,  // also per-instance arrays
};

struct RunOptions {
  Recording recording = Recording::kSummary;
  int32_t stride = 32;
  double near_band_ulps = 8.0;
  std::vector<int32_t> record_states;   // state inputs whose trajectory is wanted
  std::vector<int32_t> record_exports;  // exports whose trajectory is wanted
  int threads = 1;
  // Returns whether to give up. Called every now and then, also inside a step, from any thread of
  // the run.
  WorkMeter::StopCallback stop;
  bool is_trial = false;  // of the executor itself: it is not at work for it (Executor::IsAtWork)
};

// First non-finite value of an instance.
struct InstanceHealth {
  bool ok = true;
  Phase phase = Phase::kForward;
  int64_t step = -1;
  bool stopped = false;  // policy `stop`: frozen at the state before `step`
};

// The results of a range of steps, besides the states after it.
struct ForwardChunk {
  StepDiagnostics diagnostics;
  std::vector<InstanceSite> instance_sites;  // per termination site; level instances only
  // Per recorded state or export: [instances][steps of the chunk][shape], in its own format.
  std::vector<Tensor> states;
  std::vector<Tensor> exports;
};

struct AdjointChunk {
  std::vector<BackwardStep> steps;  // ascending steps of the chunk; with `kNone`: all empty
  RangeCounts ranges;               // with `kNone`: unspecified
};

// How many steps one call runs at most.
struct RangeSteps {
  int64_t chunk = 1;  // Forward
  int64_t range = 1;  // Adjoint
};

// Upper bounds of what a run will allocate, in bytes.
struct MemoryNeed {
  int64_t run = 0;    // for its lifetime, without the batch and without what follows
  int64_t saved = 0;  // of one SaveState
  // The tape of one Adjoint: where no loop iterates, and where all of them reach their caps.
  int64_t tape_once = 0;
  int64_t tape_at_caps = 0;
  // So many steps, as far as is known before loops have run, are reversed at once: a longer range runs forward
  // once more for the states in its midst. 0: not known.
  int64_t steps_at_once = 0;
};

// The counts of a forward run, which its reversal needs beside the saved states. Executors read
// their own. Threads: immutable.
class ForwardCounts {
 public:
  virtual ~ForwardCounts() = default;
  virtual int64_t bytes() const = 0;  // that it holds
};

// One batch being run. Threads: one caller at a time; a run has its own worker threads.
// Errors: CANCELLED if RunOptions::stop returned true; the run cannot be used any further. Calls
// without a status may be stopped too: SaveState then returns null, RestoreState restores a part, and
// State, Export and Values return unspecified values.
class Run {
 public:
  virtual ~Run() = default;

  // Sets every instance to z[0]: the states sent, rounded to role state, then `initial`.
  virtual absl::Status Start() = 0;
  // Runs steps [first, first + count). The states must be at step `first`.
  virtual absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) = 0;
  // Exact copies of all states and of what travels with them (last event values, health, costs,
  // signature). Forward can be repeated from there.
  virtual std::shared_ptr<const void> SaveState() const = 0;
  virtual void RestoreState(const std::shared_ptr<const void>& saved) = 0;
  virtual int64_t SavedBytes() const = 0;  // of one SaveState

  // Runs the terminal cost on z[T]. Call once, after the last Forward.
  virtual absl::Status Finish() = 0;

  // Reverse. Call StartAdjoint after Finish, then Adjoint for adjoining ranges of steps in
  // descending order. Adjoint(first, count) expects the states at step `first` (RestoreState). It
  // replays the range with a tape and reverses it. Diagnostics of the replay are not counted
  // again.
  // `over`: the instances over which gradients of params declared `weights` are summed; used where
  // they are wanted.
  virtual absl::Status StartAdjoint(double seed_scale, const InstanceWeights& over) = 0;
  virtual absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) = 0;
  // Reverses `initial` and adds the cotangent of z[0] to the gradients.
  virtual absl::Status FinishAdjoint() = 0;
  // Bytes of the tape of Adjoint(first, count), from the iterations counted in the forward run.
  virtual int64_t AdjointBytes(int64_t first, int64_t count) const = 0;
  // As Executor::NeedOf; `run` may leave out what only the adjoint allocates.
  virtual std::optional<MemoryNeed> NeedOf(const RangeSteps& /*steps*/) const { return {}; }

  // After the last Forward, for Executor::Adopt. Null: this run cannot be adopted.
  virtual std::shared_ptr<const ForwardCounts> Counts() const { return nullptr; }

  // Why a result could not be read, which is zeros then: a device may fail behind the last call with a
  // status.
  virtual absl::Status Failed() const { return absl::OkStatus(); }

  // Results. Row-major with the instance first; in the format of the state or role.
  virtual Tensor State(int32_t state_input) const = 0;    // [instances][shape]
  virtual Tensor Export(int32_t export_index) const = 0;  // of the last step run
  virtual std::vector<double> Values() const = 0;         // objective per instance
  virtual const std::vector<uint64_t>& PathSignatures() const = 0;
  virtual const std::vector<InstanceHealth>& Health() const = 0;
  // Per event site: first step at which any element of the instance was true, -1 never.
  virtual std::vector<std::vector<int64_t>> FirstEventSteps() const = 0;

  // Per-instance gradients, unscaled as accumulated in role gradient: [instances][steps if the
  // binding is per_step][shape], values exact in f64. Empty where not wanted, and for weights.
  virtual const std::vector<double>& Gradient(int32_t input) const = 0;
  // The sums for params declared `weights`; null where none is wanted.
  virtual const BlockSums* Sums() const = 0;
  // Per instance: whether the input received a cotangent.
  virtual const std::vector<uint8_t>& Connected(int32_t input) const = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  // Errors: first those of CheckBatch (check_batch.h); CANCELLED as in Run.
  virtual absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) = 0;
  // Creates a run that reverses what another run did forward: it begins without Start, with a
  // RestoreState of what the other one saved. `batch` and `options` are those of the other run,
  // but for the adjoint, the cotangents and `stop`; `counts` are its Counts. Null: the executor
  // cannot, for example because the tapes of this adjoint cannot be bounded by those counts.
  // Errors: as Create.
  virtual absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch /*batch*/, RunOptions /*options*/,
                                                     const ForwardCounts& /*counts*/) {
    return std::unique_ptr<Run>();
  }
  // Nothing if the executor cannot tell; its tape then fills the memory that it is given. Errors:
  // as Create.
  virtual absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& /*batch*/,
                                                           const RunOptions& /*options*/,
                                                           const RangeSteps& /*steps*/) const {
    return std::optional<MemoryNeed>();
  }
  // Whether a device has launches of a run that have not been seen to end: another run may have to wait until
  // they do. Errors of the device end them. Threads: any.
  virtual bool IsAtWork() const { return false; }
  // Gives up about so many bytes of what it keeps for later runs, or all it can; returns how many.
  virtual int64_t Relieve(int64_t /*bytes*/) { return 0; }
};

}  // namespace simgrad::sim
