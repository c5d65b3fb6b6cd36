#include "sim/backend/cuda/text/program_layout.h"

#include <algorithm>

#include "precision/exact_sum.h"
#include "sim/plan/make_plan.h"

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

FieldKind KindOf(plan::FieldKind kind) {
  constexpr FieldKind kKinds[] = {
      kState, kExport, kCost, kCotangent, kCotangentMask, kExportCotangent, kExportCotangentMask};
  return kKinds[static_cast<size_t>(kind)];
}

plan::Records RecordsOf(const NumericalProgram& program, Recording recording) {
  const bool records = recording != Recording::kNone;
  const bool stops = program.policy.nonfinite == precision::NonFinite::kStop;
  return {.decides = records, .looks = records || stops, .ranges = records};
}

int AddField(ProgramLayout& to, FieldKind kind, size_t index, MemoryType memory_type,
             int64_t elements, bool per_step = false) {
  to.fields.push_back({kind, static_cast<int32_t>(index), memory_type, elements, per_step});
  return static_cast<int>(to.fields.size()) - 1;
}

void AddGradients(ProgramLayout& to) {
  const std::vector<Input>& inputs = to.program().inputs;
  to.text.gradient.assign(inputs.size(), -1);
  to.text.connected.assign(inputs.size(), -1);
  if (!to.numerical.adjoint) return;
  const bool wide = to.numerical.policy[Role::kGradient].format == Format::kF64;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!to.numerical.adjoint_spec->wanted[i]) continue;
    const int64_t count = ElementCount(to.ValueOf(i).type.shape);
    to.text.gradient[i] = AddField(to, kGradient, i, wide ? MemoryType::kF64 : MemoryType::kF32,
                                   count, to.PerStep(i));
    to.fields.back().is_window = inputs[i].weights;
    to.sums = to.sums || inputs[i].weights;
    to.text.connected[i] = AddField(to, kConnected, i, MemoryType::kBool, 1);
  }
  to.adjoint_health = AddField(to, kAdjointHealth, 0, MemoryType::kI64, 1);
}

void AddFields(ProgramLayout& to) {
  for (const plan::Field& f : to.plan.fields) {
    AddField(to, KindOf(f.kind), static_cast<size_t>(f.index), MemoryTypeOf(f.carrier), f.count);
  }
  to.health = AddField(to, kHealth, 0, MemoryType::kI64, 1);
  to.signature = AddField(to, kSignature, 0, MemoryType::kI64, 1);
  for (size_t k = 0; k < to.plan.events.size(); ++k) {
    const plan::RecordedSite& event = to.plan.events[k];
    const MemoryType of_last = event.chooses ? MemoryType::kI32 : MemoryType::kBool;
    to.last.push_back(AddField(to, kLastEvent, k, of_last, event.elements));
    to.first.push_back(AddField(to, kFirstEvent, k, MemoryType::kI64, 1));
  }
  AddGradients(to);
}

void SetTextOptions(ProgramLayout& to) {
  to.text.mapping = to.options.mapping;
  to.text.longest = to.options.longest_function;
  to.text.records = to.Records();
  to.text.tells_instances = to.options.recording == Recording::kInstances;
  to.text.adjoint_format = to.numerical.policy[Role::kAdjoint].format;
  to.numbers = to.plan.numbers;
  const std::vector<Input>& inputs = to.program().inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputKind kind = inputs[i].kind;
    const bool is_sent = kind != InputKind::kState && kind != InputKind::kStep;
    const bool is_config = kind == InputKind::kConfig;
    to.text.config.push_back(is_config ? static_cast<int64_t>(to.numbers.size()) : -1);
    if (is_config) to.numbers.push_back(inputs[i].default_value.value_or(0.0));
    const int64_t count = ElementCount(to.ValueOf(i).type.shape);
    to.text.reads_once.push_back(is_sent && !is_config && to.reads[i] && !to.PerStep(i) &&
                                 count == 1);
    const int64_t most_kept = to.IsBlock() ? 1 : kMostKept;
    to.text.gradient_kept.push_back(!to.PerStep(i) && count <= most_kept && count > 0);
  }
}

// A slot with its lock, and the hashes of its places (device/instance.h).
int64_t StepBytes(const ProgramLayout& layout) {
  const auto least = [](size_t count) { return static_cast<int64_t>(std::max<size_t>(count, 1)); };
  const plan::Plan& plan = layout.plan;
  return least(plan.terminations.size()) * int64_t{sizeof(TerminationColumn)} +
         least(plan.events.size()) * int64_t{sizeof(EventColumn)} +
         least(RealStates(layout.program())) * int64_t{sizeof(StateColumn)} + 8 +
         8 * least(plan.terminations.size() + plan.events.size());
}

void ShareMemory(ProgramLayout& to) {
  const int64_t step = StepBytes(to);
  if (to.Records()) to.window = std::clamp(kWindowBytes / step, kLeastWindow, kMostWindow);
  to.window_bytes = to.window * step;
  to.shared_bytes = 2 * int64_t{sizeof(BackwardColumn)} + int64_t{sizeof(precision::ExactSum)} +
                    16 + to.window_bytes;
  to.in_workspace = to.shared_bytes > kMostShared;
}

}  // namespace

int64_t AlignedBytes(int64_t bytes) { return (bytes + 15) / 16 * 16; }

const Value& ProgramLayout::ValueOf(size_t input) const {
  return program()[program().inputs[input].value];
}

bool ProgramLayout::PerStep(size_t input) const {
  return input < options.per_step.size() && options.per_step[input];
}

bool ProgramLayout::IsCopied(const plan::Field& field) const {
  return IsBlock() && numerical.adjoint && field.kind == plan::FieldKind::kState &&
         field.count != 1;
}

int64_t ProgramLayout::CopyBytes(const plan::Field& field) { return AlignedBytes(8 * field.count); }

int64_t ProgramLayout::SharedInWorkspace() const {
  return in_workspace ? AlignedBytes(shared_bytes) : 0;
}

int64_t ProgramLayout::InstanceBytes(int64_t arrays) const {
  if (!IsBlock()) return 0;
  int64_t bytes = AlignedBytes(arrays);
  for (const plan::Field& f : plan.fields) {
    if (IsCopied(f)) bytes += CopyBytes(f);
  }
  return bytes;
}

ProgramLayout LayoutOf(const NumericalProgram& numerical, const GenerateOptions& options) {
  ProgramLayout layout = {
      .numerical = numerical,
      .options = options,
      .plan = plan::PlacedPlan(numerical, RecordsOf(numerical, options.recording)),
      .reads = ReadInputs(numerical),
      .states = numerical.program.InputsOf(InputKind::kState)};
  AddFields(layout);
  SetTextOptions(layout);
  ShareMemory(layout);
  return layout;
}

}  // namespace simgrad::sim::cuda
