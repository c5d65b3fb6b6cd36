// Spans that are sent, dropped and refused: each is counted once, and nothing waits for a collector.
#include "server/tracing/span_exporter.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"

namespace simgrad::server::tracing {
namespace {

// The counts and notes of an exporter, and the batches that its collector got.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<int64_t, 3> counts{};  // [SpanEnd]
  std::vector<std::string> notes;
  std::vector<std::vector<std::string>> batches;  // names of spans

  int64_t count(SpanEnd end) {
    const std::lock_guard lock(mutex);
    return counts[static_cast<size_t>(end)];
  }
  void AwaitCounted(int64_t spans) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return counts[0] + counts[1] + counts[2] >= spans; });
  }
};

// A collector whose answers a test gives: how many spans it refuses.
class FakeCollector final : public Collector {
 public:
  using Answer = std::function<absl::StatusOr<int64_t>()>;
  FakeCollector(Board* board, Answer answer) : board_(board), answer_(std::move(answer)) {}

  absl::StatusOr<PartialSuccess> Export(const ExportRequest& request, absl::Time) override {
    std::vector<std::string> names;
    for (const Span& span : request.resource_spans(0).scope_spans(0).spans()) {
      names.push_back(span.name());
    }
    {
      const std::lock_guard lock(board_->mutex);
      board_->batches.push_back(std::move(names));
    }
    const absl::StatusOr<int64_t> refused = answer_();
    if (!refused.ok()) return refused.status();
    PartialSuccess success;
    success.set_rejected_spans(*refused);
    if (*refused > 0) success.set_error_message("no such tenant");
    return success;
  }
  void Stop() override {
    if (!stopped_.HasBeenNotified()) stopped_.Notify();
  }
  absl::Notification& stopped() { return stopped_; }

 private:
  Board* const board_;
  const Answer answer_;
  absl::Notification stopped_;
};

std::vector<Span> Request(int spans, const std::string& name = "a request") {
  std::vector<Span> request(static_cast<size_t>(spans));
  for (Span& span : request) span.set_name(name);
  return request;
}

constexpr absl::Duration kLong = absl::Minutes(10);  // far more than closing takes

ExportSettings Small() {
  ExportSettings settings;
  settings.most_waiting = 10;
  settings.most_of_batch = 4;
  settings.gather = absl::ZeroDuration();
  return settings;
}

class SpanExporterTest : public testing::Test {
 protected:
  std::unique_ptr<SpanExporter> Exporter(std::unique_ptr<Collector> collector,
                                         ExportSettings settings) {
    return std::make_unique<SpanExporter>(
        std::move(collector), std::move(settings),
        [this](SpanEnd end, int64_t spans) {
          const std::lock_guard lock(board_.mutex);
          board_.counts[static_cast<size_t>(end)] += spans;
          board_.changed.notify_all();
        },
        [this](const std::string& note) {
          const std::lock_guard lock(board_.mutex);
          board_.notes.push_back(note);
        });
  }
  std::unique_ptr<SpanExporter> Answering(FakeCollector::Answer answer,
                                          ExportSettings settings = Small()) {
    return Exporter(std::make_unique<FakeCollector>(&board_, std::move(answer)),
                    std::move(settings));
  }

  Board board_;
};

TEST_F(SpanExporterTest, ASlowCollectorFillsTheQueueAndWhatIsBeyondIsDropped) {
  absl::Notification called, go_on;
  const auto exporter = Answering([&]() -> absl::StatusOr<int64_t> {
    if (!called.HasBeenNotified()) called.Notify();
    go_on.WaitForNotification();
    return 0;
  });
  exporter->Add(Request(1, "first"));
  called.WaitForNotification();
  // Ten may wait: two requests of four spans, and of a third not even a part.
  for (int i = 0; i < 3; ++i) exporter->Add(Request(4));
  EXPECT_EQ(board_.count(SpanEnd::kDropped), 4);
  exporter->Add(Request(2));
  exporter->Add(Request(1));
  EXPECT_EQ(board_.count(SpanEnd::kDropped), 5);
  ASSERT_EQ(board_.notes.size(), 1u);
  EXPECT_NE(board_.notes[0].find("too many wait"), std::string::npos);
  go_on.Notify();
  exporter->Close(kLong);
  EXPECT_EQ(board_.count(SpanEnd::kSent), 11);
  ASSERT_EQ(board_.batches.size(), 4u);
  EXPECT_EQ(board_.batches[0], std::vector<std::string>{"first"});
  for (const size_t full : {1, 2}) EXPECT_EQ(board_.batches[full].size(), 4u);
  EXPECT_EQ(board_.batches[3].size(), 2u);
}

