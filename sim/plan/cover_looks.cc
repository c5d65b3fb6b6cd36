#include "sim/plan/cover_looks.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

namespace simgrad::sim::plan {
namespace {

// Prefixes of functions that carry. Integer functions share them, but no integer is looked at.
constexpr std::string_view kCarrying[] = {"add_", "sub_",       "mul_",
                                          "neg_", "round_f32_", "round_f64_"};

// Whether a scalar function of reals gives a number that is not finite wherever an operand is not.
bool Carries(std::string_view function) {
  if (function.ends_with("_saturate")) return false;
  if (function == "widen_f32" || function == "narrow_f64") return true;
  return std::any_of(std::begin(kCarrying), std::end(kCarrying),
                     [&](std::string_view start) { return function.starts_with(start); });
}

class Coverer {
 public:
  explicit Coverer(Function& function) : function_(function), covers_(function.registers.size()) {}

  void Run() { Block(function_.statements); }

 private:
  // A look that a number is at, or is carried to: where a mask holds, or everywhere.
  struct Cover {
    bool is_set = false;
    Register where = kNoRegister;
    bool Holds(Register at) const { return is_set && (where == kNoRegister || where == at); }
  };

  static Register WhereOf(const Statement& look) {
    return look.operands.size() > 1 ? look.operands[1] : kNoRegister;
  }

  void Set(Register r, const Cover& cover) {
    Cover& known = covers_[static_cast<size_t>(r)];
    if (!known.is_set) set_.push_back(r);
    if (!known.is_set || cover.where == kNoRegister) known = cover;
  }

  void Clear() {
    for (Register r : set_) covers_[static_cast<size_t>(r)] = {};
    set_.clear();
  }

  // Returns whether a later look of the block covers this one.
  bool See(const Statement& s) {
    if (s.code == Code::kLeave || s.code == Code::kCommit) Clear();
    if (s.code == Code::kLook) {
      if (covers_[static_cast<size_t>(s.operands[0])].Holds(WhereOf(s))) return true;
      Set(s.operands[0], {true, WhereOf(s)});
    }
    if (s.code == Code::kCall) {
      const Cover cover = covers_[static_cast<size_t>(s.result)];
      if (cover.is_set && Carries(s.function)) {
        for (Register r : s.operands) Set(r, cover);
      }
    }
    return false;
  }

  void Block(std::vector<Statement>& block) {
    for (Statement& s : block) Block(s.body);
    std::vector<size_t> covered;  // descending
    for (size_t i = block.size(); i-- > 0;) {
      if (See(block[i])) covered.push_back(i);
    }
    Clear();
    if (covered.empty()) return;
    size_t at = 0;
    std::erase_if(block, [&](const Statement&) {
      const bool is_next = !covered.empty() && covered.back() == at++;
      if (is_next) covered.pop_back();
      return is_next;
    });
  }

  Function& function_;
  std::vector<Cover> covers_;  // by register, in the block that is walked
  std::vector<Register> set_;
};

}  // namespace

void CoverLooks(Function& function) { Coverer(function).Run(); }

}  // namespace simgrad::sim::plan
