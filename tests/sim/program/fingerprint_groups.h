// Many lowered programs, in groups, and digests of each group: of texts and sites, or of which site
// gates an input; and of what detection looks at.
//
// tests/data/fingerprints.txt holds the digests. The first changes only where the meaning of programs
// does, the second also where executors look at other results for the same verdict.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace simgrad::sim::fingerprints {

struct Digests {
  std::string meaning;
  std::string looks;  // "-": of none
  bool operator==(const Digests&) const = default;
};

struct Group {
  std::string name;
  std::function<Digests()> digests;
};

// `random_cases`: of each kind of random program, in groups of 25.
std::vector<Group> Groups(int random_cases);

}  // namespace simgrad::sim::fingerprints
