// One connection of the metrics port: reads a request, sends the answer, waits for the other's end.
//
// It never blocks, and each part has its time: a request must be complete within kRequestTime of
// the connection, the answer taken within kAnswerTime, the connection closed by the other side
// within kEndTime.
// Threads: one.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "server/descriptor.h"
#include "server/metrics/scrape_request.h"

namespace simgrad::server::metrics {

class ScrapeConnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kRequestTime{2}, kAnswerTime{5}, kEndTime{1};

  ScrapeConnection(Descriptor socket, Clock::time_point now);

  int socket() const { return socket_.number(); }
  Clock::time_point deadline() const { return deadline_; }
  short events() const;  // that poll should wait for
  // Its request is complete, and Answer is due.
  bool IsAsking() const { return state_ == State::kAsking; }
  bool IsReading() const { return state_ == State::kReading; }
  bool IsOver() const { return state_ == State::kOver; }

  // The socket is ready for what it waits for, or has failed.
  void OnReady(Clock::time_point now);
  // `page` null: there is none to be had.
  void Answer(std::shared_ptr<const std::string> page, Clock::time_point now);

 private:
  enum class State { kReading, kAsking, kSending, kEnding, kOver };
  void Receive();
  void Send(Clock::time_point now);
  void AwaitEnd();

  Descriptor socket_;
  State state_ = State::kReading;
  Clock::time_point deadline_;
  Asked asked_ = Asked::kMore;
  std::string request_;
  std::string head_;
  std::shared_ptr<const std::string> page_;  // of many connections at once; null: nothing follows
  size_t sent_ = 0;                          // of head and page together
};

}  // namespace simgrad::server::metrics
