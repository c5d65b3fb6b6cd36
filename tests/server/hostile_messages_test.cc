// Messages that are made to hurt: none takes long, none takes memory beyond what was reserved for
// it, none is our mistake, and none changes a bit of what others get.
//
// A message takes the time until its caller has an answer and no worker is at it any more. Of the
// clock and the processor's time the lesser counts: other work on the machine lengthens the first,
// and two threads that compile side by side double the second. What the server then still does on
// its own account, best code above all, ends before the next message is sent. Under --long the bound
// is two seconds, with a deadline of one; else five times as many. What is over it is sent again.
// Peaks of memory are the kernel's. A failure names seed and index; SIMGRAD_HOSTILE_ONLY=INDEX runs
// that one alone, and SIMGRAD_HOSTILE_ONLY=FIRST-LAST those from FIRST to before LAST. Of these
// SIMGRAD_HOSTILE_FAMILY=WORD runs the families whose names begin with it.
#include "tests/server/hostile_messages.h"

#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <string>

#include "tests/environment.h"
#include "tests/server/good_requests.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

constexpr uint64_t kSeed = 20'260'101;
constexpr auto kDeadline = std::chrono::milliseconds(1000);
constexpr double kMostSeconds = 2.0;
constexpr int64_t kMostBytes = int64_t{256} << 20;

uint64_t MessageCount() { return IsLong() ? 200'000 : 4'000; }
uint64_t ComparisonCount() { return IsLong() ? 20'000 : 300; }
uint64_t ReversalCount() { return IsLong() ? 20'000 : 700; }

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A line of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return 1024 * std::stoll(line.substr(name.size() + 1));
  }
  return 0;
}

// From now on VmHWM is the peak since now.
void ForgetPeak() {
  const int file = open("/proc/self/clear_refs", O_WRONLY);
  EXPECT_GE(file, 0);
  EXPECT_EQ(write(file, "5", 1), 1);
  close(file);
}

// One call with bytes as its request; what comes is counted and thrown away.
grpc::Status Send(RunningServer& server, const HostileMessage& message) {
  const std::string path = std::string("/simgrad.v1.Simgrad/") + NameOf(message.rpc);
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, path, &queue);
  call->StartCall(nullptr);
  grpc::Status status;
  if (next()) {
    // Not a copy: its memory would be counted as the server's, which is in the same process.
    const grpc::Slice slice(message.request.data(), message.request.size(),
                            grpc::Slice::STATIC_SLICE);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    if (next()) {
      for (bool more = true; more;) {
        grpc::ByteBuffer answer;
        call->Read(&answer, nullptr);
        more = next();
      }
    }
  }
  call->Finish(&status, nullptr);
  next();
  return status;
}

bool HasNoWork(RunningServer& server) {
  const service::Server& object = server.server();
  return object.queue().running() == 0 && object.queue().waiting() == 0 &&
         object.preparation().running() == 0 && object.preparation().waiting() == 0;
}

bool IsIdle(RunningServer& server) {
  return HasNoWork(server) && server.server().queue().memory_used_bytes() == 0;
}

// Waits until the threads of this process sleep: compiles that no worker waits for have ended.
void AwaitQuiet() {
  constexpr auto kLook = std::chrono::microseconds(500);
  const double most = 0.2 * std::chrono::duration<double>(kLook).count();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (double before = ProcessorSeconds();;) {
    std::this_thread::sleep_for(kLook);
    const double now = ProcessorSeconds();
    if (now - before < most) return;
    before = now;
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the server never rests";
      return;
    }
  }
}

// What one message cost the process.
struct Cost {
  grpc::Status status;
  double seconds = 0;  // by the clock or of the processor, whichever is less
  double processor_seconds = 0;
  int64_t peak_bytes = 0;      // above what was there before
  int64_t reserved_bytes = 0;  // most at once
};

