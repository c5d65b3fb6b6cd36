#include "sim/plan/memory_names.h"

#include <map>
#include <tuple>

namespace simgrad::sim::plan {

std::vector<BufferId> MemoryNames(const Function& function) {
  std::vector<BufferId> names;
  std::map<std::tuple<BufferKind, bool, int32_t>, BufferId> first;
  for (size_t id = 0; id < function.buffers.size(); ++id) {
    const Buffer& buffer = function.buffers[id];
    const BufferId own = static_cast<BufferId>(id);
    // Tables of reals and of integers are numbered apart.
    const bool is_real = buffer.carrier == Carrier::kF32 || buffer.carrier == Carrier::kF64;
    const bool of_reals = buffer.kind == BufferKind::kTable && is_real;
    names.push_back(
        buffer.kind == BufferKind::kLocal
            ? own
            : first.try_emplace({buffer.kind, of_reals, buffer.number}, own).first->second);
  }
  return names;
}

}  // namespace simgrad::sim::plan
