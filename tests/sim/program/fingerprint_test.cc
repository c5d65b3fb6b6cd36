// Programs keep their text, to the byte: what was lowered before is lowered to the same today.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "tests/sanitized.h"
#include "tests/sim/program/fingerprint_groups.h"

namespace simgrad::sim {
namespace {

TEST(Fingerprint, EveryGroupOfProgramsIsWhatItWas) {
  if (kSanitized) GTEST_SKIP() << "other tests lower and differentiate random programs";
  std::ifstream file(std::string(SIMGRAD_TEST_DATA) + "/fingerprints.txt");
  std::map<std::string, std::string> known;
  for (std::string name, digest; file >> name >> digest;) known[name] = digest;
  const std::vector<fingerprints::Group> groups = fingerprints::Groups(300);
  ASSERT_EQ(groups.size(), known.size());
  for (const fingerprints::Group& group : groups) {
    EXPECT_EQ(group.digest(), known[group.name]) << group.name;
  }
}

}  // namespace
}  // namespace simgrad::sim
