// From a plan to the whole text of its kernels.
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/text/function_text.h"
#include "sim/backend/cuda/text/instance_text.h"
#include "sim/backend/cuda/text/program_layout.h"
#include "sim/backend/cuda/text/tape_units.h"
#include "sim/backend/cuda/text/words.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

constexpr std::string_view kIncludes = R"(#include "sim/backend/cuda/kernel_abi.h"
#include "sim/backend/cuda/device/kernels.h"
#include "sim/backend/cuda/device/reduction.h"
#include "sim/backend/scalars.h"

using namespace simgrad::sim::cuda;
using namespace simgrad::sim::cuda::device;
using simgrad::precision::Overflow;

extern __shared__ unsigned char simgrad_shared[];

)";
constexpr std::string_view kForwardPart = R"(// Two parts, so that they can be compiled at once.
#ifndef SIMGRAD_PART
#define SIMGRAD_PART 0
#endif
#if SIMGRAD_PART != 2

)";
constexpr std::string_view kAdjointPart = R"(#endif
#if SIMGRAD_PART != 1

)";
constexpr std::string_view kEndOfPart = "#endif\n";

class ProgramText {
 public:
  ProgramText(const NumericalProgram& numerical, const GenerateOptions& options)
      : layout_(LayoutOf(numerical, options)), numerical_(numerical), plan_(layout_.plan) {}

  absl::Status CheckLimits() const {
    const Program& program = numerical_.program;
    const size_t inputs = program.inputs.size();
    const size_t exports = program.exports.size();
    const size_t fields = layout_.fields.size();
    if (inputs <= kMaxInputs && exports <= kMaxInputs && fields <= kMaxFields) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        Cat("program '", program.name, "' has ", inputs, " inputs, ", exports, " exports and ",
            fields, " fields; a kernel takes at most ", kMaxInputs, ", ", kMaxInputs, " and ",
            kMaxFields, "; a server with --device=cpu takes more"));
  }

  GeneratedSource Write() {
    GeneratedSource made;
    made.mapping = layout_.text.mapping;
    made.text = Text();
    made.numbers = layout_.numbers;
    made.integers = plan_.integers;
    made.fields = layout_.fields;
    const bool in_workspace = layout_.in_workspace;
    made.shared_bytes = in_workspace ? 0 : layout_.shared_bytes - layout_.window_bytes;
    made.window_bytes = in_workspace ? 0 : layout_.window_bytes;
    made.workspace_bytes = layout_.InstanceBytes(workspace_) + layout_.SharedInWorkspace();
    if (!numerical_.adjoint) return made;
    const plan::TapePlan tape(numerical_);
    const Region* const terminal = TerminalOf(numerical_);
    made.terminal_tape_units =
        TapeUnits(tape, terminal == nullptr ? tape.no_terminal() : *terminal);
    made.initial_tape_units = TapeUnits(tape, numerical_.program.initial);
    return made;
  }

 private:
  std::string Text() {
    const std::string forward = Forward();
    const std::string parts = numerical_.adjoint
                                  ? Cat(kForwardPart, forward, kAdjointPart, Adjoint(), kEndOfPart)
                                  : forward;
    // The instance is written last: the functions tell how much workspace they need.
    return Cat("// ", numerical_.program.name, ": ", MappingName(layout_.text.mapping), "\n",
               kIncludes, InstanceText(layout_, workspace_), parts);
  }

  std::string Forward() {
    return FunctionOf(plan_.start, "RunStart") + FunctionOf(plan_.step, "RunStep") +
           FunctionOf(plan_.finish, "RunFinish") + Kernel("start", "StartKernel(self);") +
           Kernel("forward", Cat("ForwardKernel<Instance, ", layout_.Records() ? "true" : "false",
                                 ">(self);")) +
           Kernel("finish", "FinishKernel(self);") + MergeText();
  }

  std::string Adjoint() {
    return FunctionOf(plan_.replay, "RunReplay") +
           FunctionOf(plan_.reverse_terminal, "RunReverseTerminal") +
           FunctionOf(plan_.reverse, "RunReverse") +
           (layout_.HasLast() ? FunctionOf(plan_.reverse_last, "RunReverseLast") : "") +
           FunctionOf(plan_.reverse_initial, "RunReverseInitial") +
           Kernel("start_adjoint", "StartAdjointKernel(self);") +
           Kernel("adjoint", "AdjointKernel(self);") +
           Kernel("finish_adjoint", "FinishAdjointKernel(self);") + SumsText();
  }

  std::string FunctionOf(const plan::Function& function, const std::string& name) {
    const FunctionText made = WriteFunction(plan_, function, layout_.text, name);
    workspace_ = std::max(workspace_, made.workspace);
    return made.text;
  }

  std::string Kernel(const std::string& name, const std::string& body) const {
    const std::string work =
        "args.workspace + static_cast<int64_t>(blockIdx.x) * args.workspace_stride";
    TextWriter text;
    // A thread has at most 128 registers, so that the waits of 512 threads hide each other.
    const std::string bounds = name == "forward" && layout_.Records()
                                   ? Cat("__launch_bounds__(", kMostThreads, ", 2) ")
                                   : "";
    text.Open(Cat("extern \"C\" __global__ ", bounds, "void simgrad_", name,
                  "(const __grid_constant__ KernelArgs args)"));
    text.Line(Cat("Instance self(args, *reinterpret_cast<Instance::Shared*>(",
                  layout_.in_workspace ? work : "simgrad_shared", "), ", work, " + ",
                  layout_.SharedInWorkspace(), ");"));
    text.Line(body);
    text.Close();
    return text.text() + "\n";
  }
  static std::string MergeText() {
    return "extern \"C\" __global__ void simgrad_merge(const __grid_constant__ KernelArgs args) {\n"
           "  MergeKernel<Instance>(args);\n}\n\n";
  }

  std::string SumsText() const {
    if (!layout_.sums) return "";
    const auto& setting = numerical_.policy[Role::kGradient];
    const std::string formats =
        Cat("<", FormatText(setting.format), ", ", FormatText(setting.accumulator), ">(args);");
    TextWriter text;
    for (const auto& [entry, body] :
         {std::pair{"sums", "SumEntriesKernel"}, std::pair{"totals", "GrowTotalsKernel"}}) {
      text.Open(Cat("extern \"C\" __global__ void simgrad_adjoint_", entry,
                    "(const __grid_constant__ KernelArgs args)"));
      text.Line(Cat(body, formats));
      text.Close();
    }
    return Cat("#include \"sim/backend/cuda/device/weight_sums.h\"\n\n", text.text(), "\n");
  }

  const ProgramLayout layout_;
  const NumericalProgram& numerical_;
  const plan::Plan& plan_;
  int64_t workspace_ = 0;
};

}  // namespace

bool HasAdjointPart(std::string_view text) {
  return text.find(kAdjointPart) != std::string_view::npos;
}

absl::StatusOr<GeneratedSource> Generate(const NumericalProgram& program,
                                         const GenerateOptions& options) {
  ProgramText text(program, options);
  if (absl::Status fits = text.CheckLimits(); !fits.ok()) return fits;
  return text.Write();
}

}  // namespace simgrad::sim::cuda
