// Many lowered programs, in groups, and one digest of each group: texts, sites, what detection
// looks at, which site gates an input.
//
// tests/data/fingerprints.txt holds the digests. They change only where the meaning of programs
// does.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace simgrad::sim::fingerprints {

struct Group {
  std::string name;
  std::function<std::string()> digest;
};

// `random_cases`: of each kind of random program, in groups of 25.
std::vector<Group> Groups(int random_cases);

}  // namespace simgrad::sim::fingerprints
