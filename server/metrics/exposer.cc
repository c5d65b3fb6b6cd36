#include "server/metrics/exposer.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "server/listening_sockets.h"

namespace simgrad::server::metrics {
namespace {

constexpr size_t kReserve = 4;
// At once, so that those that are open have their turn.
constexpr int kMostAccepted = 64;
// How long not to try where the process has no descriptor left, not even a reserved one.
constexpr std::chrono::milliseconds kNoDescriptorPause{20};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Create(
    const std::string& address, int port,
    std::vector<std::shared_ptr<prometheus::Collectable>> collectables) {
  std::unique_ptr<Exposer> exposer(new Exposer());
  exposer->collectables_ = std::move(collectables);
  auto listening = ListenOn(address, port);
  if (!listening.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ", port ", port,
                                               ": ", listening.status().message(),
                                               "; is the port taken? --metrics_port=0 picks one"));
  }
  exposer->listeners_ = std::move(listening->sockets);
  exposer->port_ = listening->port;
  exposer->stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!exposer->stop_) return absl::UnavailableError("cannot serve metrics: no descriptor is left");
  exposer->FillReserve();
  exposer->thread_ = std::thread([self = exposer.get()] { self->Serve(); });
  return exposer;
}

Exposer::~Exposer() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.number(), 1);
  thread_.join();
}

void Exposer::Serve() {
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = Round();
    } catch (const std::bad_alloc&) {
      connections_.clear();
    }
  }
}

bool Exposer::Round() {
  Clock::time_point now = Clock::now();
  const bool accepting = now >= accept_after_;
  waits_.assign({{stop_.number(), POLLIN, 0}});
  for (const Descriptor& listener : listeners_) {
    waits_.push_back({accepting ? listener.number() : -1, POLLIN, 0});
  }
  const size_t first = waits_.size();
  for (const auto& connection : connections_) {
    waits_.push_back({connection->socket(), connection->events(), 0});
  }
  poll(waits_.data(), waits_.size(), PollTimeout(now));
  if (waits_[0].revents != 0) return false;
  now = Clock::now();
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (waits_[first + i].revents != 0) connections_[i]->OnReady(now);
  }
  AnswerAll(now);
  std::erase_if(connections_,
                [now](const auto& each) { return each->IsOver() || now >= each->deadline(); });
  for (size_t i = 0; i < listeners_.size(); ++i) {
    if (waits_[1 + i].revents != 0) Accept(listeners_[i], now);
  }
  FillReserve();
  return true;
}

void Exposer::Accept(const Descriptor& listener, Clock::time_point now) {
  for (int i = 0; i < kMostAccepted; ++i) {
    Descriptor socket(accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      Add(std::move(socket), now);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (!reserve_.empty() && (errno == EMFILE || errno == ENFILE)) {
      reserve_.pop_back();
      continue;
    }
    accept_after_ = now + kNoDescriptorPause;
    return;
  }
}

void Exposer::Add(Descriptor socket, Clock::time_point now) {
  if (connections_.size() >= kMaxConnections) {
    const auto silent = std::find_if(connections_.begin(), connections_.end(),
                                     [](const auto& each) { return each->IsReading(); });
    connections_.erase(silent == connections_.end() ? connections_.begin() : silent);
  }
  connections_.push_back(std::make_unique<ScrapeConnection>(std::move(socket), now));
  // Mostly the request is there already.
  connections_.back()->OnReady(now);
}

// The page is made after the last request of a round has come, once for all of them.
void Exposer::AnswerAll(Clock::time_point now) {
  std::shared_ptr<const std::string> page;
  for (const auto& connection : connections_) {
    if (!connection->IsAsking()) continue;
    if (page == nullptr) page = Page();
    connection->Answer(page, now);
  }
}

// Null where there is no memory for it.
std::shared_ptr<const std::string> Exposer::Page() {
  // Collectors that read files need a descriptor.
  if (!reserve_.empty()) reserve_.pop_back();
  try {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& collectable : collectables_) {
      for (prometheus::MetricFamily& family : collectable->Collect()) {
        families.push_back(std::move(family));
      }
    }
    std::ostringstream page;
    prometheus::TextSerializer().Serialize(page, families);
    return std::make_shared<const std::string>(page.str());
  } catch (const std::exception&) {
    return nullptr;
  }
}

void Exposer::FillReserve() {
  while (reserve_.size() < kReserve) {
    Descriptor spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!spare) return;
    reserve_.push_back(std::move(spare));
  }
}

// Milliseconds until the first deadline; -1: there is none.
int Exposer::PollTimeout(Clock::time_point now) const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& connection : connections_) {
    first = connection->IsAsking() ? now : std::min(first, connection->deadline());
  }
  if (now < accept_after_) first = std::min(first, accept_after_);
  if (first == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - now);
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

}  // namespace simgrad::server::metrics
