#include "sim/backend/compiled/kernel.h"

#include <algorithm>
#include <utility>

#include "sim/backend/compiled/scalar_module.h"

namespace simgrad::sim::compiled {
namespace {

struct Wanted {
  const plan::Function& function;
  StepOrder order;
  GroupFunction* address;
};

LaneShape ShapeOf(const KernelOptions& options) {
  if (options.mapping == Mapping::kElements) return {.width = 1, .parts = 1};
  return {.width = FloatLanes(options.isa), .parts = options.parts};
}

absl::StatusOr<std::unique_ptr<MachineCode>> Compile(const plan::Plan& plan,
                                                     const WriterOptions& writer,
                                                     const KernelOptions& options,
                                                     const std::vector<Wanted>& functions,
                                                     int64_t& workspace) {
  auto context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module = ReadScalarModule(*context);
  for (const Wanted& wanted : functions) {
    workspace = std::max(workspace, WriteFunction(*module, plan, wanted.function, wanted.order,
                                                  writer, "group_" + wanted.function.name));
  }
  auto code = MachineCode::Compile(std::move(context), std::move(module), options.isa,
                                   options.effort, options.mapping.value_or(Mapping::kLanes));
  if (!code.ok()) return code.status();
  for (const Wanted& wanted : functions) {
    const auto found = (*code)->Find("group_" + wanted.function.name);
    if (!found.ok()) return found.status();
    *wanted.address = reinterpret_cast<GroupFunction>(*found);
  }
  return code;
}

}  // namespace

absl::StatusOr<Kernel> CompilePlan(const plan::Plan& plan, WriterOptions writer,
                                   const KernelOptions& options) {
  Kernel kernel;
  kernel.shape = ShapeOf(options);
  writer.shape = kernel.shape;
  auto code = Compile(plan, writer, options,
                      {{plan.start, StepOrder::kOne, &kernel.start},
                       {plan.step, StepOrder::kAscending, &kernel.step},
                       {plan.finish, StepOrder::kOne, &kernel.finish}},
                      kernel.workspace);
  if (!code.ok()) return code.status();
  kernel.code = std::move(*code);
  return kernel;
}

absl::StatusOr<AdjointKernel> CompileAdjoint(const plan::Plan& plan, WriterOptions writer,
                                             const KernelOptions& options) {
  AdjointKernel kernel;
  writer.shape = ShapeOf(options);
  std::vector<Wanted> functions = {
      {plan.replay, StepOrder::kAscending, &kernel.replay},
      {plan.reverse_terminal, StepOrder::kOne, &kernel.reverse_terminal},
      {plan.reverse, StepOrder::kDescending, &kernel.reverse},
      {plan.reverse_initial, StepOrder::kOne, &kernel.reverse_initial}};
  if (!plan.reverse_last.name.empty()) {
    functions.push_back({plan.reverse_last, StepOrder::kDescending, &kernel.reverse_last});
  }
  auto code = Compile(plan, writer, options, functions, kernel.workspace);
  if (!code.ok()) return code.status();
  kernel.code = std::move(*code);
  return kernel;
}

}  // namespace simgrad::sim::compiled
