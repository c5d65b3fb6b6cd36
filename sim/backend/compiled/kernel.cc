#include "sim/backend/compiled/kernel.h"

#include <algorithm>
#include <utility>

#include "sim/backend/compiled/scalar_module.h"

namespace simgrad::sim::compiled {

absl::StatusOr<Kernel> CompilePlan(const plan::Plan& plan, WriterOptions writer,
                                   const KernelOptions& options) {
  Kernel kernel;
  kernel.shape = {.width = FloatLanes(options.isa), .parts = options.parts};
  writer.shape = kernel.shape;
  auto context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module = ReadScalarModule(*context);
  const auto write = [&](const plan::Function& function) {
    const int64_t bytes = WriteFunction(*module, plan, function, &function == &plan.step, writer,
                                        "group_" + function.name);
    kernel.workspace = std::max(kernel.workspace, bytes);
  };
  for (const plan::Function* function : {&plan.start, &plan.step, &plan.finish}) write(*function);
  auto code =
      MachineCode::Compile(std::move(context), std::move(module), options.isa, options.effort);
  if (!code.ok()) return code.status();
  kernel.code = std::move(*code);
  const std::pair<const plan::Function*, GroupFunction*> functions[] = {
      {&plan.start, &kernel.start}, {&plan.step, &kernel.step}, {&plan.finish, &kernel.finish}};
  for (const auto& [function, address] : functions) {
    const auto found = kernel.code->Find("group_" + function->name);
    if (!found.ok()) return found.status();
    *address = reinterpret_cast<GroupFunction>(*found);
  }
  return kernel;
}

}  // namespace simgrad::sim::compiled
