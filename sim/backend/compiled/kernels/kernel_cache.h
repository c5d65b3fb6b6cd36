// Kernels by the structure of their plans: in memory, in a folder, or compiled.
//
// Compiling happens on threads of the cache, so a caller leaves when its `stop` says so. A compile
// that no caller has a claim to does not begin. One that all callers abandon stops behind the function at
// hand; if it is abandoned a second time, it goes on to its end, for the callers that come back.
// A miss is compiled quickly. The best code follows in the background: at once where the quick compile
// took milliseconds of processor time, else when quick code has run for about as long as the making takes. It is kept in
// the folder, and is found from then on. Both give the same bits.
// Requests for one structure share one compile. Least recently used kernels go above a bound.
// A compile that a caller waits for is part of the caller's memory (CompileBytes), and asks the watch for its own
// when the last such caller leaves; so does the best code that follows. What waits in a queue holds no plan.
// Errors: RESOURCE_EXHAUSTED if the watch has no memory for a compile; CANCELLED if `stop` returned
//   true; INTERNAL with LLVM's words, for callers that wait; it is not kept. A fatal error of LLVM
//   ends only that compile: its thread is parked for good and another takes its place, until
//   kMostLost were lost; from then on every compile fails. A crash (a bad
//   memory access) inside LLVM ends the process: a compile is bounded by its statements instead.
// Threads: any. The destructor waits for the compiles that run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sim/backend/compile_watch.h"
#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/work_meter.h"

namespace simgrad::sim::compiled {

struct KernelRequest {
  std::shared_ptr<const plan::Plan> plan;
  Part part = Part::kForward;
  WriterOptions writer;
  KernelOptions options;  // without the effort
  std::string key;        // KeyOf these
};

// The key of a part: its structure, what is recorded, the processor, the code writer and LLVM.
std::string KeyOf(const plan::Plan& plan, Part part, const WriterOptions& writer,
                  const KernelOptions& options);

// To a compile: the last that goes takes with it what has not begun.
using Claim = std::shared_ptr<const void>;

enum class Wanted : uint8_t {
  kSoonest,  // the best there is; the best there can be is made meanwhile
  kQuick,
  kBest,
};

// Counts of what a cache did since it was made, and of what it holds.
struct CompilerUse {
  uint64_t compiled = 0;
  double compile_seconds = 0;
  uint64_t failed = 0;
  uint64_t left = 0;  // ended because their callers had left
  uint64_t loaded_from_disk = 0;
  uint64_t loaded_from_memory = 0;
  uint64_t refused_files = 0;
  uint64_t lost_threads = 0;
  int64_t pending = 0;  // compiles that wait or run
  int64_t kernels = 0;
  int64_t bytes = 0;  // of their code
};

struct KernelCacheOptions {
  std::string folder;                       // of the best objects; empty: none
  int64_t most_bytes = int64_t{128} << 20;  // of code in memory
  // A kernel that it has no memory for is given to the callers that wait for it, and not kept.
  std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>();
  // Best code takes five to ten times as long as quick code. Where quick code took at most so much
  // processor time, best code is made at once; else when quick code has run for about as long as the
  // making takes, as what runs once for a few steps is not worth it. So it is with many instructions
  // too: only best code inlines functions, and 230,000 of them take it 2 s after 50 ms of quick code.
  std::chrono::nanoseconds soon_made = std::chrono::milliseconds(50);
  int64_t most_instructions_soon = 50'000;
  std::function<void(Effort)> before_compile;  // for tests: called on the compiling thread
};

class KernelCache {
 public:
  static constexpr int kMostLost = 8;
  explicit KernelCache(KernelCacheOptions options = {});
  ~KernelCache();

  absl::StatusOr<std::shared_ptr<const Kernel>> Get(const KernelRequest& request, Wanted wanted,
                                                    const WorkMeter::StopCallback& stop);
  // The best that is in memory, or null.
  std::shared_ptr<const Kernel> Find(const std::string& key);
  // Has it made in the background, where there is room, if its plan still lives by then.
  void Ask(const KernelRequest& request, Wanted wanted);
  // As Get, without waiting, for a run that will wait, holds the memory for it, and keeps the claim until
  // then. Null: there is nothing to make.
  Claim AskForRun(const KernelRequest& request, Wanted wanted);
  // Gives up about so many bytes of kernels that nothing runs; returns how many.
  int64_t Relieve(int64_t bytes);
  CompilerUse use() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simgrad::sim::compiled