Cost Measure(RunningServer& server, const HostileMessage& message) {
  Cost cost;
  ForgetPeak();
  const int64_t resident = StatusBytes("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  const double before = ProcessorSeconds();
  std::mutex mutex;
  std::condition_variable done;
  auto answer = std::async(std::launch::async, [&] {
    grpc::Status status = Send(server, message);
    const std::lock_guard<std::mutex> lock(mutex);
    done.notify_all();
    return status;
  });
  // Until the caller has its answer and the server is done with it: a deadline ends the first.
  const auto end = start + std::chrono::seconds(60);
  for (bool worked = true;;) {
    std::unique_lock<std::mutex> lock(mutex);
    done.wait_for(lock, std::chrono::microseconds(200));
    cost.reserved_bytes =
        std::max(cost.reserved_bytes, server.server().queue().memory_used_bytes());
    lock.unlock();
    const bool answered = answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (worked && answered && HasNoWork(server)) {
      worked = false;
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      cost.seconds = std::min(elapsed.count(), ProcessorSeconds() - before);
    }
    if (answered && IsIdle(server)) break;
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "the server is still at it";
      break;
    }
  }
  cost.status = answer.get();
  AwaitQuiet();
  cost.processor_seconds = ProcessorSeconds() - before;
  cost.peak_bytes = StatusBytes("VmHWM") - resident;
  return cost;
}

bool IsAnswer(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::NOT_FOUND:  // a handle
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return true;
    default:
      return false;
  }
}

// With what it says of itself: a field, or a reason.
bool IsExplained(const grpc::Status& status) {
  if (status.ok() || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return true;
  const Details details = DetailsOf(status);
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
    return details.bad_request.field_violations_size() == 1 &&
           !details.bad_request.field_violations(0).field().empty();
  }
  return !details.info.reason().empty();
}

config::ServerConfig Config() {
  config::ServerConfig config = FreePorts();
  config.threads = 1;  // so that a second of the clock is a second of the processor
  config.workers = 1;
  config.program_cache_entries = 16;
  return config;
}

struct Range {
  uint64_t first = 0, last = 0;
  bool is_whole = true;
};

// All `count` indices, or those that SIMGRAD_HOSTILE_ONLY names.
Range Indices(uint64_t count) {
  const char* const only = std::getenv("SIMGRAD_HOSTILE_ONLY");
  if (only == nullptr) return {0, count};
  char* end = nullptr;
  const uint64_t first = std::strtoull(only, &end, 10);
  return {first, *end == '-' ? std::strtoull(end + 1, nullptr, 10) : first + 1, false};
}

// Whether SIMGRAD_HOSTILE_FAMILY, where it is set, names it.
bool IsWanted(const std::string& family) {
  const char* const wanted = std::getenv("SIMGRAD_HOSTILE_FAMILY");
  return wanted == nullptr || family.rfind(wanted, 0) == 0;
}

using Make = std::function<HostileMessage(RunningServer&, uint64_t index)>;

// The least of three times on new servers, which have nothing left of the times before: other work
// on the machine delays one of them, and a message that takes long takes long in each.
double SecondsOnItsOwn(const Make& make, uint64_t index) {
  double least = std::numeric_limits<double>::infinity();
  for (int time = 0; time < 3; ++time) {
    RunningServer server(Config());
    GoodRequests(server).Once();
    AwaitQuiet();
    least = std::min(least, Measure(server, make(server, index)).seconds);
  }
  return least;
}

