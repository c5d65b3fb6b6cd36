#include "precision/hash.h"

#include <gtest/gtest.h>

namespace simgrad::precision {
namespace {

// Vectors: the reference values of the two demos, "path_signature_vectors".
TEST(Hash, PrimitivesMatchTheReferenceVectors) {
  EXPECT_EQ(SplitMix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Fnv1a64("projection"), 0xe6cb463920c97e60u);
  EXPECT_EQ(Fnv1a64(""), 0xcbf29ce484222325u);  // the offset basis
  static_assert(Fnv1a64("projection") == 0xe6cb463920c97e60u, "usable at compile time");
}

TEST(Hash, DecisionsMatchTheReferenceVectors) {
  EXPECT_EQ(DecisionHash(Fnv1a64("projection"), 3, 0, 0, LoopOutcome(2, 0)), 0xfb9c5be446ba922fu);
  EXPECT_EQ(DecisionHash(Fnv1a64("contact"), 5, 0, 2, 1), 0x2012bb793931d579u);
}

// Depressurization: nine elements in contact from the first step on, four steps, and the projection
// loop with the given iterations at the first step and none after it.
uint64_t Depressurization(uint64_t iterations_of_first_step) {
  uint64_t signature = 0;
  for (uint64_t element = 0; element < 9; ++element) {
    signature += DecisionHash(Fnv1a64("contact"), 0, 0, element, 1);
  }
  for (uint64_t step = 0; step < 4; ++step) {
    const uint64_t iterations = step == 0 ? iterations_of_first_step : 0;
    signature += DecisionHash(Fnv1a64("projection"), step, 0, 0, LoopOutcome(iterations, 0));
  }
  return signature;
}

TEST(Hash, PathSignaturesOfTheDemoMatchTheReferenceVectors) {
  EXPECT_EQ(Depressurization(1), 0x84110048478fc9a5u);
  EXPECT_EQ(Depressurization(0), 0x485aff7370119303u);
  EXPECT_EQ(BatchTerm(Depressurization(1), 0), 0xbbf4c2edf1dc51e3u);
}

}  // namespace
}  // namespace simgrad::precision
