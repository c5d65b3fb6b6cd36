// Sends the spans of requests that ended, in batches, on a thread of its own.
//
// Add never waits: spans beyond `most_waiting` are dropped, all of one request together, and so are
// those that the collector does not take in time. Every span is counted once.
// Threads: Add from any; Close from one. Cost: a lock and a move of each span.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/tracing/collector.h"
#include "server/tracing/otlp.pb.h"

namespace simgrad::server::tracing {

// kDropped: no collector answered for them. kRefused: one said no.
enum class SpanEnd : uint8_t { kSent, kDropped, kRefused };

struct ExportSettings {
  Resource resource;
  Scope scope;
  size_t most_waiting = 4096;  // about a KiB each
  size_t most_of_batch = 512;
  absl::Duration gather = absl::Seconds(1);    // how long a batch that is not full waits for more
  absl::Duration deadline = absl::Seconds(5);  // for one batch
  absl::Duration note_interval = absl::Minutes(1);  // between two notes
};

class SpanExporter {
 public:
  using Count = std::function<void(SpanEnd end, int64_t spans)>;
  using Tell = std::function<void(const std::string& note)>;

  // `count`: called for all spans. `tell`: called where spans are lost, seldom. Both on any thread.
  SpanExporter(std::unique_ptr<Collector> collector, ExportSettings settings, Count count,
               Tell tell);
  // Drops what waits.
  ~SpanExporter();

  // The spans of one request.
  void Add(std::vector<Span> spans);
  // Sends what waits, at most this long, and drops the rest. From now on Add drops.
  void Close(absl::Duration timeout);

 private:
  using Clock = std::chrono::steady_clock;
  void Work();
  std::vector<Span> TakeBatch();  // mutex_ held
  void Send(std::vector<Span> spans);
  void TellOfLoss(const std::string& why);

  const std::unique_ptr<Collector> collector_;
  const ExportSettings settings_;
  const Count count_;
  const Tell tell_;
  std::mutex mutex_;
  std::optional<Clock::time_point> last_note_;
  std::condition_variable came_, filled_, ended_;
  std::deque<Span> waiting_;
  bool is_closing_ = false;
  bool is_cut_ = false;  // the time of Close is over
  bool has_ended_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace simgrad::server::tracing
