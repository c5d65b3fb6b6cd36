// One line of JSON per request on stderr, its fields in a fixed order.
//
// Fields: time (UTC), level, event (request or note), request_id, trace_id and parent_span_id where
//   the caller sent a W3C traceparent, method, caller, world, instances, steps, runs (of a Compare), code, the
//   milliseconds of each stage it came to (STAGE_ms, stage_clock.h), other_ms (what no stage
//   claims) and total_ms, their sum; message of an error.
// Threads: any; LogWriter writes, and drops with a count where the reader of stderr stalls. What a
// caller wrote (names) is quoted and cut. Of the requests that end with one code so many a second
// have a line (LogSettings), and of notes; a further note counts the others.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/service/stage_clock.h"

namespace simgrad::server::service {

struct RequestRecord {
  // So many seconds more of a stage, which lie within `extent`.
  void Add(Stage stage, double more, const StageExtent& extent) {
    Add(stage, more);
    Extend(extents[static_cast<size_t>(stage)], extent);
  }
  // So many seconds that began at `first` and that the clock gives to `from` are of `to`.
  void Move(Stage from, Stage to, double moved, SteadyTime first) {
    const std::chrono::duration<double> length(moved);
    Add(from, -moved);
    Add(to, moved, {first, first + std::chrono::duration_cast<SteadyTime::duration>(length)});
  }

  Moment began;
  std::string request_id;
  std::string trace_parent;  // as the caller sent it; may be empty or nonsense
  std::string method;
  std::string caller;  // scheduling/caller.h; empty where it is not known
  std::string peer;    // of one that is not known: PeerOf in caller_identity.h
  std::string world;   // metric label: a built-in world or custom; may be empty
  int64_t instances = 0;
  int64_t steps = 0;
  int64_t runs = 1;     // of a Compare all of them; world and steps are the first one's
  std::string outcome;  // status code as CodeLabel writes it
  std::string message;  // of an error, in full
  // By stage; none: it did not come to it.
  std::array<std::optional<double>, kStageNames.size()> seconds;
  std::array<std::optional<StageExtent>, kStageNames.size()> extents;
  double total_seconds = 0;

 private:
  void Add(Stage stage, double more) {
    std::optional<double>& sum = seconds[static_cast<size_t>(stage)];
    sum = sum.value_or(0.0) + more;
  }
};

// The most that a log line or a span has of a message, in bytes; a span also of a name.
inline constexpr size_t kMostOfText = 300;

enum class LogLevel { kInfo, kWarning, kError };

struct LogSettings {
  LogLevel least = LogLevel::kInfo;  // of the lines that are written
  // The most lines of requests with one code, and of notes below kError; 0: all.
  int64_t lines_per_second = 200;
};
// From now on.
void SetUpLog(const LogSettings& settings);

// kError: the fault is ours; kWarning: the server or the caller's time did not suffice.
LogLevel LevelOf(const RequestRecord& record);
std::string LogLine(const RequestRecord& record);
void LogRequest(const RequestRecord& record);
// Anything else that an operator should read.
void LogNote(LogLevel level, const std::string& text);
// Tells of the lines that were left out so far, and waits until what was logged is written, at most
// this long.
void FlushLog(absl::Duration timeout);

// Unlikely to repeat: 64 random bits, in hex.
std::string NewRequestId();

}  // namespace simgrad::server::service
