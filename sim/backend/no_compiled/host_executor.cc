// Stands in where the build has no LLVM.
#include "sim/backend/host_executor.h"

#include <utility>

#include "sim/backend/reference/reference_executor.h"

namespace simgrad::sim {
namespace {

class Host : public HostExecutor {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string instruction_set() const override { return "baseline"; }
  std::string note() const override {
    return "built without LLVM: the reference executor runs on the CPU, some 100 times slower than "
           "compiled "
           "code";
  }
  HeldCode held() const override { return {}; }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    return reference_->Create(std::move(batch), std::move(options));
  }
  absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch batch, RunOptions options,
                                             const ForwardCounts& counts) override {
    return reference_->Adopt(std::move(batch), std::move(options), counts);
  }
  absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& batch, const RunOptions& options,
                                                   const RangeSteps& steps) const override {
    return reference_->NeedOf(batch, options, steps);
  }

 private:
  const std::unique_ptr<Executor> reference_ = MakeReferenceExecutor();
};

}  // namespace

std::unique_ptr<HostExecutor> MakeHostExecutor(const HostOptions&) {
  return std::make_unique<Host>();
}

}  // namespace simgrad::sim
