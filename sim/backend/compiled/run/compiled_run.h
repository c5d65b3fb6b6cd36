// One batch on compiled code: groups of instances over threads.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/compiled/group/exact_margins.h"
#include "sim/backend/compiled/group/group_inputs.h"
#include "sim/backend/compiled/group/group_state.h"
#include "sim/backend/compiled/group/lane_memory.h"
#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/backend/compiled/run/near_zero_watch.h"
#include "sim/backend/executor.h"
#include "sim/backend/worker_pool.h"

namespace simgrad::sim::compiled {

// The code that a run executes.
struct RunCode {
  std::shared_ptr<const plan::Plan> plan;
  LaneShape shape;
  TapeBytes tape;
  WeightsNeed weights;
  // The best that is ready; asked for before every chunk of steps.
  std::function<absl::StatusOr<std::shared_ptr<const Kernel>>(Part)> kernel;
  // kNearZero, or null where it is not there yet.
  std::function<std::shared_ptr<const Kernel>()> near_zero;
  NearZeroUse when_near_zero = NearZeroUse::kNever;
};

// The bytes of tapes per step, as the adjoint of `program` needs them.
struct CompiledCounts : ForwardCounts {
  int64_t bytes() const override { return 8 * static_cast<int64_t>(tape_bytes.size()); }
  std::shared_ptr<const NumericalProgram> program;
  LaneShape shape;
  int64_t travelling_bytes = 0;  // of a group
  std::vector<int64_t> tape_bytes;
};

// The data that `poll` uses.
struct PolledArgs : GroupArgs {
  const WorkMeter::StopCallback* stop = nullptr;
  bool stopped = false;
};

class CompiledRun : public Run {
 public:
  CompiledRun(Batch batch, RunOptions options, RunCode code);

  absl::Status Start() override;
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override;
  std::shared_ptr<const void> SaveState() const override;
  void RestoreState(const std::shared_ptr<const void>& saved) override;
  int64_t SavedBytes() const override;
  absl::Status Finish() override;
  absl::Status StartAdjoint(double seed_scale, const InstanceWeights& over) override;
  absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) override;
  absl::Status FinishAdjoint() override;
  int64_t AdjointBytes(int64_t first, int64_t count) const override;
  std::optional<MemoryNeed> NeedOf(const RangeSteps& steps) const override;
  std::shared_ptr<const ForwardCounts> Counts() const override;
  // For a run that never starts. False: these counts say nothing of this run's tapes, or its
  // states are laid out otherwise.
  absl::StatusOr<bool> TakeCounts(const CompiledCounts& counts);
  Tensor State(int32_t state_input) const override;
  Tensor Export(int32_t export_index) const override;
  std::vector<double> Values() const override;
  const std::vector<uint64_t>& PathSignatures() const override {
    Publish();
    return signatures_;
  }
  const std::vector<InstanceHealth>& Health() const override {
    Publish();
    return health_;
  }
  std::vector<std::vector<int64_t>> FirstEventSteps() const override;
  const std::vector<double>& Gradient(int32_t input) const override {
    return gradients_[static_cast<size_t>(input)];
  }
  const BlockSums* Sums() const override { return sums_ ? &*sums_ : nullptr; }
  const std::vector<uint8_t>& Connected(int32_t input) const override {
    return connected_[static_cast<size_t>(input)];
  }

 private:
  // The numbers that invariant loops of a function stored for the group that ran last; -1: none.
  struct Kept {
    LaneMemory memory;
    int64_t group = -1;
    int64_t reuses = 0;
  };
  // The workspace of one thread.
  struct Worker {
    Worker(const Batch& batch, int lanes, const WorkMeter::StopCallback& given);
    GroupInputs inputs;
    LaneMemory workspace;
    Kept of_step, of_replay, of_reverse;
    WorkMeter meter;
    WorkMeter::StopCallback stop;
    int64_t fuel = 0;  // GroupArgs::fuel, from call to call
    std::vector<uint32_t> bad_inputs;
    // The lists of the call that runs (GroupArgs); they stay so that no call allocates.
    std::vector<std::byte*> fields, gradients;
    std::vector<const void*> sent_lists;
    std::vector<uint32_t*> connected;
    // Records of the chunk that runs.
    std::vector<TerminationColumn> terminations;
    std::vector<EventColumn> events;
    std::vector<MarginWatch> termination_watches, event_watches;  // as the columns
    RangeColumn ranges{};
    std::vector<AdditionColumn> additions;    // by site
    std::vector<MarginColumn> event_margins;  // [sampled step][event]
    StepDiagnostics sampled;
    // For the adjoint.
    std::vector<int64_t> tape_bytes;  // by step of the chunk
    LaneMemory tape;
    LaneMemory replayed;  // fields
    LaneMemory starts;    // [segment but the last] fields where it begins
    std::vector<int64_t> frames;
    std::vector<BackwardColumn> backward;
    std::vector<LaneMemory> sent;  // per Plan::sent
    // The numbers that a segment gives to inputs that BlockSums wants: [step][element][lane] each.
    std::vector<LaneMemory> given;
    int64_t given_first = 0;  // the segment's first step
    // The code of Part::kNearZero; null until a group of this range wants it and it is compiled.
    std::shared_ptr<const Kernel> near_zero;
  };
  // The data that a group gathers in the adjoint; they do not travel with its states.
  struct Reversed {
    LaneMemory fields;  // cotangents, behind those of GroupStates
    std::vector<int64_t> health;
    std::vector<LaneMemory> gradients;  // per program input
    std::vector<std::vector<uint32_t>> connected;
    bool near_zero = false;  // its cotangents are about to meet subnormal numbers
  };

