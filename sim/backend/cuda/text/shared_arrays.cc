#include "sim/backend/cuda/text/shared_arrays.h"

#include <algorithm>

namespace simgrad::sim::cuda {
namespace {

int64_t ElementBytes(plan::Carrier carrier) {
  return carrier == plan::Carrier::kBool ? 1 : plan::BytesOf(carrier);
}

int64_t BytesIn(const plan::Buffer& buffer) {
  constexpr int64_t kAlignment = 16;
  return (buffer.count * ElementBytes(buffer.carrier) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

SharedArrays::SharedArrays(const plan::Function& function, const ElementOwners& owners,
                           Mapping mapping)
    : places_(function.buffers.size()) {
  if (mapping == Mapping::kBlockPerInstance) PlaceIn(function.statements, function, owners, 0);
}

// Places the arrays that a block declares from `used` on; their memory is free again behind it.
void SharedArrays::PlaceIn(const std::vector<plan::Statement>& statements,
                           const plan::Function& function, const ElementOwners& owners,
                           int64_t used) {
  for (const plan::Statement& s : statements) {
    if (s.code == plan::Code::kDeclare && owners.IsShared(s.buffer)) {
      const size_t id = static_cast<size_t>(s.buffer);
      const int64_t begin = used;
      used += BytesIn(function.buffers[id]);
      places_[id] = {begin, used};
      bytes_ = std::max(bytes_, used);
    }
    PlaceIn(s.body, function, owners, used);
  }
}

bool SharedArrays::Overlap(plan::BufferId a, plan::BufferId b) const {
  const Place& first = places_[static_cast<size_t>(a)];
  const Place& second = places_[static_cast<size_t>(b)];
  return first.begin < second.end && second.begin < first.end;
}

}  // namespace simgrad::sim::cuda
