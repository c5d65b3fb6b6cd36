// A run that passes everything on to another: what a test overrides, it changes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "sim/backend/executor.h"

namespace simgrad::sim::equality {

class ForwardingRun : public Run {
 public:
  explicit ForwardingRun(std::unique_ptr<Run> run) : run_(std::move(run)) {}

  absl::Status Start() override { return run_->Start(); }
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override {
    return run_->Forward(first, count);
  }
  std::shared_ptr<const void> SaveState() const override { return run_->SaveState(); }
  void RestoreState(const std::shared_ptr<const void>& saved) override {
    run_->RestoreState(saved);
  }
  int64_t SavedBytes() const override { return run_->SavedBytes(); }
  absl::Status Finish() override { return run_->Finish(); }
  absl::Status StartAdjoint(double seed_scale, const InstanceWeights& over) override {
    return run_->StartAdjoint(seed_scale, over);
  }
  absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) override {
    return run_->Adjoint(first, count);
  }
  absl::Status FinishAdjoint() override { return run_->FinishAdjoint(); }
  int64_t AdjointBytes(int64_t first, int64_t count) const override {
    return run_->AdjointBytes(first, count);
  }
  Tensor State(int32_t state_input) const override { return run_->State(state_input); }
  Tensor Export(int32_t index) const override { return run_->Export(index); }
  std::vector<double> Values() const override { return run_->Values(); }
  const std::vector<uint64_t>& PathSignatures() const override { return run_->PathSignatures(); }
  const std::vector<InstanceHealth>& Health() const override { return run_->Health(); }
  std::vector<std::vector<int64_t>> FirstEventSteps() const override {
    return run_->FirstEventSteps();
  }
  const std::vector<double>& Gradient(int32_t input) const override {
    return run_->Gradient(input);
  }
  const BlockSums* Sums() const override { return run_->Sums(); }
  const std::vector<uint8_t>& Connected(int32_t input) const override {
    return run_->Connected(input);
  }

 protected:
  Run& inner() { return *run_; }

 private:
  std::unique_ptr<Run> run_;
};

}  // namespace simgrad::sim::equality
