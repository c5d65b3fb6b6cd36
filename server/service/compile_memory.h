// The memory that one program takes while it is prepared, of the budget that all share.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>

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

  // The refusal, once there was no more memory.
  const std::optional<scheduling::Refusal>& lacking() const { return lacking_; }

 private:
  bool GrowTo(int64_t total_bytes) {
    constexpr auto kUse = scheduling::MemoryUse::kCompile;
    const int64_t more = total_bytes - reservation_.bytes();
    if (more <= 0) return true;
    if (reservation_.bytes() == 0) {
      auto first = scheduler_.memory().Reserve(more, kUse, caller_);
      if (first) reservation_ = *std::move(first);
    } else {
      reservation_.Grow(more);
    }
    if (reservation_.bytes() == total_bytes) return true;
    lacking_ = scheduler_.WhyNot(reservation_.bytes(), more, kUse, *caller_);
    return false;
  }

  scheduling::Scheduler& scheduler_;
  const std::shared_ptr<scheduling::Caller> caller_;
  scheduling::MemoryBudget::Reservation reservation_;
  std::optional<scheduling::Refusal> lacking_;
};

}  // namespace simgrad::server::service
