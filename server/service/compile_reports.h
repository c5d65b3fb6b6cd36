// Reports in metrics what a server's compiler does, and what it takes of the memory budget.
//
// Threads: any.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "server/metrics/guarded.h"
#include "server/scheduling/memory_budget.h"
#include "sim/backend/compile_watch.h"

namespace simgrad::server::service {

class CompileReports final : public sim::CompileWatch {
 public:
  // The metrics of one backend, by sim::CompileQuality.
  struct Metrics {
    std::array<metrics::GuardedCounter, 2> compiles;
    std::array<metrics::GuardedHistogram, 2> seconds;
  };

  // Until then, and after Detach, there is memory for everything and nothing is counted.
  void Attach(std::shared_ptr<scheduling::MemoryBudget> memory, Metrics metrics);
  // Compilations may outlive the server.
  void Detach();

  sim::HeldMemory ForCompile(int64_t bytes) override;
  sim::HeldMemory ForCache(int64_t bytes) override;
  void Compiled(sim::CompileQuality quality, double seconds) override;
  void Refused(const std::string& file, const std::string& why) override;

 private:
  sim::HeldMemory Hold(int64_t bytes, scheduling::MemoryUse use);

  std::mutex mutex_;
  std::shared_ptr<scheduling::MemoryBudget> memory_;  // null: not attached
  Metrics metrics_;
};

}  // namespace simgrad::server::service
