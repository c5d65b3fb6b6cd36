// Operations of integers against C++'s own.
#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/integer_world.h"

namespace simgrad::tests {
namespace {

TEST(IntegerOperationTest, GivesWhatCppComputes) { ExpectIntegersOn(sim::MakeReferenceExecutor()); }

}  // namespace
}  // namespace simgrad::tests