TEST_F(SpanExporterTest, SpansAreGatheredUntilABatchIsFull) {
  ExportSettings settings = Small();
  settings.gather = absl::Hours(1);
  const auto exporter = Answering([] { return 0; }, settings);
  for (int i = 0; i < 4; ++i) exporter->Add(Request(1));
  board_.AwaitCounted(4);
  EXPECT_EQ(board_.batches.size(), 1u);
}

TEST_F(SpanExporterTest, ClosingSendsWhatWaitsAndThenDrops) {
  ExportSettings settings = Small();
  settings.gather = absl::Hours(1);
  const auto exporter = Answering([] { return 0; }, settings);
  exporter->Add(Request(3));
  exporter->Close(kLong);
  EXPECT_EQ(board_.count(SpanEnd::kSent), 3);
  exporter->Add(Request(2));
  EXPECT_EQ(board_.count(SpanEnd::kDropped), 2);
}

TEST_F(SpanExporterTest, ClosingIsOverInTimeThoughTheCollectorHangs) {
  FakeCollector* hanging = nullptr;
  auto collector =
      std::make_unique<FakeCollector>(&board_, [&hanging]() -> absl::StatusOr<int64_t> {
        hanging->stopped().WaitForNotification();
        return absl::CancelledError("stopped");
      });
  hanging = collector.get();
  auto exporter = Exporter(std::move(collector), Small());
  for (int i = 0; i < 2; ++i) exporter->Add(Request(4));
  exporter->Close(absl::Milliseconds(10));
  exporter.reset();
  EXPECT_EQ(board_.count(SpanEnd::kDropped), 8);
  EXPECT_EQ(board_.count(SpanEnd::kSent), 0);
}

TEST_F(SpanExporterTest, AnAnswerSaysHowManyOfABatchAreRefused) {
  for (const auto& [told, refused] : {std::pair<int64_t, int64_t>{1, 1}, {99, 3}, {-1, 0}}) {
    board_.counts = {};
    const auto exporter = Answering([told = told] { return told; });
    exporter->Add(Request(3));
    exporter->Close(kLong);
    EXPECT_EQ(board_.count(SpanEnd::kRefused), refused) << told;
    EXPECT_EQ(board_.count(SpanEnd::kSent), 3 - refused) << told;
  }
  EXPECT_NE(board_.notes.at(0).find("it refused 1 of 3: no such tenant"), std::string::npos);
}

TEST_F(SpanExporterTest, WithoutAnAnswerSpansAreDroppedAndAnotherErrorRefusesThem) {
  for (const auto& [error, end] :
       {std::pair{absl::UnavailableError("away"), SpanEnd::kDropped},
        std::pair{absl::DeadlineExceededError("slow"), SpanEnd::kDropped},
        std::pair{absl::InvalidArgumentError("no"), SpanEnd::kRefused},
        std::pair{absl::UnimplementedError("no such service"), SpanEnd::kRefused}}) {
    board_.counts = {};
    const auto exporter = Answering([error = error] { return error; });
    exporter->Add(Request(3));
    exporter->Close(kLong);
    EXPECT_EQ(board_.count(end), 3) << error;
  }
}

TEST_F(SpanExporterTest, OfLossesThatFollowEachOtherOneIsTold) {
  const auto exporter = Answering([] { return absl::UnavailableError("away"); });
  for (int i = 1; i <= 5; ++i) {
    exporter->Add(Request(1));
    board_.AwaitCounted(i);
  }
  exporter->Close(kLong);
  ASSERT_EQ(board_.notes.size(), 1u);
  EXPECT_NE(board_.notes[0].find("away"), std::string::npos);
}

}  // namespace
}  // namespace simgrad::server::tracing
