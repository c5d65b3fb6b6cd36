#include "server/conversion/work.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/conversion/enum_names.h"
#include "server/conversion/path.h"
#include "sim/backend/value_tensors.h"
#include "sim/engine/random_keys.h"
#include "sim/program/draws.h"
#include "sim/program/lower.h"
#include "sim/program/paths.h"
#include "sim/program/record_margins.h"

namespace simgrad::server::conversion {
namespace {

using Tensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

// The tensors of a request, by kind and name; the request must outlive this.
class SentTensors {
 public:
  explicit SentTensors(const v1::RolloutSpec& spec) {
    Add(sim::InputKind::kState, spec.initial());
    Add(sim::InputKind::kParam, spec.params());
    Add(sim::InputKind::kControl, spec.controls());
    Add(sim::InputKind::kData, spec.data());
  }
  // Null where it sends none.
  const v1::NamedTensor* Find(sim::InputKind kind, const std::string& name) const {
    const auto of_kind = by_name_.find(kind);
    if (of_kind == by_name_.end()) return nullptr;
    const auto found = of_kind->second.find(name);
    return found == of_kind->second.end() ? nullptr : found->second;
  }

 private:
  void Add(sim::InputKind kind, const Tensors& tensors) {
    if (tensors.empty()) return;
    auto& names = by_name_[kind];
    for (const v1::NamedTensor& tensor : tensors) names.try_emplace(tensor.name(), &tensor);
  }

