#include "server/service/open_streams.h"

#include <condition_variable>
#include <utility>
#include <vector>

namespace simgrad::server::service {

OpenStreams::OpenStreams()
    : thread_([this](std::stop_token stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!stop.stop_requested()) {
          wake.wait_for(lock, stop, kInterval, [] { return false; });
          Look(OpenStream::Clock::now());
        }
      }) {}

OpenStreams::~OpenStreams() {
  thread_.request_stop();
  thread_.join();
}

void OpenStreams::Add(std::shared_ptr<OpenStream> stream) {
  OpenStream* const key = stream.get();
  std::lock_guard lock(mutex_);
  streams_.emplace(key, std::move(stream));
}

void OpenStreams::Remove(OpenStream* stream) {
  std::shared_ptr<OpenStream> removed;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  removed = std::move(found->second);
  streams_.erase(found);
}

void OpenStreams::Look(OpenStream::Clock::time_point now) {
  std::lock_guard look(looks_);
  // A look may end a stream, which removes it: the lock is not held meanwhile.
  std::vector<std::shared_ptr<OpenStream>> streams;
  {
    std::lock_guard lock(mutex_);
    streams.reserve(streams_.size());
    for (const auto& [key, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->Look(now);
}

}  // namespace simgrad::server::service
