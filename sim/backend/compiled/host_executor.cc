#include "sim/backend/host_executor.h"

#include <utility>

#include "sim/backend/compiled/compiled_executor.h"

namespace simgrad::sim {
namespace {

compiled::CompiledOptions OptionsOf(const HostOptions& host) {
  compiled::CompiledOptions options;
  options.kernels.folder = host.kernel_folder;
  return options;
}

class Host : public HostExecutor {
 public:
  explicit Host(const HostOptions& options)
      : compiled_(compiled::MakeCompiledExecutor(OptionsOf(options))) {}
  std::string_view name() const override { return "cpu"; }
  std::string instruction_set() const override {
    return std::string(compiled::IsaName(compiled::BestIsa()));
  }
  std::string note() const override { return ""; }
  HostUse use() const override {
    const compiled::CompiledUse use = compiled_->use();
    return {.compiled = use.compiler.compiled,
            .compile_seconds = use.compiler.compile_seconds,
            .loaded_from_disk = use.compiler.loaded_from_disk,
            .loaded_from_memory = use.compiler.loaded_from_memory,
            .failed = use.compiler.failed,
            .held_bytes = use.compiler.bytes + use.plan_bytes};
  }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    return compiled_->Create(std::move(batch), std::move(options));
  }
  absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& batch, const RunOptions& options,
                                                   const RangeSteps& steps) const override {
    return compiled_->NeedOf(batch, options, steps);
  }

 private:
  const std::unique_ptr<compiled::CompiledExecutor> compiled_;
};

}  // namespace

int64_t MostHeldByHostExecutor() {
  const compiled::CompiledOptions options;
  return options.kernels.most_bytes + options.most_plan_bytes;
}

std::unique_ptr<HostExecutor> MakeHostExecutor(const HostOptions& options) {
  return std::make_unique<Host>(options);
}

}  // namespace simgrad::sim
