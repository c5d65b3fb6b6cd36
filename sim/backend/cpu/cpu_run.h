// One batch on the cpu executor: blocks over threads, and what is visible of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/cpu/block_adjoint.h"
#include "sim/backend/cpu/block_runner.h"
#include "sim/backend/cpu/plan_cache.h"
#include "sim/backend/executor.h"
#include "sim/backend/worker_pool.h"

namespace simgrad::sim::cpu {

class CpuRun : public Run {
 public:
  // `block_width` 0: chosen.
  // `plans` is the executor's; of this run's kernels. Throws StopRequested.
  CpuRun(Batch batch, RunOptions options, std::shared_ptr<PlanCache> plans, int64_t block_width);

  absl::Status Start() override;
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override;
  std::shared_ptr<const void> SaveState() const override;
  void RestoreState(const std::shared_ptr<const void>& saved) override;
  int64_t SavedBytes() const override;
  absl::Status Finish() override;
  absl::Status StartAdjoint(double seed_scale) override;
  absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) override;
  absl::Status FinishAdjoint() override;
  int64_t AdjointBytes(int64_t first, int64_t count) const override;
  std::optional<MemoryNeed> NeedOf(const RangeSteps& steps) const override;
  Tensor State(int32_t state_input) const override;
  Tensor Export(int32_t export_index) const override;
  std::vector<double> Values() const override;
  const std::vector<uint64_t>& PathSignatures() const override { return signatures_; }
  const std::vector<InstanceHealth>& Health() const override { return health_; }
  std::vector<std::vector<int64_t>> FirstEventSteps() const override;
  const std::vector<double>& Gradient(int32_t input) const override {
    return published_.values[static_cast<size_t>(input)];
  }
  const std::vector<uint8_t>& Connected(int32_t input) const override {
    return published_.connected[static_cast<size_t>(input)];
  }

 private:
  RunContext MakeContext(int64_t block_width);
  // Calls work(worker, block) for every block; CANCELLED where the run was asked to stop.
  absl::Status ForBlocks(const std::function<void(int worker, int64_t block)>& work);
  BlockRunner& RunnerOf(int worker);
  BlockAdjoint& AdjointOf(int worker);
  bool CopyBlocks(const std::vector<BlockState>& from, std::vector<BlockState>& to) const;
  std::shared_ptr<const Plan> AdjointPlan() const;
  void MakeGradients();
  void Publish();
  Tensor Collect(int32_t slot, int64_t offset, const Value& value) const;

  Batch batch_;
  RunOptions options_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Plan> adjoint_plan_;
  RunContext context_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<BlockRunner>> runners_;    // by worker
  std::vector<std::unique_ptr<BlockAdjoint>> adjoints_;  // by worker
  std::vector<BlockState> blocks_;
  std::vector<AdjointBlock> adjoint_blocks_;
  std::vector<int64_t> record_bytes_;  // by step: of the block that needs most
  double seed_ = 1.0;
  GradientStore gradients_;
  GradientStore published_;
  std::vector<uint64_t> signatures_;
  std::vector<InstanceHealth> health_;
};

}  // namespace simgrad::sim::cpu
