// The report of a run on a GPU says what was measured, what was asked for, and what failed.
#include "tests/gpu/report.h"

#include "gtest/gtest.h"

namespace simgrad::gpu_check {
namespace {

Report Sample() {
  Report report;
  report.device = "A \"GPU\"";
  report.AddAtLeast("share", 0.75, 0.8);
  report.AddAtMost("overhead", 1.05, "x", 1.1);
  report.section = "speed";
  report.Fail("case 7 differs");
  report.not_run.push_back("the limit: no nvdisasm");
  return report;
}

TEST(ReportTest, AFigureThatFallsShortIsMarkedAndKept) {
  const std::string table = Sample().Markdown();
  EXPECT_NE(table.find("| share | 0.75 | at least 0.8 (missed) |"), std::string::npos) << table;
  EXPECT_NE(table.find("| overhead | 1.05 x | at most 1.1 |"), std::string::npos) << table;
  EXPECT_NE(table.find("**Failed:** case 7 differs"), std::string::npos) << table;
  EXPECT_NE(table.find("- not run: the limit: no nvdisasm"), std::string::npos) << table;
}

TEST(ReportTest, JsonQuotesWhatNeedsIt) {
  const std::string json = Sample().Json();
  EXPECT_NE(json.find(R"("device": "A \"GPU\"")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("met": false)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("failures": ["case 7 differs"])"), std::string::npos) << json;
}

TEST(ReportTest, AFailureIsKeptAsSoonAsItIsFound) {
  std::string kept;
  Report report;
  report.keep = [&](const Report& now) { kept = now.Json(); };
  report.Fail("case 7 differs");
  EXPECT_NE(kept.find(R"("failures": ["case 7 differs"])"), std::string::npos) << kept;
}

}  // namespace
}  // namespace simgrad::gpu_check
