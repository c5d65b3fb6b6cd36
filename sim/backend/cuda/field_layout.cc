#include "sim/backend/cuda/field_layout.h"

#include <cstring>
#include <utility>

#include "precision/selection.h"

namespace simgrad::sim::cuda {
namespace {

// Of a field, so that neighbours of different carriers are aligned for every load.
constexpr int64_t kAlignment = 256;

bool Travels(FieldKind kind) {
  switch (kind) {
    case FieldKind::kState:
    case FieldKind::kExport:
    case FieldKind::kCost:
    case FieldKind::kHealth:
    case FieldKind::kSignature:
    case FieldKind::kLastEvent:
    case FieldKind::kFirstEvent:
      return true;
    default:
      return false;
  }
}

template <class T>
T LoadAt(const std::vector<uint8_t>& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

int64_t CarrierBytes(Carrier carrier) {
  switch (carrier) {
    case Carrier::kF64:
    case Carrier::kI64:
      return 8;
    case Carrier::kF32:
    case Carrier::kI32:
      return 4;
    case Carrier::kBool:
      break;
  }
  return 1;
}

FieldLayout FieldLayout::Of(const GeneratedSource& source, int64_t instances, int64_t steps) {
  FieldLayout layout;
  for (const Field& field : source.fields) {
    FieldPlace place;
    place.travels = Travels(field.kind);
    place.bytes =
        instances * field.elements * (field.per_step ? steps : 1) * CarrierBytes(field.carrier);
    int64_t& end = place.travels ? layout.travelling_bytes : layout.adjoint_bytes;
    place.offset = end;
    end += (place.bytes + kAlignment - 1) / kAlignment * kAlignment;
    layout.places.push_back(place);
  }
  return layout;
}

int FindField(const GeneratedSource& source, FieldKind kind, int32_t index) {
  for (size_t i = 0; i < source.fields.size(); ++i) {
    const Field& field = source.fields[i];
    if (field.kind == kind && field.index == index) return static_cast<int>(i);
  }
  return -1;
}

FieldNumbers::FieldNumbers(const Field& field, Mapping mapping, int64_t instances, int64_t steps,
                           std::vector<uint8_t> bytes)
    : field_(field),
      mapping_(mapping),
      instances_(instances),
      steps_(field.per_step ? steps : 1),
      bytes_(std::move(bytes)) {}

int64_t FieldNumbers::At(int64_t i) const {
  const int64_t element = i % field_.elements;
  const int64_t step = i / field_.elements % steps_;
  const int64_t instance = i / field_.elements / steps_;
  const int64_t inner = mapping_ == Mapping::kThreadPerInstance
                            ? element * instances_ + instance
                            : instance * field_.elements + element;
  return step * instances_ * field_.elements + inner;
}

double FieldNumbers::Real(int64_t i) const {
  const int64_t at = At(i);
  if (field_.carrier == Carrier::kF32) {
    return precision::Canonical(static_cast<double>(LoadAt<float>(bytes_, at)));
  }
  if (field_.carrier == Carrier::kF64) return precision::Canonical(LoadAt<double>(bytes_, at));
  return static_cast<double>(Integer(i));
}

int64_t FieldNumbers::Integer(int64_t i) const {
  const int64_t at = At(i);
  switch (field_.carrier) {
    case Carrier::kI32:
      return LoadAt<int32_t>(bytes_, at);
    case Carrier::kI64:
      return LoadAt<int64_t>(bytes_, at);
    case Carrier::kBool:
      return bytes_[static_cast<size_t>(at)] != 0 ? 1 : 0;
    default:
      return static_cast<int64_t>(Real(i));
  }
}

}  // namespace simgrad::sim::cuda
