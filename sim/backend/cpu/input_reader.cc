#include "sim/backend/cpu/input_reader.h"

#include <algorithm>
#include <cstring>

#include "precision/rounding.h"

namespace simgrad::sim::cpu {
namespace {

// A number as a carrier holds it. Bools are 0 and -1; integers wrap to their width.
template <class F>
void StoreNumber(std::byte* to, Carrier carrier, int64_t i, const F& get, bool from_double) {
  switch (carrier) {
    case Carrier::kF64:
      reinterpret_cast<double*>(to)[i] = get.Real();
      return;
    case Carrier::kF32:
      reinterpret_cast<float*>(to)[i] = static_cast<float>(get.Real());
      return;
    default:
      break;
  }
  const int64_t n = from_double ? static_cast<int64_t>(get.Real()) : get.Integer();
  switch (carrier) {
    case Carrier::kI64:
      reinterpret_cast<int64_t*>(to)[i] = n;
      return;
    case Carrier::kI32:
      reinterpret_cast<int32_t*>(to)[i] = static_cast<int32_t>(static_cast<uint64_t>(n));
      return;
    default:
      reinterpret_cast<int32_t*>(to)[i] = n != 0 ? -1 : 0;
      return;
  }
}

struct OneNumber {
  double x;
  double Real() const { return x; }
  int64_t Integer() const { return static_cast<int64_t>(x); }
};

struct TensorNumber {
  const Tensor& tensor;
  int64_t i;
  double Real() const {
    if (tensor.dtype == DType::kF64) {
      double x;
      std::memcpy(&x, tensor.bytes.data() + 8 * i, 8);
      return precision::Canonical(x);
    }
    if (tensor.dtype == DType::kF32) {
      float x;
      std::memcpy(&x, tensor.bytes.data() + 4 * i, 4);
      return precision::Canonical(static_cast<double>(x));
    }
    return tensor.Get(i);
  }
  int64_t Integer() const { return tensor.GetInt(i); }
};

}  // namespace

std::vector<InputForm> InputReader::FormsOf(const Batch& batch) {
  std::vector<InputForm> forms;
  const std::vector<Input>& inputs = batch.program->program.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool own = inputs[i].kind == InputKind::kConfig || inputs[i].kind == InputKind::kStep;
    const bool sent = !own && !batch.inputs[i].tensor.bytes.empty();
    forms.push_back({sent && batch.inputs[i].per_instance, sent && batch.inputs[i].per_step});
  }
  return forms;
}

bool InputReader::IsSent(size_t input) const {
  const InputKind kind = batch_.program->program.inputs[input].kind;
  return kind != InputKind::kConfig && kind != InputKind::kStep &&
         !batch_.inputs[input].tensor.bytes.empty();
}

void InputReader::Load(Machine& m, size_t input, const BlockRows& rows, int64_t t) const {
  const int32_t s = m.plan().inputs[input].slot;
  const Slot& slot = m.slot(s);
  const Input& declared = batch_.program->program.inputs[input];
  const int64_t width = slot.uniform ? kLaneGroup : rows.width;
  std::byte* const to = m.at[s];
  if (!IsSent(input)) {
    const double value = declared.kind == InputKind::kStep ? static_cast<double>(t)
                                                           : declared.default_value.value_or(0.0);
    InPieces(m.meter, slot.count * width, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        StoreNumber(to, slot.carrier, i, OneNumber{value}, true);
      }
    });
    return;
  }
  const Binding& binding = batch_.inputs[input];
  for (int64_t lane = 0; lane < width; ++lane) {
    int64_t entry = 0;
    if (binding.per_instance) entry = rows.first + std::min(lane, rows.lanes - 1);
    if (binding.per_step) entry = entry * batch_.steps + t;
    InPieces(m.meter, slot.count, kConversionWork, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        StoreNumber(to, slot.carrier, e * width + lane,
                    TensorNumber{binding.tensor, entry * slot.count + e}, false);
      }
    });
  }
}

