// Which lines are written, and what tells of those that are not.
#include "server/service/request_log.h"

#include <gtest/gtest.h>

#include <string>

namespace simgrad::server::service {
namespace {

class RequestLog : public testing::Test {
 protected:
  RequestLog() {
    FlushLog(absl::Seconds(60));
    testing::internal::CaptureStderr();
  }
  ~RequestLog() override { SetUpLog({}); }
  std::string Written() {
    FlushLog(absl::Seconds(60));
    return testing::internal::GetCapturedStderr();
  }
  static void End(const std::string& code, int times = 1) {
    RequestRecord record;
    record.method = "Rollout";
    record.outcome = code;
    for (int i = 0; i < times; ++i) LogRequest(record);
  }
  static int CountOf(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++count;
    return count;
  }
};

TEST_F(RequestLog, ALineSaysWhoseFaultItWas) {
  for (const auto& [code, level] : {std::pair{"OK", "info"},
                                    {"InvalidArgument", "info"},
                                    {"ResourceExhausted", "warning"},
                                    {"Unavailable", "warning"},
                                    {"DeadlineExceeded", "warning"},
                                    {"Internal", "error"}}) {
    RequestRecord record;
    record.outcome = code;
    EXPECT_NE(LogLine(record).find("\"level\":\"" + std::string(level) + "\""), std::string::npos)
        << code;
  }
  Written();
}

TEST_F(RequestLog, WhatIsBelowTheLeastLevelHasNoLine) {
  SetUpLog({.least = LogLevel::kWarning});
  End("OK", 300);
  LogNote(LogLevel::kInfo, "nothing new");
  End("Unavailable");
  LogNote(LogLevel::kWarning, "look here");
  End("Internal");
  const std::string log = Written();
  EXPECT_EQ(CountOf(log, "\n"), 3) << log;
  EXPECT_EQ(CountOf(log, "OK"), 0) << log;
  EXPECT_EQ(CountOf(log, "look here"), 1) << log;
}

TEST_F(RequestLog, OfOneCodeSoManyLinesAreWrittenAndTheOthersCounted) {
  SetUpLog({.lines_per_second = 3});
  End("OK", 2);
  End("Canceled", 100);
  const std::string log = Written();
  EXPECT_EQ(CountOf(log, R"("code":"OK")"), 2) << log;
  const int lines = CountOf(log, R"("code":"Canceled")");
  EXPECT_GE(lines, 3) << log;
  EXPECT_LE(lines, 50) << log;
  int told = 0;
  for (int left_out = 1; left_out <= 100; ++left_out) {
    told += left_out *
            CountOf(log, "\"" + std::to_string(left_out) + " more calls ended with Canceled");
  }
  EXPECT_EQ(lines + told, 100) << log;
}

TEST_F(RequestLog, AllLinesAreWrittenWhereThereIsNoLimit) {
  SetUpLog({.lines_per_second = 0});
  End("OK", 1000);
  EXPECT_EQ(CountOf(Written(), R"("code":"OK")"), 1000);
}

TEST_F(RequestLog, NotesAreLimitedButErrorsAreNot) {
  SetUpLog({.lines_per_second = 2});
  for (int i = 0; i < 50; ++i) LogNote(LogLevel::kWarning, "the same again");
  for (int i = 0; i < 50; ++i) LogNote(LogLevel::kError, "lost");
  const std::string log = Written();
  EXPECT_LE(CountOf(log, "the same again"), 25) << log;
  EXPECT_EQ(CountOf(log, "lost"), 50) << log;
  EXPECT_GE(CountOf(log, "more notes are left out"), 1) << log;
}

}  // namespace
}  // namespace simgrad::server::service
