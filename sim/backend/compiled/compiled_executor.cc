#include "sim/backend/compiled/compiled_executor.h"

#include <utility>

#include "sim/backend/check_batch.h"
#include "sim/backend/compiled/compiled_run.h"
#include "sim/backend/compiled/mapping.h"
#include "sim/plan/make_plan.h"

namespace simgrad::sim::compiled {
namespace {

class CompiledExecutor : public Executor {
 public:
  explicit CompiledExecutor(const KernelOptions& options) : options_(options) {}
  std::string_view name() const override { return "compiled"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (absl::Status status = CheckBatch(batch); !status.ok()) return status;
    const bool records = options.recording != Recording::kNone;
    const bool stops = batch.program->policy.nonfinite == precision::NonFinite::kStop;
    plan::Plan plan = plan::PlacedPlan(
        *batch.program, {.decides = records, .looks = records || stops, .ranges = records});
    KernelOptions compiler = options_;
    if (!compiler.mapping) {
      compiler.mapping = ChooseMapping(plan, batch.instances, FloatLanes(compiler.isa));
    }
    auto kernel = CompilePlan(plan,
                              {.inputs = FormsOf(batch),
                               .stops = stops,
                               .looks = records || stops,
                               .decides = records,
                               .ranges = records,
                               .extremes = records && options.recording != Recording::kCounts,
                               .instances = options.recording == Recording::kInstances},
                              compiler);
    if (!kernel.ok()) return kernel.status();
    return std::make_unique<CompiledRun>(std::move(batch), std::move(options), std::move(plan),
                                         std::make_shared<const Kernel>(std::move(*kernel)),
                                         compiler);
  }

 private:
  const KernelOptions options_;
};

}  // namespace

std::unique_ptr<Executor> MakeCompiledExecutor(const KernelOptions& options) {
  return std::make_unique<CompiledExecutor>(options);
}

}  // namespace simgrad::sim::compiled
