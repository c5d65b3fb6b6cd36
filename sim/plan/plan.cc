#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

Register Function::AddRegister(Carrier carrier) {
  registers.push_back(carrier);
  return static_cast<Register>(registers.size()) - 1;
}

BufferId Function::AddBuffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size()) - 1;
}

}  // namespace simgrad::sim::plan