  std::map<sim::InputKind, std::unordered_map<std::string_view, const v1::NamedTensor*>> by_name_;
};

sim::Tensor TensorFromProto(const v1::Tensor& message) {
  sim::Tensor tensor;
  tensor.dtype = *FromProto(message.dtype());
  tensor.shape.assign(message.shape().begin(), message.shape().end());
  tensor.bytes.assign(message.inline_().begin(), message.inline_().end());
  return tensor;
}

int64_t CountOf(const v1::Tensor& message) {
  return static_cast<int64_t>(message.inline_().size()) /
         static_cast<int64_t>(sim::DTypeSize(*FromProto(message.dtype())));
}

// Integers and bools travel in any of their dtypes and run in the declared one.
sim::Tensor InDeclaredType(sim::Tensor sent, sim::ElementType element, sim::WorkMeter& meter) {
  if (element == sim::ElementType::kReal) return sent;
  const sim::DType dtype = sim::DTypeOfValue({.type = {element, {}}});
  if (dtype == sent.dtype) return sent;
  sim::Tensor tensor = sim::Tensor::Zeros(dtype, sent.shape);
  for (int64_t i = 0, count = sent.count(); i < count; ++i) {
    meter.Add(sim::kConversionWork);
    tensor.SetInt(i, sent.GetInt(i));
  }
  return tensor;
}

sim::Binding BindingFromProto(const v1::NamedTensor& message, const sim::Type& type,
                              sim::WorkMeter& meter) {
  const size_t shared_rank = type.shape.size() + (message.per_step() ? 1 : 0);
  sim::Binding binding;
  binding.tensor = InDeclaredType(TensorFromProto(message.tensor()), type.element, meter);
  binding.per_instance = binding.tensor.shape.size() == shared_rank + 1;
  binding.per_step = message.per_step();
  return binding;
}

std::vector<double> Numbers(const v1::Tensor& message, sim::WorkMeter& meter) {
  const sim::Tensor tensor = TensorFromProto(message);
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(tensor.count()));
  for (int64_t i = 0, count = tensor.count(); i < count; ++i) {
    meter.Add(sim::kConversionWork);
    numbers.push_back(tensor.Get(i));
  }
  return numbers;
}

// States and observables by name; the program must stay.
class FieldIndex {
 public:
  explicit FieldIndex(const sim::Program& program)
      : state_inputs_(program.InputsOf(sim::InputKind::kState)) {
    for (size_t i = 0; i < state_inputs_.size(); ++i) {
      states_.try_emplace(program.inputs[state_inputs_[i]].name, static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < program.exports.size(); ++i) {
      if (!program.exports[i].observable) continue;
      exports_.try_emplace(program.exports[i].name, static_cast<int32_t>(i));
    }
  }
  // Index of a state among the states (states come first among the inputs), or -1.
  int32_t State(const std::string& name) const { return Find(states_, name); }
  int32_t Export(const std::string& name) const { return Find(exports_, name); }
  // The input that a state is.
  int32_t InputOfState(int32_t state) const { return state_inputs_[state]; }

 private:
  using Names = std::unordered_map<std::string_view, int32_t>;
  static int32_t Find(const Names& names, const std::string& name) {
    const auto found = names.find(name);
    return found == names.end() ? -1 : found->second;
  }

  std::vector<int32_t> state_inputs_;
  Names states_;
  Names exports_;
};

sim::Recording RecordingOf(v1::DiagnosticsLevel level) {
  switch (level) {
    case v1::DIAGNOSTICS_LEVEL_OFF:
      return sim::Recording::kCounts;  // of which metrics are made at every level
    case v1::DIAGNOSTICS_LEVEL_INSTANCES:
      return sim::Recording::kInstances;
    default:
      return sim::Recording::kSummary;
  }
}

// Expects a checked message.
sim::LoopChoice LoopChoiceFromProto(const v1::LoopDerivative& message) {
  constexpr int64_t kMaxIter = 100;
  sim::LoopChoice choice;
  choice.site = message.site();
  choice.last = message.truncated();
  if (!message.has_implicit()) return choice;
  const v1::ImplicitDerivative& implicit = message.implicit();
  choice.how = sim::LoopChoice::How::kImplicit;
  choice.solver = implicit.solver() == "lu"          ? sim::LoopChoice::Solver::kLu
                  : implicit.solver() == "iteration" ? sim::LoopChoice::Solver::kIteration
                  : implicit.solver() == "gmres"     ? sim::LoopChoice::Solver::kGmres
                                                     : sim::LoopChoice::Solver::kDefault;
  choice.tol = implicit.tol();
  choice.max_iter = implicit.max_iter() == 0 ? kMaxIter : implicit.max_iter();
  choice.damping = implicit.damping();
  choice.restart = implicit.restart();
  return choice;
}

}  // namespace

sim::AdjointSpec AdjointSpecFromProto(const v1::GradientRequest& request,
                                      const sim::Program& program) {
  sim::AdjointSpec spec;
  spec.objective = request.spec().objective();
  spec.final_state.resize(program.InputsOf(sim::InputKind::kState).size());
  spec.trajectory_state.resize(spec.final_state.size());
  spec.trajectory_export.resize(program.exports.size());
  spec.wanted.resize(program.inputs.size());
  if (request.cotangents_size() > 0) {
    const FieldIndex index(program);
    for (const v1::NamedTensor& sent : request.cotangents(0).final_state()) {
      spec.final_state[index.State(sent.name())] = true;
    }
    for (const v1::NamedTensor& sent : request.cotangents(0).trajectory()) {
      const int32_t state = index.State(sent.name());
      if (state >= 0) {
        spec.trajectory_state[state] = true;
      } else {
        spec.trajectory_export[index.Export(sent.name())] = true;
      }
    }
  }
  for (const v1::LoopDerivative& loop : request.loops()) {
    spec.loops.push_back(LoopChoiceFromProto(loop));
  }
  const SentTensors sent(request.spec());
  std::set<std::pair<v1::InputKind, std::string_view>> wrt;
  for (const v1::InputName& name : request.wrt()) wrt.insert({name.kind(), name.name()});
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const sim::Input& input = program.inputs[i];
    spec.wanted[i] = wrt.empty() ? sent.Find(input.kind, input.name) != nullptr &&
                                       sim::IsDifferentiable(program, input)
                                 : wrt.count({ToProto(input.kind), input.name}) > 0;
  }
  return spec;
}

