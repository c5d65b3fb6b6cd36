#include "server/service/uploads.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::server::service {
namespace {

// The bytes that a call sends beside its message: frames, names, a token.
constexpr int64_t kBesideMessage = 512;
// Bytes of small calls that came at most so long before an upload are counted as the upload's.
constexpr std::chrono::milliseconds kRecently{2};
constexpr int64_t kSmall = int64_t{64} << 10;
// An upload that has lasted less is not looked at: nearly all are complete at once.
constexpr std::chrono::milliseconds kYoung{25};
// Frames and TLS are at most 1 byte for 8 of a message.
int64_t WithFrames(int64_t bytes) { return bytes + bytes / 8; }
// The bytes that gRPC reads of calls that are not taken yet, and of one that is answered unread.
constexpr int64_t kReadAhead = int64_t{16} << 20;
constexpr int64_t kWindow = int64_t{4} << 20;
// gRPC frees what an ended upload held a moment later, on threads of its own, and tells nobody: the
// heap is trimmed these times after much was held.
constexpr std::array<std::chrono::milliseconds, 4> kTrims{
    std::chrono::milliseconds(0), std::chrono::milliseconds(250), std::chrono::milliseconds(2'000),
    std::chrono::milliseconds(10'000)};

scheduling::Refusal TooMuch(int64_t held) {
  return {scheduling::RefusalReason::kMemory,
          absl::StrCat("requests that have not come completely hold ", held,
                       " bytes, more than there is memory for, so this one was given up; send "
                       "fewer at once, or later"),
          absl::Seconds(1)};
}

scheduling::Refusal TooLate(const UploadLimits& limits) {
  return {scheduling::RefusalReason::kDeadline,
          absl::StrCat("the request did not come completely within ",
                       absl::FormatDuration(limits.timeout),
                       ", so it was given up; send less at once (--upload_timeout)"),
          absl::ZeroDuration()};
}

}  // namespace

Uploads::Uploads(UploadLimits limits, scheduling::MemoryBudget& memory, BytesRead bytes_read,
                 Trim trim)
    : limits_(limits),
      bytes_read_(std::move(bytes_read)),
      trim_(std::move(trim)),
      reserved_(*memory.Reserve(0, scheduling::MemoryUse::kUpload)),
      trims_(kTrims.size()) {}

void Uploads::Begin(std::shared_ptr<Upload> upload, const std::string& peer, Origin origin,
                    Clock::time_point now) {
  std::lock_guard lock(mutex_);
  Peer& sender = peers_[peer];
  if (now - kRecently > sender.asked) {
    sender.read = bytes_read_(peer);
    sender.asked = now;
  }
  // A connection of the same name, that has ended, may have left what it delivered.
  const int64_t read = origin.first_of_connection ? 0 : sender.read;
  sender.open.push_back({std::move(upload), now, origin.of_caller,
                         limits_.message_bytes + origin.most_content, read - sender.delivered});
}

void Uploads::Lose(Peer& peer, int64_t bytes) {
  for (Open& one : peer.open) one.lost += bytes;
}

void Uploads::Unread(const std::string& peer) {
  std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(peer); found != peers_.end()) Lose(found->second, kWindow);
}

// Uploads that began later count what had come of this one by then as read before them, until it ends.
std::shared_ptr<Upload> Uploads::Take(Peer& peer, std::vector<Open>::iterator one, int64_t bytes) {
  peer.delivered += bytes;
  for (auto later = std::next(one); later != peer.open.end(); ++later) {
    const int64_t had_come = std::max<int64_t>(later->undelivered - one->undelivered, 0);
    later->undelivered -= std::min(bytes, had_come);
  }
  std::shared_ptr<Upload> upload = std::move(one->upload);
  peer.open.erase(one);
  return upload;
}

std::shared_ptr<Upload> Uploads::TakeUnread(Peer& peer, std::vector<Open>::iterator one,
                                            int64_t bytes) {
  const int64_t most = WithFrames(one->most_bytes);
  std::shared_ptr<Upload> upload = Take(peer, one, bytes);
  Lose(peer, most);
  return upload;
}

void Uploads::End(const Upload* upload, const std::string& peer, int64_t bytes) {
  std::shared_ptr<Upload> last;  // goes without the lock
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  std::vector<Open>& open = found->second.open;
  const auto one = std::find_if(open.begin(), open.end(), [upload](const Open& other) {
    return other.upload.get() == upload;
  });
  if (one == open.end()) return;
  last = bytes > 0 ? Take(found->second, one, bytes + kBesideMessage)
                   : TakeUnread(found->second, one, kBesideMessage);
  const bool is_small = bytes > 0 && bytes <= kSmall;
  if (is_small) return;
  found->second.asked = Clock::time_point::min();
  // The request takes memory of its own now.
  reserved_.Resize(std::max<int64_t>(reserved_.bytes() - bytes, 0));
}

void Uploads::RefuseLate(Clock::time_point now, Refused& refused) {
  for (auto& [name, peer] : peers_) {
    while (!peer.open.empty() &&
           absl::FromChrono(now - peer.open.front().since) >= limits_.timeout) {
      refused.emplace_back(TakeUnread(peer, peer.open.begin(), 0), TooLate(limits_));
    }
  }
}

void Uploads::Measure() {
  held_ = 0;
  for (auto& [name, peer] : peers_) {
    const int64_t undelivered = bytes_read_(name) - peer.delivered;
    peer.held = std::max<int64_t>(undelivered - peer.open.front().undelivered, 0);
    held_ += peer.held;
  }
}

bool Uploads::RefuseOldestOf(Peers::iterator found, const scheduling::Refusal& refusal,
                             Refused& refused) {
  Peer& peer = found->second;
  // Its share, as far as one can tell.
  const int64_t share = peer.held / static_cast<int64_t>(peer.open.size());
  refused.emplace_back(TakeUnread(peer, peer.open.begin(), share), refusal);
  peer.held -= share;
  held_ -= share;
  given_up_ += share;
  if (!peer.open.empty()) return true;
  held_ -= peer.held;
  peers_.erase(found);
  return false;
}

bool Uploads::AreStrangers(const Peer& peer) {
  return std::none_of(peer.open.begin(), peer.open.end(),
                      [](const Open& one) { return one.of_caller; });
}

int64_t Uploads::MostOf(const Peer& peer) {
  if (AreStrangers(peer)) return kMostOfStrangers;
  int64_t most = kReadAhead + peer.open.front().lost;
  for (const Open& one : peer.open) most += WithFrames(one.most_bytes);
  return most;
}

// An upload that was alone throughout has sent all of the bytes itself.
scheduling::Refusal Uploads::TooLong(const Peer& peer, int64_t most) {
  if (AreStrangers(peer)) return TooMuch(peer.held);
  if (peer.open.size() == 1 && peer.open.front().lost == 0) {
    return {scheduling::RefusalReason::kLength,
            absl::StrCat("the request has ", peer.held, " bytes or more, and may have ",
                         peer.open.front().most_bytes, " (--max_request_bytes)"),
            absl::ZeroDuration()};
  }
  return {scheduling::RefusalReason::kMemory,
          absl::StrCat("requests of this connection that have not come completely hold ", peer.held,
                       " bytes, more than the ", most,
                       " that they may have together, so the oldest was given up; send less in "
                       "one request (--max_request_bytes)"),
          absl::Seconds(1)};
}

void Uploads::RefuseTooLong(Refused& refused) {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto next = std::next(peer);
    const Peer& one = peer->second;
    for (int64_t most = MostOf(one); one.held > most; most = MostOf(one)) {
      if (!RefuseOldestOf(peer, TooLong(one, most), refused)) break;
    }
    peer = next;
  }
}

void Uploads::RefuseTooMuch(Refused& refused) {
  while (held_ > 0 && (held_ > limits_.bytes || !reserved_.Resize(held_))) {
    RefuseOldestOf(std::max_element(
                       peers_.begin(), peers_.end(),
                       [](const auto& a, const auto& b) { return a.second.held < b.second.held; }),
                   TooMuch(held_), refused);
  }
}

// Whether a trim is due. The allocator keeps the small pieces that gRPC frees, for each thread that
// has read; trims after much was held give that memory back to the system.
bool Uploads::IsTrimDue(Clock::time_point now) {
  constexpr int64_t kMuch = int64_t{32} << 20;
  most_held_ = std::max(most_held_, held_);
  if (given_up_ >= kMuch || (most_held_ >= 2 * kMuch && held_ < most_held_ / 4)) {
    most_held_ = held_;
    given_up_ = 0;
    much_ended_ = now;
    trims_ = 0;
  }
  if (trims_ == kTrims.size() || now - much_ended_ < kTrims[trims_]) return false;
  ++trims_;
  return true;
}

void Uploads::Look(Clock::time_point now) {
  Refused refused;
  bool trim = false;
  {
    std::lock_guard lock(mutex_);
    RefuseLate(now, refused);
    std::erase_if(peers_, [](const auto& peer) { return peer.second.open.empty(); });
    const bool young = std::all_of(peers_.begin(), peers_.end(), [now](const auto& peer) {
      return now - peer.second.open.front().since < kYoung;
    });
    held_ = 0;
    if (!young) {
      Measure();
      RefuseTooLong(refused);
      RefuseTooMuch(refused);
    }
    reserved_.Resize(held_);
    trim = IsTrimDue(now);
  }
  for (const auto& [upload, refusal] : refused) upload->Refuse(refusal);
  if (trim) trim_();
}

int64_t Uploads::bytes() const {
  std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace simgrad::server::service
