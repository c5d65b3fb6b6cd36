// Images of a text's parts: joined, and whole again.
#include "sim/backend/cuda/compiler/kernel_image.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace simgrad::sim::cuda {
namespace {

TEST(KernelImageTest, WhatIsJoinedComesApartAgain) {
  const std::string binary(
      "\x7f"
      "ELF\0",
      5);
  for (const std::vector<std::string>& images :
       {std::vector<std::string>{binary}, {binary, "other"}, {"", binary, ""}}) {
    const auto parts = SplitImages(JoinImages(images));
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(*parts, images);
  }
}

TEST(KernelImageTest, WhatIsCutOffIsAnError) {
  const std::string joined = JoinImages({"one", "another"});
  const size_t first = JoinImages({"one"}).size();
  for (size_t size = 0; size < joined.size(); ++size) {
    EXPECT_EQ(SplitImages(joined.substr(0, size)).ok(), size == first) << size;
  }
}

}  // namespace
}  // namespace simgrad::sim::cuda
