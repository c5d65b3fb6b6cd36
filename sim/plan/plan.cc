#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

std::string_view SuffixOf(const Value& value) {
  if (value.type.element == ElementType::kReal) return precision::FormatName(*value.format);
  return CarrierName(CarrierOf(value));
}

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
