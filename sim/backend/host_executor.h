// The executor of this machine's processors: compiled code where the build has LLVM, else the reference
// executor. The bits are the same.
//
// Threads: immutable but for the code that it keeps. A run may outlive its executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/backend/compile_watch.h"
#include "sim/backend/executor.h"

namespace simgrad::sim {

struct HostOptions {
  std::string kernel_folder;  // of compiled code; empty: it is kept in memory alone
  std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>();
};

// The code that is kept for later runs; zeros if nothing is compiled.
struct HeldCode {
  int64_t kernels = 0;
  int64_t kernel_bytes = 0;
  int64_t plans = 0;
  int64_t plan_bytes = 0;
};

class HostExecutor : public Executor {
 public:
  virtual std::string instruction_set() const = 0;
  // Why it does not compile; empty: it does.
  virtual std::string note() const = 0;
  virtual HeldCode held() const = 0;
};

std::unique_ptr<HostExecutor> MakeHostExecutor(const HostOptions& options = {});

}  // namespace simgrad::sim
