// From a plan to the whole text of its kernels.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "precision/exact_sum.h"
#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/text/function_text.h"
#include "sim/plan/make_plan.h"
#include "sim/program/loop.h"
#include "sim/program/numerical_program.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

// Above this much, what a block shares stands in its workspace.
constexpr int64_t kMostShared = 40 << 10;
// The bytes that a block shares for the steps that it records at once, and the least and most of those.
constexpr int64_t kWindowBytes = 16 << 10;
constexpr int64_t kLeastWindow = 2, kMostWindow = 32;
// Arrays of a gradient that a thread keeps while it runs.
constexpr int64_t kMostKept = 16;

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

MemoryType MemoryTypeOf(plan::Carrier carrier) {
  switch (carrier) {
    case plan::Carrier::kBool:
      return MemoryType::kBool;
    case plan::Carrier::kI32:
      return MemoryType::kI32;
    case plan::Carrier::kI64:
      return MemoryType::kI64;
    case plan::Carrier::kU32:
    case plan::Carrier::kU8:
      return MemoryType::kU32;
    case plan::Carrier::kF32:
      return MemoryType::kF32;
    case plan::Carrier::kF64:
      break;
  }
  return MemoryType::kF64;
}

std::string TypeOf(MemoryType memory_type) {
  constexpr std::string_view kNames[] = {"float",   "double", "int32_t",
                                         "int64_t", "bool",   "uint32_t"};
  return std::string(kNames[static_cast<size_t>(memory_type)]);
}

FieldKind KindOf(plan::FieldKind kind) {
  constexpr FieldKind kKinds[] = {
      kState, kExport, kCost, kCotangent, kCotangentMask, kExportCotangent, kExportCotangentMask};
  return kKinds[static_cast<size_t>(kind)];
}

bool Looks(const NumericalProgram& program, Recording recording) {
  return recording != Recording::kNone || program.policy.nonfinite == precision::NonFinite::kStop;
}

plan::Records RecordsOf(const NumericalProgram& program, Recording recording) {
  const bool records = recording != Recording::kNone;
  return {.decides = records, .looks = Looks(program, recording), .ranges = records};
}

// Sums and products of sizes, which are at least 0. A size beyond every tape stays at this bound.
constexpr int64_t kBeyondTapes = std::numeric_limits<int64_t>::max() / 4;
int64_t Sum(int64_t a, int64_t b) { return std::min(a + b, kBeyondTapes); }
int64_t Product(int64_t a, int64_t b) {
  return a != 0 && b > kBeyondTapes / a ? kBeyondTapes : a * b;
}

// Bytes of the frames of a region's loops at their caps.
int64_t LoopBytes(const plan::TapePlan& tape, const Region& region) {
  int64_t bytes = 0;
  for (const Op& op : region.ops) {
    if (op.code != OpCode::kWhile && op.code != OpCode::kFor) continue;
    const plan::FrameLayout* const frame = tape.Of(op.regions[0]);
    int64_t turn = frame == nullptr ? 0 : frame->bytes;
    for (const Region& nested : op.regions) turn = Sum(turn, LoopBytes(tape, nested));
    const int64_t runs = Product(RunsAtCap(op), std::max<int64_t>(op.attributes.elements, 1));
    bytes = Sum(bytes, Product(turn, runs));
  }
  return bytes;
}
int64_t TapeUnits(const plan::TapePlan& tape, const Region& region) {
  constexpr int64_t kUnitBytes = 4;
  const plan::FrameLayout* const frame = tape.Of(region);
  return Sum(frame == nullptr ? 0 : frame->bytes, LoopBytes(tape, region)) / kUnitBytes;
}

class ProgramText {
 public:
  ProgramText(const NumericalProgram& numerical, const GenerateOptions& options)
      : numerical_(numerical),
        program_(numerical.program),
        options_(options),
        block_(options.mapping == Mapping::kBlockPerInstance),
        plan_(plan::PlacedPlan(numerical, RecordsOf(numerical, options.recording))),
        reads_(ReadInputs(numerical)),
        states_(program_.InputsOf(InputKind::kState)) {
    AddFields();
    SetOptions();
  }