sim::Work WorkFromProto(const v1::RolloutSpec& spec,
                        std::shared_ptr<const sim::NumericalProgram> program, int64_t instances,
                        const WorkSettings& settings, sim::WorkMeter& meter) {
  sim::Work work;
  const sim::Program& world = program->program;
  work.batch.instances = instances;
  work.batch.steps = spec.steps();
  if (spec.instance_ids_size() > 0) {
    work.batch.instance_ids.assign(spec.instance_ids().begin(), spec.instance_ids().end());
  } else {
    work.batch.instance_ids.resize(static_cast<size_t>(instances));
    for (size_t i = 0; i < work.batch.instance_ids.size(); ++i) {
      work.batch.instance_ids[i] = spec.first_instance() + i;
    }
  }
  const SentTensors tensors(spec);
  for (const sim::Input& input : world.inputs) {
    if (input.name == sim::kRandomKey) {
      work.batch.inputs.push_back(sim::RandomKeys(spec.seed(), work.batch.instance_ids));
      continue;
    }
    if (IsOfPath(input.name)) {
      work.batch.inputs.push_back(PathBinding(spec.path().forced(), input.name));
      continue;
    }
    const v1::NamedTensor* sent = tensors.Find(input.kind, input.name);
    work.batch.inputs.push_back(
        sent == nullptr ? sim::Binding{} : BindingFromProto(*sent, world[input.value].type, meter));
  }
  work.options.recording = RecordingOf(spec.diagnostics().level());
  if (spec.diagnostics().stride() > 0) work.options.stride = spec.diagnostics().stride();
  work.arithmetic_instances = spec.diagnostics().arithmetic_instances();
  work.options.near_band_ulps = settings.near_band_ulps;
  work.options.threads = settings.threads;
  const std::vector<int32_t> states = world.InputsOf(sim::InputKind::kState);
  for (const Recorded& recorded : RecordedFields(spec, *program)) {
    if (recorded.is_state) {
      work.options.record_states.push_back(states[recorded.index]);
    } else {
      work.options.record_exports.push_back(recorded.index);
    }
  }
  work.chunk_steps = spec.chunk_steps();
  work.checkpoint_interval = spec.checkpoint_interval();
  work.memory_budget_bytes = settings.memory_budget_bytes;
  work.batch.program = std::move(program);
  return work;
}

sim::GradientWork GradientWorkFromProto(const v1::GradientRequest& request) {
  sim::GradientWork gradient;
  gradient.reduction = request.reduction() == v1::INSTANCE_REDUCTION_FINITE_ONLY
                           ? sim::InstanceReduction::kFiniteOnly
                           : sim::InstanceReduction::kAll;
  gradient.return_tree = request.return_tree();
  if (request.has_clip_norm()) gradient.clip_norm = request.clip_norm();
  return gradient;
}

sim::Cotangents CotangentsFromProto(const v1::GradientRequest& request, const sim::Program& program,
                                    sim::WorkMeter& meter) {
  sim::Cotangents cotangents;
  cotangents.final_state.resize(program.InputsOf(sim::InputKind::kState).size());
  cotangents.trajectory_state.resize(cotangents.final_state.size());
  cotangents.trajectory_export.resize(program.exports.size());
  if (request.cotangents_size() == 0) return cotangents;
  const FieldIndex index(program);
  for (const v1::NamedTensor& sent : request.cotangents(0).final_state()) {
    cotangents.final_state[index.State(sent.name())] = Numbers(sent.tensor(), meter);
  }
  for (const v1::NamedTensor& sent : request.cotangents(0).trajectory()) {
    const int32_t state = index.State(sent.name());
    if (state >= 0) {
      cotangents.trajectory_state[state] = Numbers(sent.tensor(), meter);
    } else {
      cotangents.trajectory_export[index.Export(sent.name())] = Numbers(sent.tensor(), meter);
    }
  }
  return cotangents;
}

