// What is printed from the table of operations is what the repository holds.
#include "server/conversion/operation_pages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace simgrad::server::conversion {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(std::string(SIMGRAD_ROOT) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(OperationPages, TheTableOfTheDocumentIsTheTable) {
  const std::string page = Read("docs/programs.md");
  const std::string begin = "<!-- operations: printed by simgrad-operations -->\n";
  const size_t from = page.find(begin);
  ASSERT_NE(from, std::string::npos);
  const size_t to = page.find("<!-- operations end -->");
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()), OperationsMarkdown())
      << "print it anew with simgrad-operations";
}

TEST(OperationPages, TheBuildersMethodsAreTheTable) {
  EXPECT_EQ(Read("client/python/simgrad/operations.py"), OperationsPython())
      << "print it anew with simgrad-operations --python";
}

}  // namespace
}  // namespace simgrad::server::conversion