void InputReader::LoadUniform(Machine& m) const {
  for (const LiteralPlan& literal : m.plan().literals) {
    const Slot& slot = m.slot(literal.slot);
    const bool real = slot.carrier == Carrier::kF32 || slot.carrier == Carrier::kF64;
    InPieces(m.meter, slot.count, kLaneGroup, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        double x =
            literal.values.size() == 1 ? literal.values[0] : literal.values[static_cast<size_t>(e)];
        if (real) x = precision::RoundTo(slot.format, x);
        for (int64_t j = 0; j < kLaneGroup; ++j) {
          StoreNumber(m.at[literal.slot], slot.carrier, e * kLaneGroup + j, OneNumber{x}, true);
        }
      }
    });
  }
  for (size_t i = 0; i < m.plan().inputs.size(); ++i) {
    const InputPlan& input = m.plan().inputs[i];
    if (input.slot < 0 || input.per_step || !m.slot(input.slot).uniform) continue;
    Load(m, i, {}, 0);
  }
}

void InputReader::LoadConstant(Machine& m, const BlockRows& rows) const {
  const std::vector<Input>& inputs = batch_.program->program.inputs;
  for (size_t i = 0; i < m.plan().inputs.size(); ++i) {
    const InputPlan& input = m.plan().inputs[i];
    const bool state = inputs[i].kind == InputKind::kState;
    if (input.slot < 0 || state || input.per_step || m.slot(input.slot).uniform) continue;
    Load(m, i, rows, 0);
  }
}

void InputReader::LoadStep(Machine& m, const BlockRows& rows, int64_t t) const {
  const std::vector<Input>& inputs = batch_.program->program.inputs;
  for (size_t i = 0; i < m.plan().inputs.size(); ++i) {
    const InputPlan& input = m.plan().inputs[i];
    if (input.slot < 0 || !input.per_step) continue;
    if (inputs[i].kind == InputKind::kStep) {
      Load(m, i, rows, t);
    } else if (batch_.steps > 0) {
      Load(m, i, rows, std::min(t, batch_.steps - 1));
    } else {
      const Slot& slot = m.slot(input.slot);
      std::memset(
          m.at[input.slot], 0,
          static_cast<size_t>(slot.bytes_per_lane() * (slot.uniform ? kLaneGroup : rows.width)));
    }
  }
}

void InputReader::LoadStates(Machine& m, const BlockRows& rows) const {
  const std::vector<Input>& inputs = batch_.program->program.inputs;
  const Overflow overflow = batch_.program->policy[precision::Role::kState].overflow;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind != InputKind::kState) continue;
    const int32_t s = m.plan().inputs[i].slot;
    const Slot& slot = m.slot(s);
    if (slot.carrier != Carrier::kF32 && slot.carrier != Carrier::kF64) {
      Load(m, i, rows, 0);
      continue;
    }
    const Binding& binding = batch_.inputs[i];
    for (int64_t lane = 0; lane < rows.width; ++lane) {
      const int64_t row = rows.first + std::min(lane, rows.lanes - 1);
      const int64_t first = (binding.per_instance ? row : 0) * slot.count;
      InPieces(m.meter, slot.count, kConversionWork, [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
          double x = inputs[i].default_value.value_or(0.0);
          if (IsSent(i)) x = TensorNumber{binding.tensor, first + e}.Real();
          x = precision::RoundTo(slot.format, x, overflow);
          StoreNumber(m.at[s], slot.carrier, e * rows.width + lane, OneNumber{x}, false);
        }
      });
    }
  }
}

void LoadReals(const std::vector<double>& from, double scale, Format role, const Slot& slot,
               const BlockRows& rows, int64_t entries, int64_t entry, std::byte* to,
               WorkMeter& meter) {
  for (int64_t lane = 0; lane < rows.width; ++lane) {
    const int64_t row = rows.first + std::min(lane, rows.lanes - 1);
    InPieces(meter, slot.count, kConversionWork, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        const double sent = from[static_cast<size_t>((row * entries + entry) * slot.count + e)];
        const double x = precision::RoundTo(slot.format, precision::RoundTo(role, sent * scale));
        StoreNumber(to, slot.carrier, e * rows.width + lane, OneNumber{x}, false);
      }
    });
  }
}

}  // namespace simgrad::sim::cpu
