#include "sim/backend/compiled/group/group_state.h"

#include <algorithm>

#include "sim/backend/compiled/group/event_layout.h"

namespace simgrad::sim::compiled {

using plan::Carrier;

FieldLayout::FieldLayout(const std::vector<plan::Field>& fields, int lanes) : lanes_(lanes) {
  for (const plan::Field& field : fields) {
    offsets_.push_back(bytes_);
    // Each begins where any number may.
    constexpr int64_t kAlignment = 8;
    const int64_t bytes = field.count * lanes * BytesOf(field.carrier);
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

size_t TravellingFields(const plan::Plan& plan) {
  size_t count = 0;
  while (count < plan.fields.size() && plan.fields[count].kind <= plan::FieldKind::kCost) ++count;
  return count;
}

GroupLayout::GroupLayout(const plan::Plan& plan, int lanes) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kNumber = 8;
  const FieldLayout fields(plan.fields, lanes);
  const size_t travelling = TravellingFields(plan);
  health = travelling < plan.fields.size() ? fields.offset(travelling) : fields.bytes();
  signatures = health + kNumber * lanes;
  first_events = signatures + kNumber * lanes;
  last_events = first_events + kNumber * lanes * static_cast<int64_t>(plan.events.size());
  bytes = last_events + EventLayout(plan.events, lanes).bytes();
  bytes = (bytes + kLine - 1) / kLine * kLine;
}

GroupStates::GroupStates(const plan::Plan& plan, int lanes, int64_t groups)
    : layout_(plan, lanes),
      lanes_(lanes),
      groups_(groups),
      events_(static_cast<int64_t>(plan.events.size())) {}

void GroupStates::Clear(WorkMeter& meter) {
  memory_.clear();
  ResizeInPieces(meter, memory_, static_cast<size_t>(bytes()));
  for (int64_t group = 0; group < groups_; ++group) {
    meter.Add((1 + events_) * lanes_);
    std::ranges::fill(health(group), -1);
    std::fill_n(first_events(group), events_ * lanes_, -1);
  }
}

LaneMemory GroupStates::Save(WorkMeter& meter) const {
  LaneMemory saved;
  ResizeInPieces(meter, saved, memory_.size());
  CopyInPieces(meter, saved.data(), memory_.data(), bytes());
  return saved;
}

void GroupStates::Restore(const LaneMemory& saved, WorkMeter& meter) {
  if (memory_.empty()) ResizeInPieces(meter, memory_, saved.size());
  CopyInPieces(meter, memory_.data(), saved.data(), bytes());
}

double ReadReal(const std::byte* field, Carrier carrier, int64_t i) {
  return carrier == Carrier::kF64 ? reinterpret_cast<const double*>(field)[i]
                                  : reinterpret_cast<const float*>(field)[i];
}

void WriteReal(std::byte* field, Carrier carrier, int64_t i, double x) {
  if (carrier == Carrier::kF64) {
    reinterpret_cast<double*>(field)[i] = x;
  } else {
    reinterpret_cast<float*>(field)[i] = static_cast<float>(x);
  }
}

int64_t ReadInteger(const std::byte* field, Carrier carrier, int64_t i) {
  if (carrier == Carrier::kI64) return reinterpret_cast<const int64_t*>(field)[i];
  if (IsUnsigned(carrier)) return reinterpret_cast<const uint32_t*>(field)[i];
  const int32_t n = reinterpret_cast<const int32_t*>(field)[i];
  return carrier == Carrier::kBool ? (n != 0 ? 1 : 0) : n;
}

void WriteInteger(std::byte* field, Carrier carrier, int64_t i, int64_t n) {
  if (carrier == Carrier::kI64) {
    reinterpret_cast<int64_t*>(field)[i] = n;
  } else if (carrier == Carrier::kBool) {
    reinterpret_cast<int32_t*>(field)[i] = n != 0 ? -1 : 0;
  } else if (carrier == Carrier::kU8) {
    reinterpret_cast<uint32_t*>(field)[i] = static_cast<uint8_t>(n);
  } else {
    reinterpret_cast<int32_t*>(field)[i] = static_cast<int32_t>(static_cast<uint64_t>(n));
  }
}

}  // namespace simgrad::sim::compiled
