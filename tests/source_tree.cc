#include "tests/source_tree.h"

namespace simgrad::tests {

std::string SourcePath(const std::string& from_top) {
  return std::string(SIMGRAD_SOURCE_TREE) + "/" + from_top;
}

std::string TestData(const std::string& name) { return SourcePath("tests/data/" + name); }

}  // namespace simgrad::tests
