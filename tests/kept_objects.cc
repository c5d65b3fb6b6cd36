// A test program with this file keeps the machine code of its worlds (kept_objects.h).
#include "tests/kept_objects.h"

#include "sim/backend/compiled/machine/object_store.h"

namespace simgrad::tests {
namespace {

[[maybe_unused]] const bool is_kept = [] {
  sim::compiled::KeepObjectsIn(ObjectFolder(), kMostObjectBytes);
  return true;
}();

}  // namespace
}  // namespace simgrad::tests