  absl::Status CheckLimits() const {
    const size_t inputs = program_.inputs.size();
    const size_t exports = program_.exports.size();
    if (inputs <= kMaxInputs && exports <= kMaxInputs && fields_.size() <= kMaxFields) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        Cat("program '", program_.name, "' has ", inputs, " inputs, ", exports, " exports and ",
            fields_.size(), " fields; a kernel takes ", kMaxInputs, ", ", kMaxInputs, " and ",
            kMaxFields, "; run it on another executor"));
  }

  GeneratedSource Write() {
    const bool reverses = numerical_.adjoint.has_value();
    std::string forward = FunctionOf(plan_.start, "RunStart") + FunctionOf(plan_.step, "RunStep") +
                          FunctionOf(plan_.finish, "RunFinish");
    forward += Kernel("start", "StartKernel(self);") +
               Kernel("forward",
                      Cat("ForwardKernel<Instance, ", Records() ? "true" : "false", ">(self);")) +
               Kernel("finish", "FinishKernel(self);") + MergeText();
    std::string adjoint;
    if (reverses) {
      adjoint = FunctionOf(plan_.replay, "RunReplay") +
                FunctionOf(plan_.reverse_terminal, "RunReverseTerminal") +
                FunctionOf(plan_.reverse, "RunReverse");
      if (HasLast()) adjoint += FunctionOf(plan_.reverse_last, "RunReverseLast");
      adjoint += FunctionOf(plan_.reverse_initial, "RunReverseInitial") +
                 Kernel("start_adjoint", "StartAdjointKernel(self);") +
                 Kernel("adjoint", "AdjointKernel(self);") +
                 Kernel("finish_adjoint", "FinishAdjointKernel(self);") + SumsText();
    }
    GeneratedSource made;
    made.mapping = options_.mapping;
    made.text = Cat("// ", program_.name, ": ", MappingName(options_.mapping), "\n", kIncludes,
                    InstanceText());
    made.text += reverses ? Cat(kForwardPart, forward, kAdjointPart, adjoint, kEndOfPart) : forward;
    made.numbers = numbers_;
    made.integers = plan_.integers;
    made.fields = fields_;
    made.tape_unit_bytes = 4;
    const bool in_workspace = SharedBytes() > kMostShared;
    made.shared_bytes = in_workspace ? 0 : SharedBytes() - WindowBytes();
    made.window_bytes = in_workspace ? 0 : WindowBytes();
    made.workspace_bytes = InstanceBytes() + (in_workspace ? Aligned(SharedBytes()) : 0);
    if (reverses) {
      const plan::TapePlan tape(numerical_);
      const Region* const terminal = TerminalOf(numerical_);
      made.terminal_tape_units =
          TapeUnits(tape, terminal == nullptr ? tape.no_terminal() : *terminal);
      made.initial_tape_units = TapeUnits(tape, program_.initial);
    }
    return made;
  }

 private:
  bool Records() const { return options_.recording != Recording::kNone; }
  bool HasLast() const { return numerical_.adjoint && numerical_.adjoint->last.has_value(); }
  static int64_t Aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  bool per_step(size_t input) const {
    return input < options_.per_step.size() && options_.per_step[input];
  }
  const Value& ValueOf(size_t input) const { return program_[program_.inputs[input].value]; }
  bool IsReal(const Value& value) const { return value.type.element == ElementType::kReal; }

  // ---- fields ----

  int AddField(FieldKind kind, size_t index, MemoryType memory_type, int64_t elements,
               bool per_step = false) {
    fields_.push_back({kind, static_cast<int32_t>(index), memory_type, elements, per_step});
    return static_cast<int>(fields_.size()) - 1;
  }

  const char* LastText(size_t event) const {
    return plan_.events[event].chooses ? "int32_t" : "bool";
  }

  // The fields of the plan come first, under the same numbers.
  void AddFields() {
    for (const plan::Field& f : plan_.fields) {
      AddField(KindOf(f.kind), static_cast<size_t>(f.index), MemoryTypeOf(f.carrier), f.count);
    }
    health_ = AddField(kHealth, 0, MemoryType::kI64, 1);
    signature_ = AddField(kSignature, 0, MemoryType::kI64, 1);
    for (size_t k = 0; k < plan_.events.size(); ++k) {
      const MemoryType of_last = plan_.events[k].chooses ? MemoryType::kI32 : MemoryType::kBool;
      last_.push_back(AddField(kLastEvent, k, of_last, plan_.events[k].elements));
      first_.push_back(AddField(kFirstEvent, k, MemoryType::kI64, 1));
    }
    to_.gradient.assign(program_.inputs.size(), -1);
    to_.connected.assign(program_.inputs.size(), -1);
    if (!numerical_.adjoint) return;
    const bool wide = numerical_.policy[Role::kGradient].format == Format::kF64;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (!numerical_.adjoint_spec->wanted[i]) continue;
      const int64_t count = ElementCount(ValueOf(i).type.shape);
      to_.gradient[i] =
          AddField(kGradient, i, wide ? MemoryType::kF64 : MemoryType::kF32, count, per_step(i));
      fields_.back().is_window = program_.inputs[i].weights;
      sums_ = sums_ || program_.inputs[i].weights;
      to_.connected[i] = AddField(kConnected, i, MemoryType::kBool, 1);
    }
    adjoint_health_ = AddField(kAdjointHealth, 0, MemoryType::kI64, 1);
  }

  void SetOptions() {
    numbers_ = plan_.numbers;
    to_.mapping = options_.mapping;
    to_.longest = options_.longest_function;
    to_.records = Records();
    to_.tells_instances = options_.recording == Recording::kInstances;
    to_.adjoint_format = numerical_.policy[Role::kAdjoint].format;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const InputKind kind = program_.inputs[i].kind;
      const bool is_sent = kind != InputKind::kState && kind != InputKind::kStep;
      const bool is_config = kind == InputKind::kConfig;
      to_.config.push_back(is_config ? static_cast<int64_t>(numbers_.size()) : -1);
      if (is_config) numbers_.push_back(program_.inputs[i].default_value.value_or(0.0));
      const int64_t count = ElementCount(ValueOf(i).type.shape);
      to_.reads_once.push_back(is_sent && !is_config && reads_[i] && !per_step(i) && count == 1);
      to_.gradient_kept.push_back(!per_step(i) && count <= (block_ ? 1 : kMostKept) && count > 0);
    }
  }

  // ---- functions and kernels ----

  std::string FunctionOf(const plan::Function& function, const std::string& name) {
    const FunctionText made = WriteFunction(plan_, function, to_, name);
    workspace_ = std::max(workspace_, made.workspace);
    return made.text;
  }

  int64_t SharedBytes() const {
    return 2 * int64_t{sizeof(BackwardColumn)} + int64_t{sizeof(precision::ExactSum)} + 16 +
           WindowBytes();
  }
  // The last of it, for the kernel that records.
  int64_t WindowBytes() const { return Window() * StepBytes(); }
  // A slot with its lock, and the hashes of its places (device/instance.h).
  int64_t StepBytes() const {
    const auto least = [](size_t count) {
      return static_cast<int64_t>(std::max<size_t>(count, 1));
    };
    return least(plan_.terminations.size()) * int64_t{sizeof(TerminationColumn)} +
           least(plan_.events.size()) * int64_t{sizeof(EventColumn)} +
           least(RealStates(program_)) * int64_t{sizeof(StateColumn)} + 8 +
           8 * least(plan_.terminations.size() + plan_.events.size());
  }
  int64_t Window() const {
    if (!Records()) return 1;
    return std::clamp(kWindowBytes / StepBytes(), kLeastWindow, kMostWindow);
  }

  // The bytes of the copies of states that a block has beside its records and arrays.
  int64_t CopyBytes() const {
    int64_t bytes = 0;
    for (const plan::Field& f : plan_.fields) {
      if (IsCopied(f)) bytes += Aligned(8 * f.count);
    }
    return bytes;
  }
  bool IsCopied(const plan::Field& f) const {
    return block_ && numerical_.adjoint && f.kind == plan::FieldKind::kState && f.count != 1;
  }
  int64_t InstanceBytes() const { return block_ ? Aligned(workspace_) + CopyBytes() : 0; }

  std::string Kernel(const std::string& name, const std::string& body) {
    const bool in_workspace = SharedBytes() > kMostShared;
    const std::string work =
        "args.workspace + static_cast<int64_t>(blockIdx.x) * args.workspace_stride";
    TextWriter text;
    // A thread has at most 128 registers, so that the waits of 512 threads hide each other.
    const std::string bounds =
        name == "forward" && Records() ? Cat("__launch_bounds__(", kMostThreads, ", 2) ") : "";
    text.Open(Cat("extern \"C\" __global__ ", bounds, "void simgrad_", name,
                  "(const __grid_constant__ KernelArgs args)"));
    text.Line(Cat("Instance self(args, *reinterpret_cast<Instance::Shared*>(",
                  in_workspace ? work : "simgrad_shared", "), ", work, " + ",
                  in_workspace ? Aligned(SharedBytes()) : 0, ");"));
    text.Line(body);
    text.Close();
    return text.text() + "\n";
  }
  static std::string MergeText() {
    return "extern \"C\" __global__ void simgrad_merge(const __grid_constant__ KernelArgs args) {\n"
           "  MergeKernel<Instance>(args);\n}\n\n";
  }

  std::string SumsText() const {
    if (!sums_) return "";
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

  // ---- the instance ----

  // Whether a field has memory of its own; otherwise the thread holds it.
  bool InMemory(const Field& f) const { return block_ && f.elements != 1; }
  std::string Memory(int field) const {
    return Cat("static_cast<", TypeOf(fields_[static_cast<size_t>(field)].memory_type),
               "*>(args.field[", field, "])");
  }
  // Element `at` of the instance.
  std::string Place(int field, const std::string& at) const {
    const Field& f = fields_[static_cast<size_t>(field)];
    if (f.elements == 1) return Cat(Memory(field), "[instance]");
    if (block_) return Cat(Memory(field), "[instance * ", f.elements, " + ", at, "]");
    return Cat(Memory(field), "[(", at, ") * args.instances + instance]");
  }
  static std::string OfField(int field, int64_t elements, const std::string& at) {
    return elements == 1 ? Cat("f", field) : Cat("f", field, "[", at, "]");
  }
  void EachOf(TextWriter& text, int64_t elements, const std::string& statement) const {
    if (elements == 1) return text.Line(statement);
    text.Line(Cat("for (int64_t e = First(); e < ", elements, "; e += Stride()) ", statement));
  }

  void Members(TextWriter& text) const {
    for (size_t k = 0; k < fields_.size(); ++k) {
      if (!Travels(k)) continue;
      const Field& f = fields_[k];
      const std::string type = TypeOf(f.memory_type);
      const std::string comment = Cat("  // ", NameOf(f));
      if (InMemory(f)) {
        text.Line(Cat(type, "* f", k, ";", comment));
      } else {
        text.Line(Cat(type, " f", k,
                      f.elements == 1 ? "" : Cat("[", std::max<int64_t>(f.elements, 1), "]"), ";",
                      comment));
      }
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (!to_.reads_once[i]) continue;
      text.Line(
          Cat(TypeText(plan::CarrierOf(ValueOf(i))), " in", i, ";  // ", program_.inputs[i].name));
    }
    for (size_t k = 0; k < last_.size(); ++k) {
      if (plan_.events[k].elements == 1) text.Line(Cat(LastText(k), " last", k, ";"));
    }
    for (int64_t k = 0; k < Kept(numbers_.size()); ++k) text.Line(Cat("double n", k, ";"));
    for (int64_t k = 0; k < Kept(plan_.integers.size()); ++k) text.Line(Cat("int64_t i", k, ";"));
  }
  static int64_t Kept(size_t count) { return std::min(static_cast<int64_t>(count), kKeptNumbers); }

  std::string NameOf(const Field& f) const {
    const size_t index = static_cast<size_t>(f.index);
    const auto state = [&] { return program_.inputs[static_cast<size_t>(states_[index])].name; };
    switch (f.kind) {
      case kState:
        return Cat("state ", state());
      case kExport:
        return Cat("observable ", program_.exports[index].name);
      case kCost:
        return "cost";
      case kCotangent:
        return Cat("cotangent of ", state());
      case kCotangentMask:
        return Cat("mask of the cotangent of ", state());
      case kExportCotangent:
        return Cat("cotangent of ", program_.exports[index].name);
      case kExportCotangentMask:
        return Cat("mask of the cotangent of ", program_.exports[index].name);
      case kGradient:
        return Cat("gradient for ", program_.inputs[index].name);
      default:
        return Cat("connected to ", program_.inputs[index].name);
    }
  }

  // Whether a thread has the field, or a pointer to it, while it runs.
  bool Travels(size_t k) const {
    const Field& f = fields_[k];
    if (f.kind == kGradient) return to_.gradient_kept[static_cast<size_t>(f.index)];
    return k < plan_.fields.size() || f.kind == kConnected;
  }
  bool IsReversed(const Field& f) const { return f.kind > kFirstEvent; }

  void Move(TextWriter& text, bool reversed, bool loads) const {
    for (size_t k = 0; k < fields_.size(); ++k) {
      const Field& f = fields_[k];
      const int field = static_cast<int>(k);
      if (!Travels(k) || IsReversed(f) != reversed || f.is_window) continue;
      if (InMemory(f)) {
        if (loads) text.Line(Cat("f", k, " = ", Memory(field), " + instance * ", f.elements, ";"));
        continue;
      }
      const std::string own = OfField(field, f.elements, "e");
      EachOf(text, f.elements,
             loads ? Cat(own, " = ", Place(field, "e"), ";")
                   : Cat(Place(field, "e"), " = ", own, ";"));
    }
  }

  void ReadInputs_(TextWriter& text) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (!to_.reads_once[i]) continue;
      const plan::Carrier carrier = plan::CarrierOf(ValueOf(i));
      const std::string place = Cat("(args.input[", i, "], instance, 0, 0)");
      text.Line(Cat("in", i, " = ",
                    IsReal(ValueOf(i))
                        ? Cat("static_cast<", TypeText(carrier), ">(ReadReal", place, ")")
                        : Cat("ReadInteger<", TypeText(carrier), ">", place),
                    ";"));
    }
  }

  void LoadText(TextWriter& text) const {
    text.Open("__device__ void Open()");
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      if (IsReversed(fields_[k]) || !InMemory(fields_[k])) continue;
      text.Line(Cat("f", k, " = ", Memory(static_cast<int>(k)), " + instance * ",
                    fields_[k].elements, ";"));
    }
    ReadInputs_(text);
    for (int64_t k = 0; k < Kept(numbers_.size()); ++k) {
      text.Line(Cat("n", k, " = args.number[", k, "];"));
    }
    for (int64_t k = 0; k < Kept(plan_.integers.size()); ++k) {
      text.Line(Cat("i", k, " = args.integer[", k, "];"));
    }
    text.Line("signature = 0;");
    text.Close();
    text.Open("__device__ void Load()");
    text.Line("Open();");
    Move(text, false, true);
    text.Line(Cat("health = ", Place(health_, "0"), ";"));
    for (size_t k = 0; k < last_.size(); ++k) {
      if (plan_.events[k].elements == 1)
        text.Line(Cat("last", k, " = ", Place(last_[k], "0"), ";"));
      text.Line(Cat("first_event[", k, "] = ", Place(first_[k], "0"), ";"));
    }
    text.Close();
  }

  void StoreText(TextWriter& text) const {
    text.Open("__device__ void Store()");
    if (block_) {
      text.Line(Cat("atomicAdd(reinterpret_cast<unsigned long long*>(&", Place(signature_, "0"),
                    "), static_cast<unsigned long long>(signature));"));
      for (size_t k = 0; k < first_.size(); ++k) {
        text.Line(Cat(
            "if (first_event[", k, "] >= 0) atomicMin(reinterpret_cast<unsigned long long*>(&",
            Place(first_[k], "0"), "), static_cast<unsigned long long>(first_event[", k, "]));"));
      }
      text.Line("if (!speaks) return;");
    } else {
      text.Line(Cat(Place(signature_, "0"), " += static_cast<int64_t>(signature);"));
      for (size_t k = 0; k < first_.size(); ++k) {
        text.Line(Cat(Place(first_[k], "0"), " = first_event[", k, "];"));
      }
    }
    Move(text, false, false);
    text.Line(Cat(Place(health_, "0"), " = health;"));
    for (size_t k = 0; k < last_.size(); ++k) {
      if (plan_.events[k].elements == 1) text.Line(Cat(Place(last_[k], "0"), " = last", k, ";"));
    }
    text.Close();
  }

  void ClearText(TextWriter& text) const {
    text.Open("__device__ void Clear()");
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      const Field& f = fields_[k];
      if (f.kind != kExport && f.kind != kCost) continue;
      EachOf(text, f.elements, Cat(OfField(static_cast<int>(k), f.elements, "e"), " = 0;"));
    }
    const std::string mine = block_ ? "if (speaks) " : "if (live) ";
    text.Line(Cat(mine, Place(signature_, "0"), " = 0;"));
    for (size_t k = 0; k < last_.size(); ++k) {
      text.Line(Cat(mine, Place(first_[k], "0"), " = -1;"));
      text.Line(Cat("first_event[", k, "] = -1;"));
      const int64_t elements = plan_.events[k].elements;
      if (elements == 1) {
        text.Line(Cat("last", k, " = ", LastText(k), "{};"));
      } else {
        text.Open("if (live)");
        EachOf(text, elements, Cat(Place(last_[k], "e"), " = ", LastText(k), "{};"));
        text.Close();
      }
    }
    text.Close();
  }

  // The states as they were sent, rounded to role state.
  void SentText(TextWriter& text) const {
    const bool saturates =
        numerical_.policy[Role::kState].overflow == precision::Overflow::kSaturate;
    text.Open("__device__ void SetSent()");
    for (size_t k = 0; k < states_.size(); ++k) {
      const size_t input = static_cast<size_t>(states_[k]);
      const Value& value = ValueOf(input);
      const int64_t count = ElementCount(value.type.shape);
      const std::string view =
          Cat("(args.input[", input, "], instance, 0, ", count == 1 ? "0" : "e", ")");
      const std::string own = OfField(static_cast<int>(k), count, "e");
      const std::string read =
          !IsReal(value)
              ? Cat("ReadInteger<", TypeText(plan::CarrierOf(value)), ">", view)
              : Cat("Lane<", FormatText(value.format.value_or(Format::kF64)), ">::Round(ReadReal",
                    view, saturates ? ", Overflow::kSaturate" : "", ")");
      EachOf(text, count, Cat(own, " = ", read, ";"));
    }
    text.Close();
  }

  void CheckText(TextWriter& text) const {
    text.Open("__device__ void CheckSent()");
    for (size_t k = 0; k < states_.size(); ++k) {
      const size_t input = static_cast<size_t>(states_[k]);
      if (!reads_[input] || !IsReal(ValueOf(input))) continue;
      const int64_t count = ElementCount(ValueOf(input).type.shape);
      EachOf(text, count,
             Cat("bad_input |= !simgrad::precision::IsFinite(",
                 OfField(static_cast<int>(k), count, "e"), ");"));
    }
    CheckInputs(text, false);
    text.Close();
    text.Open("__device__ void CheckStep()");
    CheckInputs(text, true);
    text.Close();
  }
  void CheckInputs(TextWriter& text, bool of_steps) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const InputKind kind = program_.inputs[i].kind;
      if (kind == InputKind::kState || kind == InputKind::kStep) continue;
      if (!reads_[i] || !IsReal(ValueOf(i)) || (of_steps && !per_step(i))) continue;
      if (to_.config[i] >= 0) {
        text.Line(
            Cat("bad_input |= !simgrad::precision::IsFinite(args.number[", to_.config[i], "]);"));
        continue;
      }
      text.Line(Cat("CheckInput(", i, ", ", ElementCount(ValueOf(i).type.shape), ");"));
    }
  }

  // Writes the function that samples states into the slot of the step.
  void SampleText(TextWriter& text) const {
    text.Open("__device__ void Sample()");
    int real = 0;
    for (size_t k = 0; k < states_.size(); ++k) {
      const Value& value = ValueOf(static_cast<size_t>(states_[k]));
      if (!IsReal(value)) continue;
      const int64_t count = ElementCount(value.type.shape);
      text.Open("");
      text.Line("StateTally seen;");
      text.Open(Cat("if (live", count == 1 ? " && speaks" : "", ")"));
      EachOf(text, count,
             Cat("seen.See<", FormatText(value.format.value_or(Format::kF64)), ">(",
                 OfField(static_cast<int>(k), count, "e"), ");"));
      text.Close();
      text.Line(Cat("Join(slot->state[", real++, "], seen);"));
      text.Close();
    }
    text.Close();
  }

  void PlacesText(TextWriter& text) const {
    text.Open(
        "__device__ static void Places([[maybe_unused]] uint64_t* to, [[maybe_unused]] uint64_t "
        "t)");
    size_t place = 0;
    for (const auto* sites : {&plan_.terminations, &plan_.events}) {
      for (const plan::RecordedSite& site : *sites) {
        text.Line(
            Cat("to[", place++, "] = simgrad::precision::PlaceHash(", site.hash, "u, t, 0, 0);"));
      }
    }
    text.Close();
  }

  void TrajectoryText(TextWriter& text) const {
    text.Open("__device__ void WriteTrajectories([[maybe_unused]] int64_t column)");
    text.Line("if (!live || !writes_trajectories) return;");
    for (const auto& [kind, list] : {std::pair{kState, "state"}, std::pair{kExport, "export"}}) {
      TextWriter inside(3);
      bool any = false;
      for (size_t k = 0; k < plan_.fields.size(); ++k) {
        const Field& f = fields_[k];
        if (f.kind != kind || f.elements == 0) continue;
        any = true;
        inside.Open(Cat("if (args.", list, "_trajectory[", f.index, "] != nullptr",
                        f.elements == 1 ? " && speaks" : "", ")"));
        EachOf(inside, f.elements,
               Cat("static_cast<", TypeOf(f.memory_type), "*>(args.", list, "_trajectory[", f.index,
                   "])[(column * args.instances + instance) * ", f.elements, " + ",
                   f.elements == 1 ? "0" : "e",
                   "] = ", OfField(static_cast<int>(k), f.elements, "e"), ";"));
        inside.Close();
      }
      if (!any) continue;
      text.Open(Cat("if (args.", list, "_trajectory != nullptr)"));
      text.Raw(inside.text());
      text.Close();
    }
    text.Close();
  }

  void LastEvents(TextWriter& text) const {
    for (size_t k = 0; k < last_.size(); ++k) {
      if (plan_.events[k].elements == 1) continue;
      text.Line(Cat("__device__ ", LastText(k), "& Last", k, "(int64_t e) { return ",
                    Place(last_[k], "e"), "; }"));
    }
  }

  void ReversedText(TextWriter& text) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const int k = to_.gradient[i];
      if (k < 0) continue;
      const Field& f = fields_[static_cast<size_t>(k)];
      if (to_.gradient_kept[i] && !f.is_window) continue;
      const std::string step = f.is_window  ? "(read_time - args.window_first)"
                               : f.per_step ? "read_time"
                                            : "int64_t{0}";
      text.Line(Cat("__device__ ", TypeOf(f.memory_type), "& At", k,
                    "([[maybe_unused]] int64_t e) { return ", Memory(k), "[",
                    block_ ? Cat("(", step, " * args.instances + instance) * ", f.elements, " + e")
                           : Cat("(", step, " * ", f.elements, " + e) * args.instances + instance"),
                    "]; }"));
    }
    EntryText(text);
    text.Open("__device__ void LoadReversed()");
    Move(text, true, true);
    text.Close();
    text.Open("__device__ void LoadReversedHealth()");
    text.Line(Cat("health = ", Place(adjoint_health_, "0"), ";"));
    text.Close();
    text.Open("__device__ void StoreReversed()");
    if (block_) text.Line("if (!speaks) return;");
    Move(text, true, false);
    text.Line(Cat(Place(adjoint_health_, "0"), " = health;"));
    text.Close();
    text.Open("__device__ void CopyStates()");
    int64_t offset = Aligned(workspace_);
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      const plan::Field& f = plan_.fields[k];
      if (!IsCopied(f)) continue;
      text.Open("");
      text.Line(Cat("auto* const copy = reinterpret_cast<", TypeText(f.carrier), "*>(work + ",
                    offset, ");"));
      EachOf(text, f.count, Cat("copy[e] = f", k, "[e];"));
      text.Line(Cat("f", k, " = copy;"));
      text.Close();
      offset += Aligned(8 * f.count);
    }
    text.Close();
  }

  // Around an entry: what a thread keeps of a window begins at 0, and is written there.
  void EntryText(TextWriter& text) const {
    TextWriter opens(2), closes(2);
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const int k = to_.gradient[i];
      if (k < 0 || !to_.gradient_kept[i] || !fields_[static_cast<size_t>(k)].is_window) continue;
      const int64_t elements = fields_[static_cast<size_t>(k)].elements;
      const std::string own = OfField(k, elements, "e");
      EachOf(opens, elements, Cat(own, " = 0;"));
      EachOf(closes, elements, Cat("At", k, "(", elements == 1 ? "0" : "e", ") = ", own, ";"));
    }
    text.Open("__device__ void OpenEntry()");
    text.Raw(opens.text());
    text.Close();
    text.Open("__device__ void CloseEntry()");
    if (block_ && !closes.text().empty()) text.Line("if (!speaks) return;");
    text.Raw(closes.text());
    text.Close();
  }

  std::string InstanceText() const {
    TextWriter text;
    for (const Site& site : numerical_.sites) {
      text.Line(Cat("// ", site.kind == SiteKind::kEvent ? "event " : "loop ", site.number, ": ",
                    site.name));
    }
    const auto flag = [](bool x) { return x ? "true" : "false"; };
    text.Open(Cat("struct Instance : InstanceBase<", flag(block_), ", ",
                  flag(numerical_.policy.nonfinite == precision::NonFinite::kStop), ", ",
                  flag(to_.tells_instances), ", ", plan_.terminations.size(), ", ",
                  plan_.events.size(), ", ", RealStates(program_), ", ", plan_.additions.size(),
                  ", ", Window(), ">"));
    text.Line("using InstanceBase::InstanceBase;");
    text.Line(Cat("static constexpr bool kHasLast = ", flag(HasLast()), ";"));
    Members(text);
    LoadText(text);
    StoreText(text);
    ClearText(text);
    SentText(text);
    CheckText(text);
    SampleText(text);
    if (Records()) PlacesText(text);
    TrajectoryText(text);
    LastEvents(text);
    if (numerical_.adjoint) ReversedText(text);
    text.Close("};");
    text.Line(Cat("static_assert(sizeof(Instance::Shared) == ", SharedBytes(), ");"));
    text.Open("template <class T> __device__ T* At(Instance& self, int64_t offset)");
    text.Line("return reinterpret_cast<T*>(self.work + offset);");
    text.Close();
    return text.text() + "\n";
  }

  const NumericalProgram& numerical_;
  const Program& program_;
  const GenerateOptions& options_;
  const bool block_;
  const plan::Plan plan_;
  const std::vector<bool> reads_;
  const std::vector<int32_t> states_;
  std::vector<Field> fields_;
  std::vector<double> numbers_;  // of the plan, then of configuration
  TextOptions to_;
  int health_ = 0, signature_ = 0, adjoint_health_ = 0;
  bool sums_ = false;              // gradients of weights are wanted
  std::vector<int> last_, first_;  // by event
  int64_t workspace_ = 0;
};

}  // namespace

bool HasAdjointPart(std::string_view text) {
  return text.find(kAdjointPart) != std::string_view::npos;
}

MemoryType MemoryTypeOf(const Value& value) { return MemoryTypeOf(plan::CarrierOf(value)); }

absl::StatusOr<GeneratedSource> Generate(const NumericalProgram& program,
                                         const GenerateOptions& options) {
  ProgramText text(program, options);
  if (absl::Status fits = text.CheckLimits(); !fits.ok()) return fits;
  return text.Write();
}

}  // namespace simgrad::sim::cuda
