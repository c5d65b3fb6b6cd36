#include "sim/program/detect.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/rounding.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

class Detector {
 public:
  Detector(const Program& program, const precision::Policy& policy, PassBudget& budget)
      : program_(program),
        policy_(policy),
        budget_(budget),
        covered_(program.values.size(), false),
        look_(program.values.size(), false),
        where_(program.values.size(), ValueId::kNone) {}

  void Cover(ValueId id) {
    if (id != ValueId::kNone) covered_[Index(id)] = true;
  }
  bool Covered(ValueId id) const { return id != ValueId::kNone && covered_[Index(id)]; }

  // Decides for the results of a region, last operation first: a use comes after its definition.
  void Visit(const Region& region) {
    for (const Op& op : region.ops) {
      for (ValueId id : op.results) {
        if (id != ValueId::kNone) where_[Index(id)] = op.attributes.where;
      }
    }
    for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) VisitOp(*op);
  }

  std::vector<bool> TakeLooks() { return std::move(look_); }

 private:
  bool IsReal(ValueId id) const {
    return id != ValueId::kNone && program_[id].type.element == ElementType::kReal;
  }

  // A sum of one number in one format is that number.
  bool IsSumOfOne(const Op& op) const {
    if (op.code != kSum || op.attributes.order == Order::kExact) return false;
    const Value& from = program_[op.operands[0]];
    const Value& to = program_[op.results[0]];
    const auto traits = precision::Traits(*from.format);
    const auto accumulator = precision::Traits(op.attributes.accumulator);
    return ElementCount(from.type.shape) == ElementCount(to.type.shape) &&
           from.format == to.format && accumulator.max_finite >= traits.max_finite &&
           accumulator.precision >= traits.precision;
  }

  bool CanBeBorn(const Op& op) const {
    if (IsSumOfOne(op)) return false;
    if (op.code != kLiteral) return InfoOf(op.code).can_create;
    // A literal beyond the range of its format.
    const Format format = *program_[op.results[0]].format;
    return std::any_of(op.attributes.literal.begin(), op.attributes.literal.end(),
                       [&](double x) { return !std::isfinite(precision::RoundTo(format, x)); });
  }

  // Whether a non-finite element of operand k always makes the result non-finite.
  bool Carries(const Op& op, size_t k) const {
    const ValueId operand = op.operands[k];
    switch (op.code) {
      case kDiv:
        return k == 0;
      case kCast:
        return EffectiveOverflow(policy_, op) == Overflow::kIeee;
      case kConvert:
        return IsReal(operand) && IsReal(op.results[0]);
      case kBroadcast:
        return ElementCount(program_[op.results[0]].type.shape) > 0;
      case kMerge:
        return k == 0 || (k == 1 && where_[Index(operand)] == op.operands[2]);
      case kMerge2:
        return (k == 0 || k == 2) && where_[Index(operand)] != ValueId::kNone &&
               where_[Index(operand)] == op.operands[k + 1];
      default:
        return InfoOf(op.code).propagates;
    }
  }

  // Whether `op` is executed wherever the value is.
  bool ExecutedWith(const Op& op, ValueId value) const {
    const ValueId where = op.attributes.where;
    return where == ValueId::kNone || where == where_[Index(value)];
  }

  void VisitOp(const Op& op) {
    switch (op.code) {
      case kWhile:
        return VisitWhile(op);
      case kFor:
        return VisitFor(op);
      case kWhileVjp:
      case kForVjp:
        VisitNested([&] {
          for (const Region& region : op.regions) Visit(region);
        });
        return;
      case kEvent:
      case kAccumulate:
        return;  // an accumulator is looked at by who owns it
      default:
        break;
    }
    budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
    const ValueId result = op.results[0];
    if (!IsReal(result)) return;
    if (!Covered(result)) {
      look_[Index(result)] = CanBeBorn(op);
      if (!look_[Index(result)]) return;
      Cover(result);
    } else {
      look_[Index(result)] = false;
    }
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const ValueId operand = op.operands[k];
      if (IsReal(operand) && Carries(op, k) && ExecutedWith(op, operand)) Cover(operand);
    }
  }

  // Forgets what is known of the values that a region defines.
  void Reset(const Region& region) {
    for (ValueId id : region.args) covered_[Index(id)] = false;
    for (const Op& op : region.ops) {
      for (ValueId id : op.results) {
        if (id != ValueId::kNone) covered_[Index(id)] = false;
      }
      for (const Region& nested : op.regions) Reset(nested);
    }
  }

  // A use inside a loop does not cover a value from outside: the loop may not get there.
  template <class Inside>
  void VisitNested(const Inside& inside) {
    const std::vector<bool> before = covered_;
    inside();
    // Values defined inside keep what was found; the loop's own operands are decided by its slots.
    inside_covered_ = std::exchange(covered_, before);
  }

  void VisitWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const size_t m = static_cast<size_t>(counts.mapped);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    const size_t first_export = op.attributes.has_entry ? 3 : 2;
    const bool test_first = op.attributes.cap_order == CapOrder::kTestFirst;
    std::vector<bool> slots(c, true);
    std::vector<bool> exports(e);
    std::vector<bool> mapped(m);
    for (size_t k = 0; k < e; ++k) exports[k] = Covered(op.results[c + k]);
    for (bool changed = true; changed;) {
      changed = false;
      VisitNested([&] {
        Reset(test);
        Reset(body);
        for (size_t k = 0; k < c; ++k) {
          if (slots[k]) Cover(body.yields[k]);
        }
        Visit(body);
        for (size_t k = 0; k < e; ++k) {
          if (exports[k]) Cover(test.yields[first_export + k]);
        }
        Visit(test);
      });
      const auto inside = [&](ValueId id) { return static_cast<bool>(inside_covered_[Index(id)]); };
      for (size_t k = 0; k < c; ++k) {
        const bool tested = inside(test.args[k]);
        const bool handed_on = Covered(op.results[k]) && (inside(body.args[k]) || tested);
        changed |= Keep(slots, k, (test_first && tested) || handed_on);
      }
      for (size_t k = 0; k < e; ++k) changed |= Keep(exports, k, inside(body.args[c + k]));
      for (size_t k = 0; k < m; ++k) mapped[k] = inside(test.args[c + k]);
    }
    for (size_t k = 0; k < c; ++k) {
      if (slots[k]) Cover(op.operands[k]);
    }
    for (size_t k = 0; k < m; ++k) {
      if (mapped[k]) Cover(op.operands[c + k]);
    }
  }

  void VisitFor(const Op& op) {
    const Region& body = op.regions[0];
    const size_t c = op.operands.size();
    std::vector<bool> slots(c);
    for (size_t k = 0; k < c; ++k) slots[k] = Covered(op.results[k]);
    for (bool changed = true; changed;) {
      changed = false;
      VisitNested([&] {
        Reset(body);
        for (size_t k = 0; k < c; ++k) {
          if (slots[k]) Cover(body.yields[k]);
        }
        Visit(body);
      });
      for (size_t k = 0; k < c && op.attributes.max_iter > 0; ++k) {
        changed |= Keep(slots, k, inside_covered_[Index(body.args[k + 1])]);
      }
    }
    for (size_t k = 0; k < c; ++k) {
      if (slots[k]) Cover(op.operands[k]);
    }
  }

  // slots[k] &= value; whether it changed.
  static bool Keep(std::vector<bool>& slots, size_t k, bool value) {
    if (!slots[k] || value) return false;
    slots[k] = false;
    return true;
  }

  const Program& program_;
  const precision::Policy& policy_;
  PassBudget& budget_;
  std::vector<bool> covered_;
  std::vector<bool> inside_covered_;
  std::vector<bool> look_;
  std::vector<ValueId> where_;
};

}  // namespace

Overflow EffectiveOverflow(const precision::Policy& policy, const Op& op) {
  if (op.attributes.overflow) return *op.attributes.overflow;
  return policy.At(op.role, op.site).overflow;
}

Detection DetectNonFinite(const Program& program, const precision::Policy& policy,
                          const Region& region, std::span<const ValueId> looked_at,
                          PassBudget* budget) {
  PassBudget unlimited;
  Detector detector(program, policy, budget ? *budget : unlimited);
  for (ValueId id : looked_at) detector.Cover(id);
  detector.Visit(region);
  return {detector.TakeLooks()};
}

}  // namespace simgrad::sim
