#include "sim/backend/cuda/run/field_layout.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim::cuda {
namespace {

// The alignment of a field: neighbours of different memory types are aligned for every load.
constexpr int64_t kAlignment = 256;

}  // namespace

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

FieldLayout FieldLayout::Of(const GeneratedSource& source, int64_t instances, int64_t steps) {
  FieldLayout layout;
  for (const Field& field : source.fields) {
    FieldPlace place;
    place.travels = Travels(field.kind);
    if (!field.is_window) {
      // The terminal cost of a run without steps reads a control at time 0, and adds to its gradient there.
      const int64_t entries = field.per_step ? std::max<int64_t>(steps, 1) : 1;
      place.bytes = instances * field.elements * entries * MemoryTypeBytes(field.memory_type);
    }
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
    : memory_type_(field.memory_type),
      extent_{instances, field.per_step ? steps : 1, field.elements},
      bytes_(std::move(bytes)) {
  const bool spread = mapping == Mapping::kThreadPerInstance;
  from_ = {.instance = spread ? 1 : field.elements,
           .step = instances * field.elements,
           .element = spread ? instances : 1};
  to_ = {.instance = extent_.steps * field.elements, .step = field.elements, .element = 1};
}

}  // namespace simgrad::sim::cuda
