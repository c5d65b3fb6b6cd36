#include "sim/backend/cuda/source_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace simgrad::sim::cuda {
namespace {

int64_t HeldBytes(const GeneratedSource& source) {
  const size_t bytes =
      sizeof(source) + source.text.capacity() + source.numbers.capacity() * sizeof(double) +
      source.integers.capacity() * sizeof(int64_t) + source.fields.capacity() * sizeof(Field);
  return static_cast<int64_t>(bytes);
}

}  // namespace

std::shared_ptr<const GeneratedSource> SourceCache::Find(
    const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    // An address alone may be that of another program by now.
    return entry.program.lock() == program && entry.options == options;
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->source;
}

absl::StatusOr<std::shared_ptr<const GeneratedSource>> SourceCache::Get(
    const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = Find(program, options)) return found;
  }
  absl::StatusOr<GeneratedSource> made = Generate(*program, options);
  if (!made.ok()) return made.status();
  auto source = std::make_shared<const GeneratedSource>(*std::move(made));
  const int64_t bytes = HeldBytes(*source);
  // Without the lock, which Relieve takes: memory may be given up for this.
  HeldMemory memory = bytes > most_bytes_ ? nullptr : watch_->ForCache(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto found = Find(program, options)) return found;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->program.expired()) Drop(entry);
    entry = next;
  }
  if (memory == nullptr) return source;
  while (bytes_ + bytes > most_bytes_) Drop(std::prev(entries_.end()));
  entries_.push_front({program, options, source, bytes, std::move(memory)});
  bytes_ += bytes;
  return source;
}

int64_t SourceCache::Relieve(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t before = bytes_;
  for (auto entry = entries_.end(); entry != entries_.begin() && before - bytes_ < bytes;) {
    const auto oldest = std::prev(entry);
    if (oldest->source.use_count() == 1) {
      Drop(oldest);
    } else {
      entry = oldest;
    }
  }
  return before - bytes_;
}

void SourceCache::Drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

size_t SourceCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

int64_t SourceCache::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace simgrad::sim::cuda
