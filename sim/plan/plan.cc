#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

int64_t Plan::EventElements() const {
  return events.empty() ? 0 : events.back().first_element + events.back().elements;
}

Register Function::AddRegister(Carrier carrier) {
  registers.push_back(carrier);
  return static_cast<Register>(registers.size()) - 1;
}

BufferId Function::AddBuffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size()) - 1;
}

}  // namespace simgrad::sim::plan
