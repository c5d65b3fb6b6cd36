// The executor of this machine's processors: compiled code where the build has LLVM, else the reference
// executor. The bits are the same.
//
// Threads: immutable but for the code that it keeps. A run may outlive its executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/backend/executor.h"

namespace simgrad::sim {

struct HostOptions {
  std::string kernel_folder;  // of compiled code; empty: it is kept in memory alone
};

// Since it was made; zeros where nothing is compiled.
struct HostUse {
  uint64_t compiled = 0;
  double compile_seconds = 0;
  uint64_t loaded_from_disk = 0;
  uint64_t loaded_from_memory = 0;
  uint64_t failed = 0;
  int64_t held_bytes = 0;  // code and plans
};

class HostExecutor : public Executor {
 public:
  virtual std::string instruction_set() const = 0;
  // Why it does not compile; empty: it does.
  virtual std::string note() const = 0;
  virtual HostUse use() const = 0;
};

// Code and plans take at most this much memory.
int64_t MostHeldByHostExecutor();
std::unique_ptr<HostExecutor> MakeHostExecutor(const HostOptions& options = {});

}  // namespace simgrad::sim
