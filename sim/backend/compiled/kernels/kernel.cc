#include "sim/backend/compiled/kernels/kernel.h"

#include <llvm/IR/InstIterator.h>
#include <llvm/IR/InstrTypes.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/compiled/scalars/scalar_module.h"
#include "sim/backend/compiled/scalars/widen.h"
#include "sim/backend/compiled/writer/function_writer.h"

namespace simgrad::sim::compiled {
namespace {

// A function of a plan and where its address goes.
struct Entry {
  plan::Function plan::Plan::*function;
  StepOrder order;
  GroupFunction Kernel::*address;
  const char* name;
};

const std::vector<Entry>& EntriesOf(Part part) {
  using plan::Plan;
  static const std::vector<Entry> forward = {
      {&Plan::start, StepOrder::kOne, &Kernel::start, "start"},
      {&Plan::step, StepOrder::kAscending, &Kernel::step, "step"},
      {&Plan::finish, StepOrder::kOne, &Kernel::finish, "finish"}};
  static const std::vector<Entry> adjoint = {
      {&Plan::replay, StepOrder::kAscending, &Kernel::replay, "replay"},
      {&Plan::reverse_terminal, StepOrder::kOne, &Kernel::reverse_terminal, "reverse_terminal"},
      {&Plan::reverse_last, StepOrder::kDescending, &Kernel::reverse_last, "reverse_last"},
      {&Plan::reverse, StepOrder::kDescending, &Kernel::reverse, "reverse"},
      {&Plan::reverse_initial, StepOrder::kOne, &Kernel::reverse_initial, "reverse_initial"}};
  static const std::vector<Entry> near_zero = {adjoint[2], adjoint[3]};
  switch (part) {
    case Part::kForward:
      return forward;
    case Part::kAdjoint:
      return adjoint;
    case Part::kNearZero:
      break;
  }
  return near_zero;
}

// Instructions of functions that are called, and of those that they call, once for each call.
int64_t InstructionsInlined(const llvm::Module& module) {
  int64_t instructions = 0;
  for (const llvm::Function& function : module) {
    instructions += function.getInstructionCount();
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      const auto* const call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      const llvm::Function* const called = call == nullptr ? nullptr : call->getCalledFunction();
      if (called != nullptr) instructions += called->getInstructionCount();
    }
  }
  return instructions;
}

}  // namespace

int PartsFor(int64_t statements) {
  constexpr int64_t kMostForTwo = 1000;
  return statements <= kMostForTwo ? 2 : 1;
}

LaneShape ShapeOf(const KernelOptions& options) {
  if (options.mapping == Mapping::kElements) return {.width = 1, .parts = 1};
  return {.width = FloatLanes(options.isa), .parts = options.parts.value_or(2)};
}

std::vector<const plan::Function*> FunctionsOf(const plan::Plan& plan, Part part) {
  std::vector<const plan::Function*> functions;
  for (const Entry& entry : EntriesOf(part)) {
    const plan::Function& function = plan.*entry.function;
    if (!function.name.empty()) functions.push_back(&function);
  }
  return functions;
}

absl::StatusOr<KernelObject> CompileKernel(const plan::Plan& plan, Part part, WriterOptions writer,
                                           const KernelOptions& options,
                                           const WorkMeter::StopCallback& stop) {
  writer.shape = ShapeOf(options);
  writer.evades_subnormals = part == Part::kNearZero;
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module =
      ReadScalarModule(context, FusesMultiplyAdd(options.isa));
  KernelObject object;
  try {
    for (const Entry& entry : EntriesOf(part)) {
      const plan::Function& function = plan.*entry.function;
      if (function.name.empty()) continue;
      if (stop && stop()) return StopRequested::Status();
      const int64_t workspace =
          WriteFunction(*module, plan, function, entry.order, writer, entry.name);
      object.workspace = std::max(object.workspace, workspace);
    }
  } catch (const UnknownScalar& error) {
    return absl::InternalError(error.what());
  }
  DropUnreadScalars(*module);
  InlineRareLaneFunctions(*module);
  object.instructions = InstructionsInlined(*module);
  absl::StatusOr<std::string> bytes =
      CompileObject(*module, options.isa, options.effort, options.mapping.value_or(Mapping::kLanes),
                    options.most_frame_bytes, stop);
  if (!bytes.ok()) return bytes.status();
  object.bytes = *std::move(bytes);
  return object;
}

absl::StatusOr<Kernel> LoadKernel(const KernelObject& object, Part part) {
  absl::StatusOr<std::unique_ptr<MachineCode>> code = MachineCode::Load(object.bytes);
  if (!code.ok()) return code.status();
  Kernel kernel;
  kernel.workspace = object.workspace;
  kernel.instructions = object.instructions;
  for (const Entry& entry : EntriesOf(part)) {
    const absl::StatusOr<void*> found = (*code)->Find(entry.name);
    if (absl::IsNotFound(found.status())) continue;
    if (!found.ok()) return found.status();
    kernel.*entry.address = reinterpret_cast<GroupFunction>(*found);
  }
  kernel.code = *std::move(code);
  return kernel;
}

}  // namespace simgrad::sim::compiled
