#include "sim/backend/compiled/analysis/small_arrays.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "sim/backend/compiled/analysis/statement_cost.h"
#include "sim/plan/statement_walk.h"

namespace simgrad::sim::compiled {
namespace {

using plan::Code;
using plan::Statement;

constexpr int64_t kMostElements = 4;
constexpr int64_t kMostOfLoop = 256;  // statements, turn by turn
// The compiler takes less care of larger functions (object_code.cc), which loses more than registers
// give: a function stays below the bound that it is below.
constexpr int64_t kBounds[] = {3000, 20'000};

class Finder {
 public:
  explicit Finder(const plan::Function& function)
      : function_(function), is_named_(function.registers.size(), false) {}

  SmallArrays Find() {
    FindLoops(function_.statements);
    if (!IsWorthIt()) found_.unrolled.clear();
    for (const Statement* loop : found_.unrolled) {
      is_named_[static_cast<size_t>(loop->result)] = true;
    }
    for (const plan::Buffer& buffer : function_.buffers) {
      found_.named.push_back(buffer.count <= kMostElements);
    }
    plan::EachStatement(function_.statements, [this](const Statement& s) { See(s); });
    return std::move(found_);
  }

 private:
  static constexpr int64_t kNever = kMostOfLoop + 1;

  static bool IsSmall(const Statement& s) {
    return s.code == Code::kEach && s.operands.empty() && s.number <= kMostElements && !IsLong(s);
  }

  // Statements of a loop that is written turn by turn; kNever: it is not.
  static int64_t Unrolled(const Statement& loop) {
    if (!IsSmall(loop)) return kNever;
    int64_t turn = 0;
    for (const Statement& s : loop.body) {
      const bool has_body =
          s.code == Code::kRepeat || s.code == Code::kIf || s.code == Code::kCommit;
      if (has_body || s.code == Code::kPush) return kNever;
      turn = std::min(kNever, turn + (s.code == Code::kEach ? Unrolled(s) : 1));
    }
    return std::min(kNever, loop.number * turn);
  }

  void FindLoops(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) {
      ++written_;
      if (const int64_t unrolled = Unrolled(s); unrolled < kNever) {
        plan::EachStatement(s.body, [this](const Statement& inner) {
          ++written_;
          if (inner.code == Code::kEach) found_.unrolled.insert(&inner);
        });
        found_.unrolled.insert(&s);
        more_ += unrolled;
      } else {
        FindLoops(s.body);
      }
    }
  }

  bool IsWorthIt() const {
    return std::all_of(std::begin(kBounds), std::end(kBounds), [this](int64_t bound) {
      return written_ > bound || written_ + more_ <= bound;
    });
  }

  void See(const Statement& s) {
    if (!plan::ReadsBuffer(s) && !plan::WritesBuffer(s)) return;
    const bool names = s.code != Code::kExactSum && s.index.moved == plan::kNoRegister &&
                       std::all_of(s.index.terms.begin(), s.index.terms.end(), [&](const auto& t) {
                         return is_named_[static_cast<size_t>(t.first)];
                       });
    if (!names) found_.named[static_cast<size_t>(s.buffer)] = false;
  }

  const plan::Function& function_;
  SmallArrays found_;
  int64_t written_ = 0, more_ = 0;  // statements; those that turns add
  std::vector<bool> is_named_;      // by register
};

}  // namespace

SmallArrays FindSmallArrays(const plan::Function& function) { return Finder(function).Find(); }

}  // namespace simgrad::sim::compiled
