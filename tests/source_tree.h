// Files of this repository that tests read.
#pragma once

#include <string>

namespace simgrad::tests {

// The path of a file given from the top of the repository, for example "docs/metrics.md".
std::string SourcePath(const std::string& from_top);

// The path of a file of tests/data.
std::string TestData(const std::string& name);

}  // namespace simgrad::tests
