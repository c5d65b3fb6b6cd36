#include "sim/program/additions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// The region that a loop or branch runs, if it is followed; else null.
const Region* BodyOf(const Op& op) {
  if (op.code == kFor) return &op.regions[0];
  return op.code == kWhile && IsBranch(op) ? &op.regions[1] : nullptr;
}

bool IsAddition(const Op& op) { return op.code == kAdd || op.code == kSub || op.code == kFma; }

class Finder {
 public:
  explicit Finder(const NumericalProgram& numerical)
      : program_(numerical.program), made_by_(program_.values.size()) {
    Enter(program_.step);
  }

  Additions Find() && {
    const std::vector<int32_t> states = program_.InputsOf(InputKind::kState);
    for (size_t k = 0; k < states.size(); ++k) {
      const std::string& state = program_.inputs[static_cast<size_t>(states[k])].name;
      open_.push_back({program_.step.yields[k], {}});
      while (!open_.empty()) {
        Reached next = std::move(open_.back());
        open_.pop_back();
        Visit(next, state);
      }
    }
    Number(program_.step);
    return std::move(found_);
  }

 private:
  // A value that becomes a state through these casts, the last one first.
  struct Reached {
    ValueId value;
    std::vector<const Op*> casts;
  };

  // The k-th result of an operation; null: of none that is followed, or seen already.
  struct Made {
    const Op* op = nullptr;
    size_t k = 0;
  };

  void Enter(const Region& region) {
    for (const Op& op : region.ops) {
      for (size_t k = 0; k < op.results.size(); ++k) {
        if (op.results[k] != ValueId::kNone) made_by_[Index(op.results[k])] = {&op, k};
      }
      if (const Region* const body = BodyOf(op)) Enter(*body);
    }
  }

  void Visit(const Reached& reached, const std::string& state) {
    if (!program_.IsReal(reached.value)) return;
    const auto [op, result] = std::exchange(made_by_[Index(reached.value)], {});
    if (op == nullptr) return;
    if (IsAddition(*op)) {
      states_[reached.value] = &state;
      found_.by_sum[reached.value].casts = {reached.casts.rbegin(), reached.casts.rend()};
      return;
    }
    std::vector<const Op*> casts = reached.casts;
    std::vector<ValueId> behind = Behind(*op, result);
    if (op->code == kCast) casts.push_back(op);
    if (casts.size() > kMostAdditionCasts) return;
    // The first operand is looked at first.
    for (auto id = behind.rbegin(); id != behind.rend(); ++id) {
      if (*id != ValueId::kNone) open_.push_back({*id, casts});
    }
  }

  // The operands that are followed from the k-th result.
  static std::vector<ValueId> Behind(const Op& op, size_t k) {
    if (op.code == kSelect) return {op.operands[1], op.operands[2]};
    if (op.code == kCast && !IsStochastic(op)) return {op.operands[0]};
    if (const Region* const body = BodyOf(op)) {
      if (op.code == kFor) return {body->yields[k]};
      return {body->yields[k], op.operands[k]};  // run or not
    }
    const bool hands_on = op.code == kMin || op.code == kMax || op.code == kStopGradient ||
                          op.code == kUpdate || InfoOf(op.code).op_class == OpClass::kShape;
    return hands_on ? op.operands : std::vector<ValueId>{};
  }

  // In the order of the text.
  void Number(const Region& region) {
    for (const Op& op : region.ops) {
      if (const Region* const body = BodyOf(op)) Number(*body);
      const auto found =
          op.results.empty() ? found_.by_sum.end() : found_.by_sum.find(op.results[0]);
      if (found == found_.by_sum.end()) continue;
      found->second.site = SiteOf(op, *states_.at(found->first));
    }
  }

  int32_t SiteOf(const Op& op, const std::string& state) {
    const int32_t next = static_cast<int32_t>(found_.sites.size());
    if (found_.sites.size() < kMostAdditionSites) {
      found_.sites.push_back({state, op.label, op.role});
      return next;
    }
    const auto [others, is_new] = others_.try_emplace(op.role, next);
    if (is_new) found_.sites.push_back({kOtherAdditions, "", op.role});
    return others->second;
  }

  const Program& program_;
  std::vector<Made> made_by_;  // by value
  std::vector<Reached> open_;
  std::unordered_map<ValueId, const std::string*> states_;  // that a sum becomes
  std::map<Role, int32_t> others_;
  Additions found_;
};

}  // namespace

Additions AdditionsOf(const NumericalProgram& program) { return Finder(program).Find(); }

}  // namespace simgrad::sim
