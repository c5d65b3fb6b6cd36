// The streams of the server, looked at now and then: what is due by the clock alone has no one else
// to notice it.
//
// Cost: a look at every stream each 25 ms, under its own mutex. Threads: any; looks come from one
// thread of its own.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace simgrad::server::service {

class OpenStream {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~OpenStream() = default;
  virtual void Look(Clock::time_point now) = 0;
};

// Owns the streams from Add to Remove.
class OpenStreams {
 public:
  static constexpr std::chrono::milliseconds kInterval{25};

  OpenStreams();
  // No stream is looked at afterwards.
  ~OpenStreams();

  void Add(std::shared_ptr<OpenStream> stream);
  // The stream lives on until a look at it has ended.
  void Remove(OpenStream* stream);
  // At every stream, as the thread does it; one look at a time.
  void Look(OpenStream::Clock::time_point now);

 private:
  std::mutex looks_;
  std::mutex mutex_;
  std::unordered_map<OpenStream*, std::shared_ptr<OpenStream>> streams_;
  std::jthread thread_;
};

}  // namespace simgrad::server::service
