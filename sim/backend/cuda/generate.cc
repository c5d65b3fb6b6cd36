#include "sim/backend/cuda/generate.h"

#include <algorithm>
#include <cstdlib>

#include "absl/status/status.h"
#include "sim/backend/cuda/kernel_writer.h"
#include "sim/backend/cuda/text/program_text.h"

namespace simgrad::sim::cuda {
namespace {

constexpr std::string_view kHead = R"(#include "sim/backend/cuda/kernel_abi.h"
#include "sim/backend/cuda/device/columns.h"
#include "sim/backend/cuda/device/diagnostics.h"
#include "sim/backend/cuda/device/elementary.h"
#include "sim/backend/cuda/device/input.h"
#include "sim/backend/cuda/device/integers.h"
#include "sim/backend/cuda/device/join.h"
#include "sim/backend/cuda/device/ranges.h"
#include "sim/backend/cuda/device/reduction.h"
#include "sim/backend/cuda/device/tape.h"

using namespace simgrad::sim::cuda;
using namespace simgrad::sim::cuda::device;
namespace precision = simgrad::precision;
using simgrad::precision::IsFinite;
using simgrad::precision::Overflow;
using F64 = Lane<Format::kF64>;
using F32 = Lane<Format::kF32>;
using Bf16 = Lane<Format::kBf16>;
using F16 = Lane<Format::kF16>;
using E4m3 = Lane<Format::kE4m3>;
using E5m2 = Lane<Format::kE5m2>;

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

// "args.input: 0 state y, 1 param k, ...": what the indices in the text stand for.
std::string ListText(std::string_view array, const std::vector<std::string>& names) {
  constexpr size_t kWidth = 110;
  TextWriter text;
  std::string line = Cat("// ", array, ":");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string entry = Cat(" ", i, " ", names[i], i + 1 < names.size() ? "," : "");
    if (line.size() + entry.size() > kWidth) {
      text.Line(line);
      line = "//  ";
    }
    line += entry;
  }
  if (!names.empty()) text.Line(line);
  return text.text();
}

std::string FieldName(const Source& source, const Field& field) {
  const auto named = [&](std::string_view what, const std::string& name) {
    return Cat(what, " ", name);
  };
  const size_t index = static_cast<size_t>(field.index);
  switch (field.kind) {
    case FieldKind::kState:
      return named("state", source.StateName(index));
    case FieldKind::kExport:
      return named("observable", source.ExportName(index));
    case FieldKind::kCost:
      return "cost";
    case FieldKind::kHealth:
      return "health";
    case FieldKind::kSignature:
      return "path signature";
    case FieldKind::kLastEvent:
      return named("last value of", source.EventName(field.index));
    case FieldKind::kFirstEvent:
      return named("first step of", source.EventName(field.index));
    case FieldKind::kCotangent:
      return named("cotangent of", source.StateName(index));
    case FieldKind::kCotangentMask:
      return named("mask of the cotangent of", source.StateName(index));
    case FieldKind::kExportCotangent:
      return named("cotangent of", source.ExportName(index));
    case FieldKind::kExportCotangentMask:
      return named("mask of the cotangent of", source.ExportName(index));
    case FieldKind::kGradient:
      return named("gradient for", source.Name(source.program().inputs[index].value));
    case FieldKind::kConnected:
      return named("connected to", source.Name(source.program().inputs[index].value));
    case FieldKind::kAdjointHealth:
      break;
  }
  return "health of the adjoint";
}

std::string LegendText(const Source& source) {
  std::vector<std::string> inputs;
  std::vector<std::string> fields;
  std::vector<std::string> loops;
  std::vector<std::string> events;
  for (const Input& input : source.program().inputs) inputs.push_back(source.Name(input.value));
  for (const Field& field : source.fields()) fields.push_back(FieldName(source, field));
  for (int k = 0; k < source.terminations(); ++k) loops.push_back(source.TerminationName(k));
  for (int k = 0; k < source.events(); ++k) events.push_back(source.EventName(k));
  return ListText("args.input", inputs) + ListText("args.field", fields) +
         ListText("termination sites", loops) + ListText("event sites", events);
}

std::string SharedText(const Source& source) {
  TextWriter text;
  text.Line("// What the threads of a block share.");
  text.Open("struct Shared");
  text.Line(Cat("StepSlot<", source.terminations(), ", ", source.events(), ", ",
                source.real_states(), "> slots[2];"));
  text.Line("BackwardColumn backward[2];");
  text.Line(Cat("InstanceTally ran[", std::max(source.terminations(), 1), "];"));
  text.Line("unsigned long long tape_top;");
  text.Close("};");
  text.Line(Cat("static_assert(sizeof(Shared) == ", SharedBytes(source), ");"));
  return text.text() + "\n";
}

std::string MergeText(const Source& source) {
  TextWriter text;
  text.Line("// Columns of blocks to columns of steps, one block of threads a step.");
  text.Open("extern \"C\" __global__ void simgrad_merge(const __grid_constant__ KernelArgs args)");
  text.Line(Cat("MergeBlocks(args.termination, args.termination_partial, args.blocks, args.count, ",
                source.terminations(), ");"));
  text.Line(Cat("MergeBlocks(args.event, args.event_partial, args.blocks, args.count, ",
                source.events(), ");"));
  text.Line(Cat("MergeBlocks(args.state, args.state_partial, args.blocks, args.samples, ",
                source.real_states(), ");"));
  text.Line("MergeBlocks(args.backward, args.backward_partial, args.blocks, args.count, 1);");
  text.Close();
  return text.text() + "\n";
}

// Values of one element live in registers and come and go; arrays stay.
int64_t ArrayBytes(const Program& program, const Region& region) {
  int64_t bytes = 0;
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      const int64_t count = ElementCount(program[id].type.shape);
      const int64_t size = CarrierOf(program[id]) == Carrier::kF64 ? 8 : 4;
      if (count > 1 && op.code != OpCode::kLiteral) bytes += size * count;
    }
    for (const Region& nested : op.regions) bytes += ArrayBytes(program, nested);
  }
  return bytes;
}

