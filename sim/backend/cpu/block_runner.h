// Runs one block at a time forward: start, steps, terminal cost. One per thread.
#pragma once

#include <memory>
#include <vector>

#include "sim/backend/cpu/block_state.h"
#include "sim/backend/cpu/input_reader.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cpu {

// What all blocks of a run share.
struct RunContext {
  const Batch& batch;
  const RunOptions& options;
  const NumericalProgram& program;
  BlockLayout layout;
  InputReader reader;
  bool counts = true;  // diagnostics are recorded
  bool looks = true;   // non-finite results are detected
  bool stops = false;  // policy `stop`
  bool sizes = false;  // the bytes of records are noted, per step
  // Whether the gradient of an input has an entry per step.
  bool IsSummedPerStep(size_t input) const {
    return program.program.inputs[input].kind != InputKind::kState && batch.inputs[input].per_step;
  }
};

// Where a chunk goes. Diagnostics belong to the thread; tensors are shared, rows are not.
struct ChunkOutput {
  int64_t first = 0;
  int64_t count = 0;
  StepDiagnostics* diagnostics = nullptr;
  ForwardChunk* chunk = nullptr;    // instance_sites, states, exports
  int64_t* record_bytes = nullptr;  // [steps of the run] of one block: the largest seen
};

class BlockRunner {
 public:
  BlockRunner(const RunContext& context, const Plan& plan);

  void Start(int64_t block, BlockState& state);
  void Forward(int64_t block, BlockState& state, const ChunkOutput& output);
  void Finish(int64_t block, BlockState& state);

 private:
  void Load(int64_t block, BlockState& state);
  void Store(BlockState& state);
  void StoreExports(const LaneBits& lanes);
  LaneSet RunningLanes() const;
  void CheckInputs(int64_t t);
  // Lanes newly non-finite.
  void Report(Phase phase, int64_t step);
  void Step(int64_t t, const ChunkOutput& output);
  void AddCost(int32_t slot);
  bool IsUnusual(const StatePlan& state) const;
  void LookAtStates();
  void StopLanes();
  void KeepStopped();
  void CountStores(RangeCounts& ranges);
  void NoteStates(int64_t sample, StepDiagnostics& diagnostics);
  void NoteRow(const std::byte* numbers, const Slot& slot, StateRange& range) const;
  void Record(int64_t t, const ChunkOutput& output);
  void WriteRows(int32_t slot, Tensor& tensor, int64_t column, int64_t columns) const;

  const RunContext& context_;
  Machine m_;
  SiteRecorder sites_;
  BlockRows rows_;
  BlockState* state_ = nullptr;
  std::vector<int32_t> every_lane_;  // mask
  std::vector<std::byte> cost_before_;
  Format cost_format_;
  Carrier cost_carrier_;
  std::vector<const StatePlan*> unusual_states_;  // of this step
  int64_t sample_ = 0;
};

// Encodes element values of a block into rows of a tensor, canonical.
void WriteTensorRow(Tensor& tensor, int64_t at, const Slot& slot, const std::byte* numbers,
                    int64_t width, int64_t lane, WorkMeter& meter);

}  // namespace simgrad::sim::cpu