void ExpectHarmless(uint64_t count, const Make& make) {
  RunningServer server(Config());
  GoodRequests good(server);
  const double slack = IsLong() ? 1 : 5;
  const auto [first, last, is_whole] = Indices(count);
  std::map<int, int64_t> codes;
  std::map<std::string, std::map<int, int64_t>> codes_of;  // by the family's first word
  double worst_seconds = 0, most_processor_seconds = 0;
  int64_t worst_bytes = 0;
  int sent_again = 0;
  std::string slowest, largest;
  AwaitQuiet();
  for (uint64_t index = first; index < last; ++index) {
    const HostileMessage message = make(server, index);
    if (!IsWanted(message.family)) continue;
    SCOPED_TRACE("seed " + std::to_string(kSeed) + " index " + std::to_string(index) + ": " +
                 message.family);
    // One round of good requests beside every fourth; they take some milliseconds of the same time.
    std::thread beside;
    if (index % 4 == 0) beside = std::thread([&] { good.Once(); });
    Cost cost = Measure(server, message);
    if (beside.joinable()) beside.join();
    if (cost.seconds > slack * kMostSeconds) {
      ++sent_again;
      cost.seconds = std::min(cost.seconds, SecondsOnItsOwn(make, index));
    }
    ++codes[cost.status.error_code()];
    ++codes_of[message.family.substr(0, message.family.find(' '))][cost.status.error_code()];
    EXPECT_TRUE(IsAnswer(cost.status)) << cost.status.error_code() << cost.status.error_message();
    EXPECT_TRUE(IsExplained(cost.status)) << cost.status.error_message();
    EXPECT_LE(cost.seconds, slack * kMostSeconds);
    EXPECT_LE(cost.peak_bytes, cost.reserved_bytes + kMostBytes);
    most_processor_seconds = std::max(most_processor_seconds, cost.processor_seconds);
    if (cost.seconds > worst_seconds) {
      worst_seconds = cost.seconds;
      slowest = std::to_string(index) + " " + message.family;
    }
    if (cost.peak_bytes - cost.reserved_bytes > worst_bytes) {
      worst_bytes = cost.peak_bytes - cost.reserved_bytes;
      largest = std::to_string(index) + " " + message.family;
    }
  }
  std::printf(
      "%llu messages of seed %llu; slowest %.3f s (%s); sent again %d; most processor time in all "
      "%.3f s; most "
      "beyond its reservation %.1f MiB (%s)\n",
      static_cast<unsigned long long>(last - first), static_cast<unsigned long long>(kSeed),
      worst_seconds, slowest.c_str(), sent_again, most_processor_seconds,
      static_cast<double>(worst_bytes) / (1 << 20), largest.c_str());
  for (const auto& [family, times_by_code] : codes_of) {
    std::printf("%s:", family.c_str());
    for (const auto& [code, times] : times_by_code)
      std::printf(" code %d %lld times", code, static_cast<long long>(times));
    std::printf("\n");
  }
  EXPECT_TRUE(!is_whole || codes.size() >= 3);  // they are not all refused, nor all run
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  good.Once();
  EXPECT_TRUE(Eventually([&] {
    double in_flight = 0;
    for (const auto& [series, value] : server.Series()) {
      if (series.rfind("simgrad_rpc_in_flight", 0) == 0) in_flight += value;
      if (series == "simgrad_queue_requests") in_flight += value;
    }
    return in_flight == 0;
  }));
}

TEST(HostileMessages, TakeNoTimeNoMemoryAndNothingFromOthers) {
  ExpectHarmless(MessageCount(),
                 [](RunningServer&, uint64_t index) { return MakeHostileMessage(kSeed, index); });
}

TEST(HostileMessages, ThatCompareDoNoHarmEither) {
  ExpectHarmless(ComparisonCount(), [](RunningServer&, uint64_t index) {
    return MakeHostileComparison(kSeed, index);
  });
}

TEST(HostileMessages, ThatKeepAndReverseDoNoHarmEither) {
  ExpectHarmless(ReversalCount(), [](RunningServer& server, uint64_t index) {
    const auto kept = Ask(server, RolloutToReverse());
    EXPECT_TRUE(kept.status.ok()) << kept.status.error_message();
    if (!kept.status.ok()) return HostileMessage{};
    EXPECT_TRUE(kept.result().has_kept());
    return MakeHostileReversal(kSeed, index, kept.result().kept().handle());
  });
}

TEST(HostileMessages, AreTheSameForTheSameSeedAndIndex) {
  for (uint64_t index = 0; index < 200; ++index) {
    const HostileMessage once = MakeHostileMessage(kSeed, index);
    EXPECT_TRUE(once.request == MakeHostileMessage(kSeed, index).request) << once.family;
    const HostileMessage reversal = MakeHostileReversal(kSeed, index, "a.handle");
    EXPECT_TRUE(reversal.request == MakeHostileReversal(kSeed, index, "a.handle").request);
  }
}

}  // namespace
}  // namespace simgrad::server
