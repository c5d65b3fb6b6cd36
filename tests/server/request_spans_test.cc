// A record with its stages, and the spans that are made of it.
#include "server/service/request_spans.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

namespace simgrad::server::service {
namespace {

using std::chrono::milliseconds;
using tracing::Span;

constexpr char kSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

RequestRecord Record() {
  RequestRecord record;
  record.request_id = "00000000000000ff";
  record.trace_parent = kSampled;
  record.method = "Gradient";
  record.outcome = "OK";
  record.total_seconds = 1;
  return record;
}

std::map<std::string, const Span*> ByName(const std::vector<Span>& spans) {
  std::map<std::string, const Span*> by_name;
  for (const Span& span : spans) by_name[span.name()] = &span;
  return by_name;
}

int64_t Begin(const RequestRecord& record) { return absl::ToUnixNanos(record.began.wall); }

double OwnSeconds(const Span& span) { return span.attributes(0).value().real(); }

TEST(StageClock, AStageLastsFromItsFirstEntryToItsLastLeave) {
  StageClock clock;
  const SteadyTime before = std::chrono::steady_clock::now();
  clock.Enter(Stage::kForward);
  {
    const WithinStage encode(clock, Stage::kEncode);
    const WithinStage send(clock, Stage::kSend);
  }
  clock.Enter(Stage::kEncode);
  clock.Enter(Stage::kNone);
  const SteadyTime after = std::chrono::steady_clock::now();
  const auto forward = clock.extent(Stage::kForward), encode = clock.extent(Stage::kEncode),
             send = clock.extent(Stage::kSend);
  ASSERT_TRUE(forward && encode && send);
  EXPECT_FALSE(clock.extent(Stage::kAdjoint));
  EXPECT_LE(before, forward->first);
  EXPECT_LE(forward->first, encode->first);
  EXPECT_LE(encode->first, send->first);
  EXPECT_LE(send->last, forward->last);  // it goes on behind them
  EXPECT_LE(forward->last, encode->last);
  EXPECT_LE(encode->last, after);
  for (const Stage stage : {Stage::kForward, Stage::kEncode, Stage::kSend}) {
    const std::chrono::duration<double> lasted =
        clock.extent(stage)->last - clock.extent(stage)->first;
    // Sums of rounded differences.
    EXPECT_LE(clock.seconds(stage), lasted.count() + 1e-9);
  }
}

TEST(RequestSpans, AStageKeepsTheWholeOfItsTimes) {
  RequestRecord record = Record();
  const SteadyTime begin = record.began.steady;
  record.Add(Stage::kQueue, 0.01, {begin + milliseconds(10), begin + milliseconds(20)});
  record.Add(Stage::kQueue, 0.02, {begin + milliseconds(50), begin + milliseconds(70)});
  const std::vector<Span> spans = SpansOf(record);
  ASSERT_EQ(spans.size(), 2u);
  const Span &parent = spans[0], &queue = spans[1];
  EXPECT_EQ(parent.name(), "simgrad.v1.Simgrad/Gradient");
  EXPECT_EQ(queue.name(), "queue");
  EXPECT_EQ(queue.parent_span_id(), parent.span_id());
  EXPECT_EQ(queue.trace_id(), parent.trace_id());
  EXPECT_EQ(queue.start_time_unix_nano() - parent.start_time_unix_nano(), 10'000'000u);
  EXPECT_EQ(queue.end_time_unix_nano() - parent.start_time_unix_nano(), 70'000'000u);
  EXPECT_DOUBLE_EQ(OwnSeconds(queue), 0.03);
}

TEST(RequestSpans, TimeThatMovesToAnotherStageIsOfThatStageAlone) {
  RequestRecord record = Record();
  const SteadyTime begin = record.began.steady;
  record.Move(Stage::kStart, Stage::kCompile, 0.2, begin + milliseconds(100));
  record.Add(Stage::kStart, 0.5, {begin + milliseconds(100), begin + milliseconds(600)});
  const std::vector<Span> spans = SpansOf(record);
  auto by_name = ByName(spans);
  ASSERT_EQ(by_name.size(), 3u);
  EXPECT_DOUBLE_EQ(OwnSeconds(*by_name["start"]), 0.3);
  EXPECT_DOUBLE_EQ(OwnSeconds(*by_name["compile"]), 0.2);
  EXPECT_EQ(static_cast<int64_t>(by_name["compile"]->end_time_unix_nano()) - Begin(record),
            300'000'000);
  EXPECT_EQ(static_cast<int64_t>(by_name["start"]->end_time_unix_nano()) - Begin(record),
            600'000'000);
}

TEST(RequestSpans, NoStageLeavesTheSpanOfItsRequest) {
  RequestRecord record = Record();
  const SteadyTime begin = record.began.steady;
  record.Add(Stage::kSend, 3, {begin - milliseconds(5), begin + milliseconds(2000)});
  const std::vector<Span> spans = SpansOf(record);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].start_time_unix_nano(), spans[0].start_time_unix_nano());
  EXPECT_EQ(spans[1].end_time_unix_nano(), spans[0].end_time_unix_nano());
}

TEST(RequestSpans, OnlyATraceThatItsCallerRecordsHasSpans) {
  RequestRecord record = Record();
  for (const char* silent : {"", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                             "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "x"}) {
    record.trace_parent = silent;
    EXPECT_TRUE(SpansOf(record).empty()) << silent;
  }
}

TEST(RequestSpans, TheStatusIsAnErrorWhereTheConventionForServersSaysSo) {
  RequestRecord record = Record();
  record.message = "why";
  for (const auto& [outcome, code, is_error] : {std::tuple{"OK", 0, false},
                                                {"Canceled", 1, false},
                                                {"InvalidArgument", 3, false},
                                                {"DeadlineExceeded", 4, true},
                                                {"NotFound", 5, false},
                                                {"ResourceExhausted", 8, false},
                                                {"FailedPrecondition", 9, false},
                                                {"Unimplemented", 12, true},
                                                {"Internal", 13, true},
                                                {"Unavailable", 14, true},
                                                {"Unauthenticated", 16, false}}) {
    record.outcome = outcome;
    const Span span = SpansOf(record).at(0);
    EXPECT_EQ(span.attributes(3).key(), "rpc.grpc.status_code");
    EXPECT_EQ(span.attributes(3).value().integer(), code) << outcome;
    EXPECT_EQ(span.status().code() == tracing::SpanStatus::CODE_ERROR, is_error) << outcome;
    EXPECT_EQ(span.status().message(), is_error ? "why" : "") << outcome;
  }
}

TEST(RequestSpans, TextIsUtf8AndCutWhateverItWas) {
  RequestRecord record = Record();
  record.outcome = "Internal";
  record.message = "\xFF" + std::string(1000, 'x');
  record.caller = "m\xC3\xBCller\x80";
  const Span span = SpansOf(record).at(0);
  EXPECT_EQ(span.status().message(), "\xC3\xBF" + std::string(kMostOfText - 1, 'x'));
  EXPECT_EQ(span.attributes(5).key(), "simgrad.caller");
  EXPECT_EQ(span.attributes(5).value().text(), "m\xC3\x83\xC2\xBCller\xC2\x80");
}

}  // namespace
}  // namespace simgrad::server::service
