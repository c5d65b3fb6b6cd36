#include "server/service/self_check.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::server::service {
namespace {

// A probe that could not be tried says nothing of the server.
absl::Status Tried(const SelfCheck::Probe& probe) {
  try {
    return probe.run();
  } catch (const std::exception&) {
    return absl::OkStatus();
  }
}

bool IsHeldUp(const SelfCheck::Probe& probe) { return probe.is_held_up && probe.is_held_up(); }

}  // namespace

// The findings of the threads that probe.
struct SelfCheck::Board {
  struct Entry {
    bool running = false;
    absl::Status last;
    bool held_up = false;  // when it was last asked
  };
  explicit Board(size_t probes) : entries(probes) {}
  bool IsIdle() const {
    return std::none_of(entries.begin(), entries.end(), [](const Entry& e) { return e.running; });
  }

  mutable std::mutex mutex;
  std::condition_variable_any ended;
  std::vector<Entry> entries;
};

SelfCheck::SelfCheck(absl::Duration interval, absl::Duration limit, std::vector<Probe> probes,
                     std::function<void(const absl::Status&)> tell)
    : interval_(interval),
      limit_(limit),
      probes_(std::move(probes)),
      tell_(std::move(tell)),
      board_(std::make_shared<Board>(probes_.size())),
      thread_([this](const std::stop_token& stop) { Work(stop); }) {}

void SelfCheck::Begin() {
  for (size_t i = 0; i < probes_.size(); ++i) {
    {
      const std::lock_guard lock(board_->mutex);
      Board::Entry& entry = board_->entries[i];
      if (entry.running) continue;
      entry = {true, absl::OkStatus(), IsHeldUp(probes_[i])};
    }
    try {
      std::thread([board = board_, probe = probes_[i], i] {
        const absl::Status status = Tried(probe);
        const std::lock_guard lock(board->mutex);
        board->entries[i] = {false, status, false};
        board->ended.notify_all();
      }).detach();
    } catch (const std::exception&) {  // no thread, or no memory
      const std::lock_guard lock(board_->mutex);
      board_->entries[i] = {};
    }
  }
}

absl::Status SelfCheck::Outcome() {
  const std::lock_guard lock(board_->mutex);
  for (size_t i = 0; i < probes_.size(); ++i) {
    Board::Entry& entry = board_->entries[i];
    if (entry.running) {
      const bool was_held_up = std::exchange(entry.held_up, IsHeldUp(probes_[i]));
      if (was_held_up || entry.held_up) continue;
      return absl::DeadlineExceededError(
          absl::StrCat(probes_[i].name, " did not end within ", absl::FormatDuration(limit_)));
    }
    if (!entry.last.ok()) {
      return {entry.last.code(),
              absl::StrCat(probes_[i].name, ": ", std::string(entry.last.message()))};
    }
  }
  return absl::OkStatus();
}

void SelfCheck::Work(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  const auto interval = absl::ToChronoNanoseconds(interval_);
  const auto limit = absl::ToChronoNanoseconds(limit_);
  const auto pause = [&](Clock::time_point until, const std::function<bool()>& enough) {
    std::unique_lock lock(board_->mutex);
    board_->ended.wait_until(lock, stop, until, enough);
  };
  int failures = 0;
  pause(Clock::now() + interval, [] { return false; });
  while (!stop.stop_requested()) {
    const Clock::time_point begin = Clock::now();
    Begin();
    pause(begin + limit, [this] { return board_->IsIdle(); });
    if (stop.stop_requested()) return;
    const absl::Status outcome = Outcome();
    const bool changes = outcome.ok() ? failures > 0 : failures == 0;
    failures = outcome.ok() ? 0 : failures + 1;
    if (changes) tell_(outcome);
    if (failures >= kMostFailures) has_failed_ = true;
    ++checks_;
    pause(begin + interval, [] { return false; });
  }
}

}  // namespace simgrad::server::service
