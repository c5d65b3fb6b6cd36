#include "sim/backend/compiled/group/group_inputs.h"

#include <algorithm>

#include "precision/selection.h"
#include "sim/backend/check_batch.h"

namespace simgrad::sim::compiled {
namespace {

bool IsSent(const Batch& batch, size_t input) {
  const InputKind kind = batch.program->program.inputs[input].kind;
  return kind != InputKind::kConfig && kind != InputKind::kStep && IsBound(batch, input);
}

size_t BytesOf(ElementType type) {
  return type == ElementType::kReal || type == ElementType::kI64 ? 8 : 4;
}

void Put(std::byte* to, ElementType type, int64_t i, double real, int64_t integer) {
  switch (type) {
    case ElementType::kReal:
      reinterpret_cast<double*>(to)[i] = real;
      return;
    case ElementType::kI64:
      reinterpret_cast<int64_t*>(to)[i] = integer;
      return;
    case ElementType::kI32:
      reinterpret_cast<int32_t*>(to)[i] = static_cast<int32_t>(static_cast<uint64_t>(integer));
      return;
    case ElementType::kU32:
      reinterpret_cast<uint32_t*>(to)[i] = static_cast<uint32_t>(integer);
      return;
    case ElementType::kU8:
      reinterpret_cast<uint32_t*>(to)[i] = static_cast<uint8_t>(integer);
      return;
    case ElementType::kBool:
      reinterpret_cast<int32_t*>(to)[i] = integer != 0 ? -1 : 0;
  }
}

}  // namespace

std::vector<InputForm> FormsOf(const Batch& batch) {
  std::vector<InputForm> forms;
  for (size_t i = 0; i < batch.program->program.inputs.size(); ++i) {
    const bool sent = IsSent(batch, i);
    const Input& input = batch.program->program.inputs[i];
    const bool by_step = input.weights || batch.inputs[i].per_step;
    forms.push_back({sent && batch.inputs[i].per_instance, sent && batch.inputs[i].per_step,
                     input.kind != InputKind::kState && by_step});
  }
  return forms;
}

GroupInputs::GroupInputs(const Batch& batch, int lanes)
    : batch_(batch),
      lanes_(lanes),
      forms_(FormsOf(batch)),
      values_(forms_.size()),
      pointers_(forms_.size(), nullptr) {}

void GroupInputs::Load(int64_t first, int64_t first_step, int64_t count, WorkMeter& meter) {
  for (size_t i = 0; i < forms_.size(); ++i) {
    // States are fields of the group.
    if (batch_.program->program.inputs[i].kind == InputKind::kState) continue;
    const bool moves = forms_[i].per_step || (forms_[i].per_lane && first != loaded_first_);
    if (loaded_first_ >= 0 && !moves) continue;
    Fill(i, first, first_step, forms_[i].per_step ? count : 1, meter);
    pointers_[i] = values_[i].data();
  }
  loaded_first_ = first;
}

void GroupInputs::Fill(size_t input, int64_t first, int64_t first_step, int64_t count,
                       WorkMeter& meter) {
  const Input& declared = batch_.program->program.inputs[input];
  const Type& type = batch_.program->program[declared.value].type;
  const int64_t elements = ElementCount(type.shape);
  const int64_t lanes = forms_[input].per_lane ? lanes_ : 1;
  LaneMemory& values = values_[input];
  values.assign(static_cast<size_t>(count * elements * lanes) * BytesOf(type.element),
                std::byte{0});
  if (!IsSent(batch_, input)) {
    const double value = declared.default_value.value_or(0.0);
    for (int64_t e = 0; e < elements; ++e) {
      Put(values.data(), type.element, e, value, static_cast<int64_t>(value));
    }
    return;
  }
  const Binding& binding = batch_.inputs[input];
  if (binding.per_step && batch_.steps == 0) return;
  for (int64_t column = 0; column < count; ++column) {
    meter.Add(elements * lanes * kConversionWork);
    const int64_t t = std::min(first_step + column, batch_.steps - 1);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      int64_t row = 0;
      if (binding.per_instance) row = std::min(first + lane, batch_.instances - 1);
      if (binding.per_step) row = row * batch_.steps + t;
      for (int64_t e = 0; e < elements; ++e) {
        const int64_t at = row * elements + e;
        const int64_t to = (column * elements + e) * lanes + lane;
        if (type.element == ElementType::kReal) {
          Put(values.data(), type.element, to, precision::Canonical(binding.tensor.Get(at)), 0);
        } else {
          Put(values.data(), type.element, to, 0.0, binding.tensor.GetInt(at));
        }
      }
    }
  }
}

}  // namespace simgrad::sim::compiled