int64_t PrivateBytesOf(const NumericalProgram& numerical) {
  const Program& program = numerical.program;
  int64_t bytes = ArrayBytes(program, program.step);
  for (const Input& input : program.inputs) {
    if (input.kind == InputKind::kState) bytes += 4 * ElementCount(program[input.value].type.shape);
  }
  if (numerical.adjoint) bytes += ArrayBytes(program, numerical.adjoint->inner);
  return bytes;
}

absl::Status CheckLimits(const Source& source) {
  const size_t inputs = source.program().inputs.size();
  const size_t exports = source.program().exports.size();
  const size_t fields = source.fields().size();
  if (inputs <= kMaxInputs && exports <= kMaxInputs && fields <= kMaxFields) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(Cat("program '", source.program().name, "' has ", inputs,
                                          " inputs, ", exports, " exports and ", fields,
                                          " fields; a kernel takes ", kMaxInputs, ", ", kMaxInputs,
                                          " and ", kMaxFields, "; run it on another executor"));
}

}  // namespace

bool HasAdjointPart(std::string_view text) {
  return text.find(kAdjointPart) != std::string_view::npos;
}

bool IsOfAdjoint(std::string_view entry) { return entry.find("adjoint") != std::string_view::npos; }

std::string_view MappingName(Mapping mapping) {
  return mapping == Mapping::kThreadPerInstance ? "thread_per_instance" : "block_per_instance";
}

Mapping ChooseMapping(const NumericalProgram& program) {
  constexpr int64_t kLargestPrivate = 4 << 10;
  return PrivateBytesOf(program) <= kLargestPrivate ? Mapping::kThreadPerInstance
                                                    : Mapping::kBlockPerInstance;
}

int64_t GeneratedSource::shared_bytes(int64_t block) const {
  return shared_fixed + shared_per_thread * block;
}

absl::StatusOr<GeneratedSource> Generate(const NumericalProgram& program,
                                         const GenerateOptions& options) {
  if (std::getenv("SIMGRAD_OLD_TEXT") == nullptr) return PrintProgram(program, options);
  Source source(program, options);
  if (absl::Status fits = CheckLimits(source); !fits.ok()) return fits;
  GeneratedSource made;
  made.mapping = options.mapping;
  made.text = Cat("// ", program.program.name, ": ", MappingName(options.mapping), "\n",
                  LegendText(source), kHead, SharedText(source));
  if (program.adjoint) made.text += kForwardPart;
  made.text += KernelWriter(source).Start();
  made.text += KernelWriter(source).Forward();
  made.text += MergeText(source);
  made.text += KernelWriter(source).Finish();
  if (program.adjoint) {
    made.text += kAdjointPart;
    made.text += KernelWriter(source).StartAdjoint();
    made.text += KernelWriter(source).Adjoint();
    made.text += KernelWriter(source).FinishAdjoint();
    made.text += kEndOfPart;
    const Region* terminal = TerminalOf(program);
    if (terminal == nullptr) terminal = &source.tape().no_region();
    made.terminal_tape_units = source.tape().LargestUnits(*terminal);
    made.initial_tape_units = source.tape().LargestUnits(program.program.initial);
  }
  made.numbers = source.numbers();
  made.integers = source.integers();
  made.fields = source.fields();
  made.tape_unit_bytes = source.tape().unit_bytes();
  const bool in_workspace = SharedBytes(source) > kLargestShared;
  made.shared_fixed = in_workspace ? 0 : SharedBytes(source);
  made.workspace_bytes = source.workspace_bytes() + (in_workspace ? SharedBytes(source) : 0);
  made.private_bytes = PrivateBytesOf(program);
  return made;
}

}  // namespace simgrad::sim::cuda
