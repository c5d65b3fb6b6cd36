// One instance forward: inputs, steps, costs.
#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/arithmetic.h"
#include "sim/backend/reference/instance_run.h"
#include "sim/op/op_info.h"

namespace simgrad::sim::reference {
namespace {

// The offset in its tensor at which the elements of an input for (row, step t) begin.
int64_t TensorOffset(const Binding& binding, int64_t row, int64_t t, int64_t steps, int64_t count) {
  int64_t block = binding.per_instance ? row : 0;
  if (binding.per_step) block = block * steps + t;
  return block * count;
}

// A value of a step that is kept, beside its numbers: an array, and its part of a frame.
constexpr int64_t kPerValue = 192;

bool VariesByStep(const Batch& batch, size_t input) {
  return batch.inputs[input].per_step && !batch.inputs[input].tensor.bytes.empty();
}

}  // namespace

Format StateFormat(const NumericalProgram& program, int32_t state_input) {
  const ValueId id = program.program.inputs[static_cast<size_t>(state_input)].value;
  return program.program[id].format.value_or(program.policy[Role::kState].format);
}

void NoteState(const Array& state, Format format, StateRange& range) {
  const double smallest_normal = std::ldexp(1.0, precision::Traits(format).min_exponent);
  for (double x : state.real) range.Note(x, smallest_normal);
}

InstanceRun::InstanceRun(const Batch& batch, const Layouts& layouts, int64_t row,
                         double near_band_ulps, WorkMeter::StopCallback stop)
    : batch_(batch),
      program_(*batch.program),
      layouts_(layouts),
      row_(static_cast<size_t>(row)),
      state_inputs_(program_.program.InputsOf(InputKind::kState)),
      meter_(std::move(stop)),
      watch_(program_, batch.instance_ids[row_]),
      decisions_(program_.sites, batch.instance_ids[row_], near_band_ulps),
      tape_bytes_(static_cast<size_t>(batch.steps), 0) {}

// An input as step t reads it: what was sent, else its default. States: as sent, in format f64.
Array InstanceRun::ReadInput(size_t input, int64_t t) const {
  const Input& declared = program().inputs[input];
  const Type& type = program()[declared.value].type;
  Array array = ZerosOf(type);
  if (declared.kind == InputKind::kStep) {
    for (double& x : array.real) x = static_cast<double>(t);
    for (int64_t& n : array.integer) n = WrapTo(type.element, t);
    return array;
  }
  const Binding& binding = batch_.inputs[input];
  const bool sent = declared.kind != InputKind::kConfig && !binding.tensor.bytes.empty();
  if (!sent) {
    const double value = declared.default_value.value_or(0.0);
    for (double& x : array.real) x = value;
    for (int64_t& n : array.integer) n = WrapTo(type.element, static_cast<int64_t>(value));
    return array;
  }
  const int64_t count = ElementCount(type.shape);
  const int64_t at = TensorOffset(binding, static_cast<int64_t>(row_), t, batch_.steps, count);
  for (int64_t i = 0; i < count; ++i) {
    meter_.Add(kConversionWork);
    const size_t k = static_cast<size_t>(i);
    if (type.element == ElementType::kReal) {
      array.real[k] = binding.tensor.Get(at + i);
    } else {
      array.integer[k] = WrapTo(type.element, binding.tensor.GetInt(at + i));
    }
  }
  return array;
}

std::vector<Array> InstanceRun::SentStates() const {
  const Overflow overflow = program_.policy[Role::kState].overflow;
  std::vector<Array> states;
  for (int32_t input : state_inputs_) {
    Array array = ReadInput(static_cast<size_t>(input), 0);
    const Format format = StateFormat(program_, input);
    for (double& x : array.real) {
      meter_.Add(kElementWork);
      x = precision::RoundTo(format, x, overflow);
    }
    states.push_back(std::move(array));
  }
  return states;
}

Frame InstanceRun::InputFrame(int64_t t, const std::vector<Array>& states) const {
  Frame frame(layouts_.inputs(), nullptr);
  size_t state = 0;
  // At T, where no control is left, the terminal cost sees that of the last step.
  const int64_t last = batch_.steps > 0 ? batch_.steps - 1 : 0;
  for (size_t i = 0; i < program().inputs.size(); ++i) {
    const Input& input = program().inputs[i];
    if (input.kind == InputKind::kState) {
      frame.Set(input.value, states[state++]);
    } else if (!VariesByStep(batch_, i)) {
      frame.Set(input.value, ReadInput(i, t));
    } else if (batch_.steps > 0) {
      frame.Set(input.value, ReadInput(i, t < last ? t : last));
    } else {
      frame.Set(input.value, ZerosOf(program()[input.value].type));
    }
  }
  return frame;
}

// Non-finite numbers that step t reads; those without a step belong to step 0.
void InstanceRun::CheckInputs(int64_t t) {
  const Overflow overflow = program_.policy[Role::kState].overflow;
  for (size_t i = 0; i < program().inputs.size() && watch_.watching(); ++i) {
    const Input& input = program().inputs[i];
    if (!layouts_.used_inputs()[i] || (t > 0 && !VariesByStep(batch_, i))) continue;
    if (VariesByStep(batch_, i) && t >= batch_.steps) continue;
    const Array sent = ReadInput(i, t);
    for (size_t k = 0; k < sent.real.size(); ++k) {
      meter_.Add(kElementWork);
      const bool is_state = input.kind == InputKind::kState;
      const Format format =
          is_state ? StateFormat(program_, static_cast<int32_t>(i)) : Format::kF64;
      const double read =
          is_state ? precision::RoundTo(format, sent.real[k], overflow) : sent.real[k];
      watch_.SeeInput(input, format, static_cast<int64_t>(k), sent.real[k], read);
    }
  }
}

std::unique_ptr<InstanceRun::Taped> InstanceRun::RunTaped(const Region& region, int64_t t,
                                                          const std::vector<Array>& states,
                                                          const std::vector<Array>& args,
                                                          RunSinks sinks) {
  sinks.meter = &meter_;
  auto taped =
      std::make_unique<Taped>(Taped{InputFrame(t, states), Frame(layouts_.Of(region), nullptr)});
  taped->region.parent = &taped->inputs;
  for (size_t k = 0; k < args.size(); ++k) taped->region.Set(region.args[k], args[k]);
  RegionRunner(program_, layouts_, sinks).Run(region, taped->region);
  return taped;
}

void InstanceRun::Start() {
  state_ = {};
  state_.path = decisions_.InitialState();
  for (const Export& item : program().exports) {
    state_.exports.push_back(ZerosOf(program()[item.value].type));
  }
  watch_.Begin(&state_.health, Phase::kForward, 0);
  CheckInputs(0);
  state_.states = SentStates();
  if (!program().HasInitial()) return;
  const Region& initial = program().initial;
  const auto taped =
      RunTaped(initial, 0, state_.states, {}, {.watch = &watch_, .arithmetic = arithmetic_});
  for (size_t k = 0; k < initial.yields.size(); ++k) {
    state_.states[k] = taped->region.At(initial.yields[k]);
  }
}

ArithmeticCounts* InstanceRun::CountsOf(Role role, std::string_view operation,
                                        std::string_view label) const {
  return arithmetic_ == nullptr ? nullptr : &arithmetic_->Of(role, operation, label, {});
}

void InstanceRun::AddCost(ValueId value, const Frame& frame) {
  const Format format = program_.policy[Role::kObjective].format;
  const double before = state_.cost;
  const double cost = frame.At(value).real[0];
  state_.cost = precision::Add(format, before, cost);
  watch_.SeeSum("cost", program_.objective, Role::kObjective, format, 0, {before, cost},
                state_.cost);
}

void InstanceRun::CountCost(double before, ValueId value, const Frame& frame) const {
  ArithmeticCounts* const counts = CountsOf(Role::kObjective, "cost", program_.objective);
  if (counts == nullptr) return;
  const double cost = frame.At(value).real[0];
  ++counts->results;
  ArithmeticCounter(*counts, {}).Added(before, cost, state_.cost);
  const bool are_finite = precision::IsFinite(before) && precision::IsFinite(cost);
  counts->overflows += are_finite && !precision::IsFinite(state_.cost) ? 1 : 0;
}

void InstanceRun::Step(int64_t t, const StepSinks& sinks) {
  if (state_.health.stopped) return;
  watch_.Begin(&state_.health, Phase::kForward, t);
  if (t > 0) CheckInputs(t);
  if (sinks.decide) decisions_.BeginStep(t, &state_.path, sinks.column);
  int64_t& bytes = tape_bytes_[static_cast<size_t>(t)];
  bytes = 0;
  int64_t values = 0;
  const Region& step = program().step;
  const auto taped = RunTaped(step, t, state_.states, {},
                              {.watch = &watch_,
                               .decisions = sinks.decide ? &decisions_ : nullptr,
                               .ranges = sinks.ranges,
                               .additions = sinks.additions,
                               .arithmetic = arithmetic_,
                               .tape_values = &values,
                               .tape_bytes = &bytes});
  most_kept_ = std::max(most_kept_, bytes + values * kPerValue);
  const double cost_before = state_.cost;
  if (program_.stage_cost != ValueId::kNone) AddCost(program_.stage_cost, taped->region);
  const bool stops = program_.policy.nonfinite == precision::NonFinite::kStop;
  const bool stopped = stops && !state_.health.ok;
  for (size_t k = 0; k < state_.exports.size(); ++k) {
    const Export& item = program().exports[k];
    if (!stopped || item.of_every_step) state_.exports[k] = taped->region.At(item.value);
  }
  if (stopped) {
    state_.health.stopped = true;
    state_.cost = cost_before;
    return;
  }
  if (program_.stage_cost != ValueId::kNone) {
    CountCost(cost_before, program_.stage_cost, taped->region);
  }
  for (size_t k = 0; k < step.yields.size(); ++k) {
    state_.states[k] = taped->region.At(step.yields[k]);
  }
  if (sinks.ranges == nullptr) return;
  for (size_t k = 0; k < state_.states.size(); ++k) {
    StateRange stored;
    NoteState(state_.states[k], StateFormat(program_, state_inputs_[k]), stored);
    sinks.ranges->underflows[static_cast<size_t>(Role::kState)] += stored.subnormals;
    sinks.ranges->overflows[static_cast<size_t>(Role::kState)] += stored.infinities;
  }
}

std::vector<Array> InstanceRun::TerminalArgs() const {
  std::vector<Array> args = state_.states;
  args.insert(args.end(), state_.exports.begin(), state_.exports.end());
  return args;
}

void InstanceRun::Finish() {
  const Region* terminal = TerminalOf(program_);
  const bool stops = program_.policy.nonfinite == precision::NonFinite::kStop;
  if (stops && !state_.health.ok) state_.health.stopped = true;  // `initial` of a run without steps
  if (terminal == nullptr || state_.health.stopped) return;
  watch_.Begin(&state_.health, Phase::kForward, batch_.steps);
  const auto taped = RunTaped(*terminal, batch_.steps, state_.states, TerminalArgs(),
                              {.watch = &watch_, .arithmetic = arithmetic_});
  const double cost_before = state_.cost;
  AddCost(terminal->yields[0], taped->region);
  if (!stops || state_.health.ok) {
    CountCost(cost_before, terminal->yields[0], taped->region);
    return;
  }
  state_.health.stopped = true;
  state_.cost = cost_before;
}

}  // namespace simgrad::sim::reference
