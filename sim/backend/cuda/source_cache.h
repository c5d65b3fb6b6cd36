// Texts that were generated before, by the program object that they belong to.
//
// The identity of the program object is the key: a cached program is the same object every time. A
// text is dropped some time after its program is gone.
// Errors: those of Generate; they are not kept. Cost: a hit is a look-up. Threads: any; if two
//   threads miss at once, both generate and one result is kept.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {

class SourceCache {
 public:
  explicit SourceCache(size_t most) : most_(most) {}
  absl::StatusOr<std::shared_ptr<const GeneratedSource>> Get(
      const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options);
  size_t size() const;

 private:
  struct Entry {
    std::weak_ptr<const NumericalProgram> program;
    GenerateOptions options;
    std::shared_ptr<const GeneratedSource> source;
  };
  std::shared_ptr<const GeneratedSource> Find(
      const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options);

  const size_t most_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
};

}  // namespace simgrad::sim::cuda
