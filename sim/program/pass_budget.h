// Limits what the passes over one program may cost, and stops them on request.
//
// A pass reports what it visits and what it writes. Every kBetweenPolls visits the budget asks the
// caller whether to stop; it counts writes against limits as they happen. If either says no, it
// throws, and WithinBudget turns the exception into a status. The exception never leaves the public
// functions (Verify, Lower, FindGates).
// Units: a visit is an operation, a value, an operand or 64 bytes of text, whatever a pass does
//   with it. Bytes are estimates of heap memory.
// Errors: CANCELLED if `stop` returns true; INVALID_ARGUMENT with the field, IsLimit, over a limit.
// Cost: an addition and a comparison per report. Threads: one budget, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Limits of lowering. Measured: a world of 20,000 operations that need up to five operations
// each in the adjoint of the last step and in that of every other fits; where every one needs more
// than that (pow, atan2) about 12,000 do. At its peak, lowering holds about twice max_bytes.
struct LoweredLimits {
  int64_t max_operations = 300'000;
  int64_t max_operands = 2'000'000;        // operands, results, arguments and yields
  int64_t max_bytes = int64_t{128} << 20;  // operations, values and their names, literals
  int64_t max_text_bytes = int64_t{32} << 20;
  // Visits of the passes that decide before anything is written: some 50 for each operation that
  // may then be written.
  int64_t max_visits = 8'000'000;
  // Numbers of the permutations of shuffled sums: 8 bytes each in a plan, and a Philox block to draw.
  int64_t max_permuted = int64_t{1} << 22;
};

class PassBudget {
 public:
  // Whether the passes should end; empty: they never should.
  using StopCallback = std::function<bool()>;
  // The most visits between two polls, apart from one operation's operands.
  static constexpr int64_t kBetweenPolls = 4096;

  PassBudget() = default;
  explicit PassBudget(StopCallback stop, const LoweredLimits& limits = {})
      : stop_(std::move(stop)), limits_(limits) {}

  void Visit(int64_t count = 1) {
    visits_ += count;
    since_poll_ += count;
    if (since_poll_ >= kBetweenPolls) Poll();
  }
  // Visits of a pass that looks for a fixpoint.
  void Search(int64_t count = 1) {
    searched_ += count;
    if (searched_ > limits_.max_visits) RefuseSearch();
    Visit(count);
  }
  void WroteOp(const Op& op);  // without its regions
  void WroteValue(const Value& value);
  void WroteIds(int64_t count);
  void WroteRegion(const Region& region);  // with all that is in it
  void Permuted(int64_t count);            // numbers of a permutation that is drawn
  // The length of the text so far.
  void WroteText(int64_t bytes);

  int64_t polls() const { return polls_; }
  int64_t longest_stretch() const { return longest_stretch_; }  // visits between two polls
  int64_t visits() const { return visits_; }
  int64_t searched() const { return searched_; }
  int64_t operations() const { return operations_; }
  int64_t values() const { return values_; }
  int64_t operands() const { return operands_; }
  int64_t bytes() const { return bytes_; }
  int64_t text_bytes() const { return text_bytes_; }

  // Thrown out of a pass; says why.
  struct Ended {
    absl::Status status;
  };

 private:
  void Poll();
  void CheckWritten();
  [[noreturn]] void RefuseSearch() const;
  [[noreturn]] void Refuse(const std::string& what, int64_t limit) const;

  StopCallback stop_;
  LoweredLimits limits_;
  int64_t polls_ = 0;
  int64_t longest_stretch_ = 0;
  int64_t visits_ = 0;
  int64_t since_poll_ = 0;
  int64_t searched_ = 0;
  int64_t operations_ = 0;
  int64_t values_ = 0;
  int64_t operands_ = 0;
  int64_t bytes_ = 0;
  int64_t text_bytes_ = 0;
  int64_t permuted_ = 0;
};

// Runs passes and returns how they ended.
template <class Passes>
absl::Status WithinBudget(const Passes& passes) {
  try {
    passes();
  } catch (const PassBudget::Ended& ended) {
    return ended.status;
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim
