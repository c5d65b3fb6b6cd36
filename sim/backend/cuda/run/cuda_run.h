// One batch on a device: launches, and what is visible of them.
//
// Errors: those of device.h. A call that can give no status (State, SaveState, ...) and fails makes
//   the next one fail that can.
// Threads: as sim/backend/executor.h says.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/cuda/run/field_layout.h"
#include "sim/backend/cuda/run/forward_record.h"
#include "sim/backend/cuda/run/saved_states.h"
#include "sim/backend/cuda/run/uploaded_batch.h"
#include "sim/backend/cuda/run/weight_sums.h"

namespace simgrad::sim::cuda {

class CudaRun : public Run {
 public:
  // `source` is generated from batch.program and compiled to `module`.
  static absl::StatusOr<std::unique_ptr<CudaRun>> Create(
      std::shared_ptr<Device> device, std::shared_ptr<const GeneratedSource> source,
      std::shared_ptr<const Module> module, Batch batch, RunOptions options,
      const CudaExecutorOptions& launch_options);
  ~CudaRun() override;

  absl::Status Start() override;
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override;
  std::shared_ptr<const void> SaveState() const override;
  void RestoreState(const std::shared_ptr<const void>& saved) override;
  int64_t SavedBytes() const override { return TakenBytes(layout_.travelling_bytes); }
  absl::Status Finish() override;
  absl::Status StartAdjoint(double seed_scale, const InstanceWeights& over) override;
  absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) override;
  absl::Status FinishAdjoint() override;
  int64_t AdjointBytes(int64_t first, int64_t count) const override;
  // Behind the last SaveState. It moves what was saved to the host, so that what is kept takes no memory of
  // the device, and waits until all of it is there. Null where the host has no room.
  std::shared_ptr<const ForwardCounts> Counts() const override;
  // For a run that never starts: the units of tape by step, as CudaCounts::UnitsFor gives them.
  void TakeUnits(std::vector<uint64_t> units) { units_ = std::move(units); }
  Tensor State(int32_t state_input) const override;
  Tensor Export(int32_t export_index) const override;
  std::vector<double> Values() const override;
  const std::vector<uint64_t>& PathSignatures() const override;
  const std::vector<InstanceHealth>& Health() const override;
  std::vector<std::vector<int64_t>> FirstEventSteps() const override;
  absl::Status Failed() const override { return failed_; }
  const std::vector<double>& Gradient(int32_t input) const override {
    return gradients_[static_cast<size_t>(input)];
  }
  const BlockSums* Sums() const override { return weight_sums_.sums(); }
  const std::vector<uint8_t>& Connected(int32_t input) const override {
    return connected_[static_cast<size_t>(input)];
  }

 private:
  CudaRun(std::shared_ptr<Device> device, std::unique_ptr<Stream> stream,
          std::unique_ptr<Stream> copies, std::shared_ptr<const GeneratedSource> source,
          std::shared_ptr<const Module> module, Batch batch, RunOptions options,
          const CudaExecutorOptions& launch_options);
  absl::Status Prepare();
  // Blocks of one launch of an entry point over the instances.
  absl::StatusOr<int64_t> GridOf(const std::string& entry);
  int64_t SharedBytes(const std::string& entry) const;
  // The blocks that are needed, or as many as are resident at once.
  absl::StatusOr<int64_t> GridOf(const std::string& entry, int64_t needed,
                                 int64_t shared_bytes) const;
  absl::Status Launch(const std::string& entry, int64_t grid, const KernelArgs& args);
  absl::Status Launch(const std::string& entry, const LaunchShape& shape, const KernelArgs& args);
  // A run that has launched counts in Device::launched until that has ended.
  void CountLaunched();
  void CountEnded();
  absl::Status LaunchOverInstances(const std::string& entry, KernelArgs& args);
  absl::Status GiveWorkspace(int64_t grid, KernelArgs& args);
  void PointFields(void* travelling, void* adjoint, KernelArgs& args) const;
  int64_t StepsPerLaunch(int64_t grid, int64_t count) const;
  // A launch of steps whose record is on its way to the host when it is back.
  absl::Status ForwardLaunch(KernelArgs& args, ForwardRecord& record);
  absl::Status Take(ForwardRecord& record, int64_t chunk_first, ForwardChunk& chunk);
  absl::Status WriteValues(const KernelArgs& args, ForwardRecord& record, int64_t chunk_first,
                           ForwardChunk& chunk);
  absl::StatusOr<void*> RecordMemory(Scratch& scratch, int64_t bytes);
  absl::Status GiveTape(int64_t grid, int64_t units, KernelArgs& args);
  // Windows for what a launch gives to weights, the first entry of step `first`.
  absl::Status GiveWindows(int64_t first, int64_t entries, KernelArgs& args);
  // Sums what the launch of these arguments gave to weights.
  absl::Status SumWindows(KernelArgs& args);
  std::optional<int64_t> TapeUnits(int64_t first, int64_t count) const;
  int64_t TapeBytes(int64_t grid, int64_t units) const;
  // The bytes that an allocation takes where it may lie in pinned memory.
  int64_t TakenBytes(int64_t bytes) const {
    return bytes == 0 ? 0 : device_->TakenBytes(bytes, MemoryKind::kPinned);
  }
  absl::Status TakeGradients();
  void TakeGradient(int32_t input);
  // Nothing where the program has no such field, or where reading failed (see failed_).
  std::optional<FieldNumbers> Read(FieldKind kind, int32_t index = 0) const;
  Tensor TensorOf(const Value& value, FieldKind kind, int32_t index) const;

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stream> copies_;  // to the host, beside the launches
  std::shared_ptr<const GeneratedSource> source_;
  std::shared_ptr<const Module> module_;
  Batch batch_;
  RunOptions options_;
  CudaExecutorOptions launch_options_;
  FieldLayout layout_;
  int block_ = 128;
  UploadedBatch uploaded_;
  ForwardRecord records_[2];  // they take turns
  mutable SavedStates saved_;
  Buffer travelling_;
  Buffer adjoint_fields_;
  Buffer tape_units_;
  Scratch before_, workspace_, tape_, windows_, backward_partial_, backward_, ranges_;
  WeightSums weight_sums_;
  // In `ranges_`, from the start of the adjoint on. Steps that are run once more for it do not count.
  RangeColumn* adjoint_ranges_ = nullptr;
  KernelArgs args_ = {};  // what all launches share
  int64_t adjoint_grid_ = 1;
  std::vector<uint64_t> units_;  // by step: what one instance needs at most
  bool reversing_ = false;
  bool launched_ = false;  // and not waited for, as far as it counts
  std::vector<std::vector<double>> gradients_;
  std::vector<std::vector<uint8_t>> connected_;
  // Reads of the device hold until something runs again.
  mutable bool stale_ = true;
  mutable bool stale_paths_ = true;
  mutable std::vector<InstanceHealth> health_;
  mutable std::vector<uint64_t> signatures_;
  mutable absl::Status failed_;
};

}  // namespace simgrad::sim::cuda