int64_t BytesBeyondSent(const v1::Cotangent& cotangent) {
  int64_t bytes = 0;
  for (const Tensors* tensors : {&cotangent.final_state(), &cotangent.trajectory()}) {
    for (const v1::NamedTensor& sent : *tensors) {
      bytes += static_cast<int64_t>(sizeof(double)) * CountOf(sent.tensor()) -
               static_cast<int64_t>(sent.tensor().inline_().size());
    }
  }
  return bytes;
}

int64_t BytesBeyondSent(const v1::RolloutSpec& spec, const sim::Program& program) {
  const SentTensors tensors(spec);
  int64_t bytes = 0;
  for (const sim::Input& input : program.inputs) {
    const v1::NamedTensor* const sent = tensors.Find(input.kind, input.name);
    const sim::ElementType element = program[input.value].type.element;
    if (sent == nullptr || element == sim::ElementType::kReal) continue;
    const auto size =
        static_cast<int64_t>(sim::DTypeSize(sim::DTypeOfValue({.type = {element, {}}})));
    const auto sent_bytes = static_cast<int64_t>(sent->tensor().inline_().size());
    bytes += std::max<int64_t>(size * CountOf(sent->tensor()) - sent_bytes, 0);
  }
  return bytes;
}

void AddGradient(const v1::GradientRequest& request, sim::Work& work, sim::WorkMeter& meter) {
  work.gradient = GradientWorkFromProto(request);
  work.batch.cotangents = CotangentsFromProto(request, work.batch.program->program, meter);
}

std::vector<Recorded> RecordedFields(const v1::RolloutSpec& spec,
                                     const sim::NumericalProgram& program) {
  const sim::Program& world = program.program;
  std::vector<Recorded> fields;
  std::vector<std::string> names(spec.record().begin(), spec.record().end());
  for (const std::string& site : spec.diagnostics().margins()) {
    names.push_back(sim::MarginExport(site));
  }
  if (spec.path().record() && program.path->bytes > 0) names.push_back(sim::kPathTaken);
  if (names.empty()) return fields;
  const FieldIndex index(world);
  for (const std::string& name : names) {
    Recorded field;
    field.name = name;
    field.index = index.State(name);
    field.is_state = field.index >= 0;
    if (!field.is_state) field.index = index.Export(name);
    const sim::ValueId value = field.is_state ? world.inputs[index.InputOfState(field.index)].value
                                              : world.exports[field.index].value;
    field.shape = world[value].type.shape;
    field.dtype = sim::DTypeOfValue(world[value]);
    fields.push_back(std::move(field));
  }
  return fields;
}

sim::Work WithoutTensors(const sim::Work& work) {
  sim::Work facts;
  facts.batch.program = work.batch.program;
  facts.batch.instances = work.batch.instances;
  facts.batch.steps = work.batch.steps;
  for (const sim::Binding& binding : work.batch.inputs) {
    facts.batch.inputs.push_back({{}, binding.per_instance, binding.per_step});
  }
  facts.options = work.options;
  facts.gradient = work.gradient;
  facts.arithmetic_instances = work.arithmetic_instances;
  return facts;
}

NonFiniteInputs CountNonFinite(const sim::Batch& batch, sim::WorkMeter& meter) {
  NonFiniteInputs counts;
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    const sim::Tensor& tensor = batch.inputs[i].tensor;
    if (tensor.bytes.empty() || tensor.dtype > sim::DType::kE5m2) continue;
    const bool state = batch.program->program.inputs[i].kind == sim::InputKind::kState;
    for (int64_t k = 0, count = tensor.count(); k < count; ++k) {
      meter.Add(sim::kConversionWork);
      const double value = tensor.Get(k);
      if (std::isnan(value)) ++(state ? counts.state_nan : counts.other_nan);
      if (std::isinf(value)) ++(state ? counts.state_inf : counts.other_inf);
    }
  }
  return counts;
}

}  // namespace simgrad::server::conversion
