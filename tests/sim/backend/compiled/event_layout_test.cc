// The places of last events overlap nowhere, and take a bit for each lane but for choices.
#include "sim/backend/compiled/group/event_layout.h"

#include <vector>

#include "gtest/gtest.h"

namespace simgrad::sim::compiled {
namespace {

TEST(EventLayout, AnEventTakesABitAndAChoiceANumberForEachLane) {
  const std::vector<plan::RecordedSite> events = {
      {.elements = 3}, {.elements = 2, .chooses = true}, {.elements = 1}, {.elements = 5}};
  struct Expected {
    int lanes;
    int64_t word, choice;
    std::vector<int64_t> offsets;
    int64_t bytes;
  };
  for (const Expected& expected :
       {Expected{1, 1, 4, {0, 4, 12, 13}, 18}, Expected{4, 1, 16, {0, 4, 36, 37}, 42},
        Expected{8, 1, 32, {0, 4, 68, 69}, 74}, Expected{16, 2, 64, {0, 8, 136, 138}, 148},
        Expected{32, 4, 128, {0, 12, 268, 272}, 292}}) {
    const EventLayout layout(events, expected.lanes);
    EXPECT_EQ(layout.bytes(), expected.bytes);
    for (int32_t k = 0; k < 4; ++k) {
      EXPECT_EQ(layout.PlaceOf(k).offset, expected.offsets[static_cast<size_t>(k)]);
      EXPECT_EQ(layout.PlaceOf(k).element_bytes, k == 1 ? expected.choice : expected.word);
    }
  }
  EXPECT_EQ(EventLayout({}, 32).bytes(), 0);
}

}  // namespace
}  // namespace simgrad::sim::compiled
