#include "precision/float_environment.h"

#include <gtest/gtest.h>

#include <cfenv>

#include "tests/precision/hostile_environment.h"

namespace simgrad::precision {
namespace {

// Out of line and through volatile, so that no operation moves over a change of the environment.
__attribute__((noinline)) double Half(double x) {
  volatile double operand = x;
  return operand * 0.5;
}
__attribute__((noinline)) double AddOut(double a, double b) {
  volatile double operand = a;
  return operand + b;
}

TEST(ScopedFloatEnvironment, RoundsToNearestInsideAndRestoresTheModeOutside) {
  std::fesetround(FE_UPWARD);
  const double outside = AddOut(1.0, 0x1p-60);
  double inside = 0.0;
  {
    ScopedFloatEnvironment environment;
    inside = AddOut(1.0, 0x1p-60);
  }
  const int restored = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(outside, 1 + 0x1p-52);
  EXPECT_EQ(inside, 1.0);
  EXPECT_EQ(restored, FE_UPWARD);
}

#ifdef SIMGRAD_HOSTILE_ENVIRONMENT
TEST(ScopedFloatEnvironment, KeepsSubnormalsInsideAndRestoresFlushingOutside) {
  double outside, inside, after;
  {
    const tests::HostileEnvironment hostile;
    outside = Half(0x1p-1022);
    {
      ScopedFloatEnvironment environment;
      inside = Half(0x1p-1022);
    }
    after = Half(0x1p-1022);
  }
  EXPECT_EQ(outside, 0.0);
  EXPECT_EQ(inside, 0x1p-1023);
  EXPECT_EQ(after, 0.0);
}
#endif

}  // namespace
}  // namespace simgrad::precision
