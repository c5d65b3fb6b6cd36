#include "server/metrics/scrape_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace simgrad::server::metrics {
namespace {

// Whether the socket is as it should be and only has nothing for us now.
bool IsOnlyLater() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

ScrapeConnection::ScrapeConnection(Descriptor socket, Clock::time_point now)
    : socket_(std::move(socket)), deadline_(now + kRequestTime) {}

short ScrapeConnection::events() const { return state_ == State::kSending ? POLLOUT : POLLIN; }

void ScrapeConnection::OnReady(Clock::time_point now) {
  switch (state_) {
    case State::kReading:
      return Receive();
    case State::kSending:
      return Send(now);
    case State::kEnding:
      return AwaitEnd();
    case State::kAsking:
    case State::kOver:
      return;
  }
}

void ScrapeConnection::Receive() {
  char buffer[4096];
  const ssize_t bytes = recv(socket_.number(), buffer, sizeof(buffer), 0);
  if (bytes < 0 && IsOnlyLater()) return;
  if (bytes <= 0) {
    state_ = State::kOver;
    return;
  }
  request_.append(buffer, static_cast<size_t>(bytes));
  asked_ = WhatIsAsked(request_);
  if (asked_ != Asked::kMore) state_ = State::kAsking;
}

void ScrapeConnection::Answer(std::shared_ptr<const std::string> page, Clock::time_point now) {
  const bool wants_page = asked_ == Asked::kPage || asked_ == Asked::kPageHead;
  if (wants_page && page == nullptr) {
    state_ = State::kOver;
    return;
  }
  head_ = AnswerHead(asked_, wants_page ? page->size() : 0);
  if (asked_ == Asked::kPage) page_ = std::move(page);
  state_ = State::kSending;
  deadline_ = now + kAnswerTime;
  Send(now);
}

void ScrapeConnection::Send(Clock::time_point now) {
  for (;;) {
    std::string_view rest = head_;
    if (sent_ < head_.size()) {
      rest.remove_prefix(sent_);
    } else if (page_ != nullptr) {
      rest = std::string_view(*page_).substr(sent_ - head_.size());
    } else {
      rest = {};
    }
    if (rest.empty()) break;
    const ssize_t bytes = send(socket_.number(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (bytes < 0 && IsOnlyLater()) return;
    if (bytes < 0) {
      state_ = State::kOver;
      return;
    }
    sent_ += static_cast<size_t>(bytes);
  }
  page_.reset();
  // If the caller sent more than the request, a close would be a reset and lose the answer.
  shutdown(socket_.number(), SHUT_WR);
  state_ = State::kEnding;
  deadline_ = now + kEndTime;
  AwaitEnd();
}

void ScrapeConnection::AwaitEnd() {
  char buffer[4096];
  const ssize_t bytes = recv(socket_.number(), buffer, sizeof(buffer), 0);
  if (bytes == 0 || (bytes < 0 && !IsOnlyLater())) state_ = State::kOver;
}

}  // namespace simgrad::server::metrics
