// Regions of much work: every instruction is counted by itself, and one of many rows is run in
// parts, so that a run can end inside it. Rows do not depend on each other, so no bit changes.
#include <algorithm>
#include <array>

#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

// Instructions that count what they do themselves.
bool CountsItself(const Instruction& i) {
  constexpr std::array<Kernel, 9> kCounting = {RunLook,       RunRange,    RunEvent,
                                               RunWhile,      RunFor,      RunTape,
                                               RunAccumulate, RunWhileVjp, RunForVjp};
  return i.run == RunExactReduction ||
         std::find(kCounting.begin(), kCounting.end(), i.run) != kCounting.end();
}

// Moves a pointer to storage for the life of this object.
class Shifted {
 public:
  Shifted(std::byte*& at, int64_t bytes) : at_(at), home_(at) { at_ += bytes; }
  ~Shifted() { at_ = home_; }
  Shifted(const Shifted&) = delete;
  Shifted& operator=(const Shifted&) = delete;

 private:
  std::byte*& at_;
  std::byte* const home_;
};

}  // namespace

void Machine::RunInPieces(const std::vector<Instruction>& code) {
  for (const Instruction& i : code) {
    if (CountsItself(i)) {
      meter.Add(kRegionWork);
      i.run(i, *this);
    } else if (i.plan == nullptr) {
      RunElementwise(i);
    } else if (i.rows) {
      RunCopies(i);
    } else {
      RunReduction(i);
    }
  }
}

int64_t Machine::RowBytesOf(int32_t s) const {
  return slot(s).lane_bytes() * width[slot(s).uniform ? 1 : 0];
}

void Machine::RunElementwise(const Instruction& whole) {
  std::array<int32_t, 5> slots = {whole.to, whole.a, whole.b, whole.c, whole.d};
  std::sort(slots.begin(), slots.end());
  const auto first = std::upper_bound(slots.begin(), slots.end(), -1);
  const auto last = std::unique(first, slots.end());
  const bool alike =
      std::all_of(first, last, [&](int32_t s) { return slot(s).count == whole.count; });
  const int64_t lanes = width[whole.uniform];
  if (!alike || whole.count * lanes <= WorkMeter::kPiece) {
    meter.Add(kRegionWork + whole.count * lanes);
    return whole.run(whole, *this);
  }
  InPieces(meter, whole.count, lanes, [&](int64_t begin, int64_t end) {
    Instruction part = whole;
    part.count = static_cast<int32_t>(end - begin);
    for (auto s = first; s != last; ++s) at[*s] += begin * RowBytesOf(*s);
    part.run(part, *this);
    for (auto s = first; s != last; ++s) at[*s] -= begin * RowBytesOf(*s);
  });
}

void Machine::RunCopies(const Instruction& whole) {
  const RowPlan& rows = *static_cast<const RowPlan*>(whole.plan);
  InPieces(meter, rows.rows, width[whole.uniform], [&](int64_t begin, int64_t end) {
    RowPlan some = rows;
    some.from += begin;
    some.operand += begin;
    some.rows = end - begin;
    Instruction part = whole;
    part.plan = &some;
    const Shifted result(at[whole.to], begin * RowBytesOf(whole.to));
    part.run(part, *this);
  });
}

// Lists that are long are counted by the kernel (Lanes::count).
void Machine::RunReduction(const Instruction& whole) {
  const ReducePlan& lists = *static_cast<const ReducePlan*>(whole.plan);
  InPieces(meter, lists.results, lists.inputs * width[whole.uniform],
           [&](int64_t begin, int64_t end) {
             ReducePlan some = lists;
             some.index += begin * lists.inputs;
             some.results = end - begin;
             Instruction part = whole;
             part.plan = &some;
             const int64_t rows = lists.cumulative ? 0 : begin;
             const Shifted result(at[whole.to], rows * RowBytesOf(whole.to));
             part.run(part, *this);
           });
}

}  // namespace simgrad::sim::cpu
