// The memory that one program takes while it is prepared, of the budget that all share.
//
// Threads: one at a time.
#pragma once

#include <memory>

#include "server/conversion/compile_control.h"
#include "server/scheduling/scheduler.h"

namespace simgrad::server::service {

// Given back when destroyed.
class CompileMemory {
 public:
  CompileMemory(scheduling::Scheduler& scheduler, std::shared_ptr<scheduling::Caller> caller)
      : scheduler_(scheduler), caller_(std::move(caller)) {}

  // For as long as this lives: ends with `cancellation`, and grows with need.
  conversion::CompileControl Control(
      const std::shared_ptr<const scheduling::Cancellation>& cancellation) {
    conversion::CompileControl control;
    control.stop = [cancellation] { return !cancellation->Check().ok(); };
    control.reserve = [this](int64_t total_bytes) { return GrowTo(total_bytes); };
    return control;
  }

 private:
  bool GrowTo(int64_t total_bytes) {
    const int64_t more = total_bytes - reservation_.bytes();
    if (more <= 0) return true;
    if (reservation_.bytes() > 0) return reservation_.Grow(more);
    auto first = scheduler_.memory().Reserve(more, scheduling::MemoryUse::kCompile, caller_);
    if (first) reservation_ = *std::move(first);
    return first.has_value();
  }

  scheduling::Scheduler& scheduler_;
  const std::shared_ptr<scheduling::Caller> caller_;
  scheduling::MemoryBudget::Reservation reservation_;
};

}  // namespace simgrad::server::service