  int64_t groups() const;
  int lanes() const { return code_.shape.lanes(); }
  absl::Status ForGroups(const std::function<void(Worker&, int64_t group)>& work);
  std::unique_ptr<Worker> NewWorker() const;
  // Takes the best code that is ready.
  absl::Status TakeCode(Part part);
  // Runs `function` on a group for steps from `first` on, `column` of the chunk.
  void Call(GroupFunction code, const plan::Function& function, Worker& worker, int64_t group,
            int64_t first, int64_t count, int64_t column, ForwardChunk* chunk = nullptr);
  // Runs it; throws StopRequested where it was stopped.
  static void Invoke(GroupFunction function, Worker& worker, PolledArgs& args);
  // Runs it on a group with what its invariant loops stored; `function` is that of the plan.
  void Invoke(GroupFunction code, const plan::Function& function, Worker& worker, int64_t group,
              PolledArgs& args) const;
  Kept* KeptOf(const plan::Function& function, Worker& worker) const;
  GroupArgs ArgsOf(Worker& worker, int64_t group, int64_t first, int64_t count, int64_t column);
  // A function of the adjoint; `states`: the fields that it works on, as of GroupStates.
  void CallAdjoint(GroupFunction code, const plan::Function& function, Worker& worker,
                   int64_t group, std::byte* states, int64_t first, int64_t count, int64_t column);
  void LoadSent(Worker& worker, int64_t group, int64_t first, int64_t count) const;
  void MakeReversed(int64_t group);
  // Ranges of steps are reversed in segments of about this many bytes of tape.
  std::vector<int64_t> SegmentsOf(int64_t first, int64_t count) const;
  // Reverses the steps of a segment whose tapes lie in the worker.
  void ReverseSegment(Worker& worker, int64_t group, int64_t first, int64_t count, int64_t column);
  void TakeFields(Worker& worker, int64_t group) const;
  bool HoldsTinyCotangents(int64_t group) const;
  int64_t LargestSegment(int64_t first, int64_t count, const std::vector<int64_t>& starts) const;
  void ReverseRange(Worker& worker, int64_t group, int64_t first, int64_t count,
                    const std::vector<int64_t>& starts);
  void PublishGradients();
  // Weights: begins what `steps` steps from `first` on give; takes it as entries from `entry` on.
  void StartGiven(Worker& worker, int64_t first, int64_t steps) const;
  void TakeGiven(Worker& worker, int64_t group, int64_t entry);
  int64_t GivenBytes() const;  // of one step
  // Steps of one chunk on a group, between its samples and recorded steps.
  void Steps(Worker& worker, int64_t group, int64_t first, int64_t count, ForwardChunk& chunk);
  void ClearColumns(Worker& worker, const ForwardChunk& chunk) const;
  void TakeColumns(const Worker& worker, ForwardChunk& chunk) const;
  void Sample(Worker& worker, int64_t group, int64_t t) const;
  bool IsSampled(int64_t t) const;
  // The place of the sampled step `t` among those of the chunk.
  static size_t SampleOf(const Worker& worker, int64_t t);
  // The columns of the events of step `t`; null: its margins are not counted.
  MarginColumn* EventMarginsOf(Worker& worker, int64_t t) const;
  // Whether margins of events are counted at sampled steps.
  bool CountsEventMargins() const {
    return records_ && plan_.event_margins && options_.recording != Recording::kCounts;
  }
  void CheckSentInputs(int64_t group, WorkMeter& meter);
  bool IsBadInput(size_t input, int64_t row, int64_t t, WorkMeter& meter) const;
  const uint32_t* BadInputs(Worker& worker, int64_t group, int64_t first, int64_t count) const;
  // Takes signatures and health from the groups, if these have changed since.
  void Publish() const;
  void SetSentStates(int64_t group, std::byte* fields, WorkMeter& meter) const;
  void CopyOut(const Value& value, size_t field, int64_t group, Tensor& tensor, int64_t columns,
               int64_t column, WorkMeter& meter) const;
  Tensor Collect(const Value& value, size_t field) const;
  void Record(ForwardChunk& chunk, int64_t group, int64_t columns, int64_t column,
              WorkMeter& meter) const;

  const Batch batch_;
  const RunOptions options_;
  const RunCode code_;
  const plan::Plan& plan_;
  std::shared_ptr<const Kernel> kernel_;  // of the forward run
  const size_t travelling_;               // TravellingFields
  const FieldLayout layout_;
  const std::vector<int32_t> states_;
  const std::vector<InputForm> forms_;  // by input
  const bool records_;
  const bool looks_;
  std::vector<uint32_t> ranks_;  // [group][lane]
  std::vector<uint64_t> sorted_ids_;
  std::vector<bool> reads_;              // by input (ReadInputs)
  std::vector<size_t> bad_step_inputs_;  // per step, with a number that is not finite
  std::vector<uint32_t> used_;           // [group][lane]: all ones where there is an instance
  int64_t steps_at_once_ = std::numeric_limits<int64_t>::max();  // in a call of machine code
  WorkerPool pool_;
  std::vector<std::unique_ptr<Worker>> workers_;
  GroupStates groups_;
  mutable bool is_published_ = true;  // there is nothing to take
  mutable std::vector<uint64_t> signatures_;
  mutable std::vector<InstanceHealth> health_;
  std::shared_ptr<const Kernel> adjoint_;
  double seed_ = 1.0;
  RangeCounts started_;              // of what enters at z[T]; told with the steps before it
  std::vector<Reversed> reversed_;   // by group
  std::vector<int64_t> tape_bytes_;  // by step: of the group that needs most
  std::vector<GivenNumbers> given_;  // as what BlockSums wants
  std::optional<BlockSums> sums_;
  std::vector<std::vector<double>> gradients_;  // by input
  std::vector<std::vector<uint8_t>> connected_;
};

}  // namespace simgrad::sim::compiled
