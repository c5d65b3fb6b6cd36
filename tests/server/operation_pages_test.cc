// What is printed from the table of operations is what the repository holds.
#include "server/conversion/operation_pages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "sim/op/op_info.h"
#include "simgrad/v1/program.pb.h"
#include "tests/source_tree.h"

namespace simgrad::server::conversion {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(tests::SourcePath(path));
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

TEST(OperationPages, EveryAttributeWithANameIsAFieldOfTheMessage) {
  int named = 0;
  for (int k = 0; k < sim::kAttributeCount; ++k) {
    const std::string name(sim::InfoOf(static_cast<sim::Attribute>(k)).name);
    if (name.empty()) continue;
    ++named;
    EXPECT_NE(v1::Op::descriptor()->FindFieldByName(name), nullptr)
        << name << " would never be sent";
  }
  EXPECT_GT(named, 20);
}

// A comparison becomes a site by other methods than its own.
bool IsOfSites(const std::string& name) { return name == "decision_site" || name == "test_kind"; }

TEST(OperationPages, EveryAttributeIsAParameterOfItsMethod) {
  const std::string page = OperationsPython();
  int parameters = 0;
  sim::EachOp([&](sim::OpCode, const sim::OpInfo& info) {
    const std::string call = "(\"" + std::string(info.name) + "\", ";
    const size_t end = page.find(call);
    if (!info.in_worlds || end == std::string::npos) return;
    const size_t begin = page.rfind("    def ", end);
    const std::string method = page.substr(begin, page.find('\n', end) - begin);
    sim::EachAttribute(info.attributes, [&](sim::Attribute attribute) {
      const std::string name(sim::InfoOf(attribute).name);
      if (name.empty() || IsOfSites(name)) return;
      ++parameters;
      EXPECT_NE(method.find(name + ": "), std::string::npos) << info.name << ", " << name;
      EXPECT_NE(method.find(name + "=" + name), std::string::npos) << info.name << ", " << name;
    });
  });
  EXPECT_GT(parameters, 20);
}

}  // namespace
}  // namespace simgrad::server::conversion
