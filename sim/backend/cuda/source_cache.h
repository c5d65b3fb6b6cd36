// Texts that were generated before, by the program object that they belong to.
//
// The identity of the program object is the key: a cached program is the same object every time. A
// text is dropped some time after its program is gone. Above the bound the least recently used texts
// are dropped. The watch gives the memory for what is kept; without it a text is given and not kept.
// Units: bytes of text, numbers and fields. Errors: those of Generate; they are not kept. Cost: a hit
//   is a look-up. Threads: any; if two threads miss at once, both generate and one result is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "sim/backend/compile_watch.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {

class SourceCache {
 public:
  explicit SourceCache(int64_t most_bytes,
                       std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>())
      : most_bytes_(most_bytes), watch_(std::move(watch)) {}
  absl::StatusOr<std::shared_ptr<const GeneratedSource>> Get(
      const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options);
  // Drops texts that nobody holds, the least recently used first, until so many bytes are free, or
  // all of them; returns how many bytes.
  int64_t Relieve(int64_t bytes);
  size_t size() const;
  int64_t bytes() const;

 private:
  struct Entry {
    std::weak_ptr<const NumericalProgram> program;
    GenerateOptions options;
    std::shared_ptr<const GeneratedSource> source;
    int64_t bytes = 0;
    HeldMemory memory;
  };
  std::shared_ptr<const GeneratedSource> Find(
      const std::shared_ptr<const NumericalProgram>& program, const GenerateOptions& options);
  void Drop(std::list<Entry>::iterator entry);

  const int64_t most_bytes_;
  const std::shared_ptr<CompileWatch> watch_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::cuda
