#include "sim/backend/cuda/source_cache.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim::cuda {

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
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto found = Find(program, options)) return found;
  entries_.remove_if([](const Entry& entry) { return entry.program.expired(); });
  entries_.push_front({program, options, source});
  if (entries_.size() > most_) entries_.pop_back();
  return source;
}

size_t SourceCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace simgrad::sim::cuda
