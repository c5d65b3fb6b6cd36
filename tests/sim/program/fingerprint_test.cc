// Programs keep their text, to the byte: what was lowered before is lowered to the same today.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "tests/sanitized.h"
#include "tests/sim/program/fingerprint_groups.h"
#include "tests/source_tree.h"

namespace simgrad::sim {
namespace {

TEST(Fingerprint, EveryGroupOfProgramsIsWhatItWas) {
  if (kSanitized) GTEST_SKIP() << "other tests lower and differentiate random programs";
  std::ifstream file(tests::TestData("fingerprints.txt"));
  std::map<std::string, fingerprints::Digests> known;
  for (std::string name, meaning, looks; file >> name >> meaning >> looks;) {
    known[name] = {meaning, looks};
  }
  const std::vector<fingerprints::Group> groups = fingerprints::Groups(300);
  ASSERT_EQ(groups.size(), known.size());
  for (const fingerprints::Group& group : groups) {
    const fingerprints::Digests now = group.digests();
    EXPECT_EQ(now.meaning, known[group.name].meaning) << group.name;
    EXPECT_EQ(now.looks, known[group.name].looks) << group.name;
  }
}

}  // namespace
}  // namespace simgrad::sim
