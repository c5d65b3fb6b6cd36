#include "sim/backend/compiled/group_state.h"

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
