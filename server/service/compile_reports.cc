#include "server/service/compile_reports.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

using scheduling::MemoryBudget;
using scheduling::MemoryUse;

// The budget outlives what is held of it.
struct Held {
  std::shared_ptr<MemoryBudget> memory;
  MemoryBudget::Reservation reservation;
};

}  // namespace

void CompileReports::Attach(std::shared_ptr<MemoryBudget> memory, Metrics metrics) {
  const std::lock_guard lock(mutex_);
  memory_ = std::move(memory);
  metrics_ = std::move(metrics);
}

void CompileReports::Detach() {
  const std::lock_guard lock(mutex_);
  memory_.reset();
}

// With the lock held: a relief that the budget asks of a server ends before its Detach returns.
sim::HeldMemory CompileReports::Hold(int64_t bytes, MemoryUse use) {
  const std::lock_guard lock(mutex_);
  if (memory_ == nullptr) return std::make_shared<char>();
  std::optional<MemoryBudget::Reservation> reservation = memory_->Reserve(bytes, use);
  if (!reservation) return nullptr;
  return std::make_shared<Held>(Held{memory_, *std::move(reservation)});
}

sim::HeldMemory CompileReports::ForCompile(int64_t bytes) {
  return Hold(bytes, MemoryUse::kCompile);
}

sim::HeldMemory CompileReports::ForCache(int64_t bytes) { return Hold(bytes, MemoryUse::kCache); }

void CompileReports::Compiled(sim::CompileQuality quality, double seconds) {
  const std::lock_guard lock(mutex_);
  if (memory_ == nullptr) return;
  metrics_.compiles[static_cast<size_t>(quality)].Increment();
  metrics_.seconds[static_cast<size_t>(quality)].Observe(seconds);
}

void CompileReports::Refused(const std::string& file, const std::string& why) {
  LogNote(LogLevel::kWarning,
          absl::StrCat("--kernel_cache: '", file, "' is not used and compiled anew: ", why));
}

}  // namespace simgrad::server::service
