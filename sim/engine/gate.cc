#include "sim/engine/gate.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// A bool that had one value all the time, because of a site.
struct Fixed {
  bool value = false;
  std::string site;
};

// Follows the flow of one input's value through `step`, in text order.
class Flow {
 public:
  Flow(const Program& program, const Decided& decided) : program_(program), decided_(decided) {}

  std::string GateOf(ValueId input) {
    reached_.insert(input);
    Follow(program_.step);
    for (ValueId id : program_.step.yields) {
      if (Reaches(id)) return "";
    }
    for (const Export& item : program_.exports) {
      if (Reaches(item.value)) return "";
    }
    return gate_;
  }

 private:
  bool Reaches(ValueId id) const { return reached_.count(id) != 0; }
  bool ReachesAny(const std::vector<ValueId>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [this](ValueId id) { return Reaches(id); });
  }
  void Pass(ValueId from, ValueId to) {
    if (Reaches(from)) reached_.insert(to);
  }
  void Note(const std::string& gate) {
    if (gate_.empty()) gate_ = gate;
  }
  const Fixed* FixedAt(ValueId id) const {
    const auto found = fixed_.find(id);
    return found == fixed_.end() ? nullptr : &found->second;
  }

  void Follow(const Region& region) {
    for (const Op& op : region.ops) FollowOp(op);
  }

  void FollowOp(const Op& op) {
    switch (InfoOf(op.code).op_class) {
      case OpClass::kControl:
        if (op.code == kWhile) return FollowWhile(op);
        if (op.code == kFor) return FollowFor(op);
        return FixEvent(op);
      case OpClass::kCompare:
        return;
      case OpClass::kLogic:
        return FixLogic(op);
      case OpClass::kChoice:
        return FollowSelect(op);
      default:
        break;
    }
    if (op.code == kStopGradient) return;
    if (const Fixed* same = op.operands.size() == 1 ? FixedAt(op.operands[0]) : nullptr) {
      if (InfoOf(op.code).op_class == OpClass::kShape) fixed_[op.results[0]] = Fixed(*same);
    }
    if (ReachesAny(op.operands)) reached_.insert(op.results.begin(), op.results.end());
  }

  // An event is false where its guard is.
  void FixEvent(const Op& op) {
    const auto found = decided_.events.find(op.attributes.site);
    if (found == decided_.events.end()) return;
    const auto [checks, count] = found->second;
    if (count == 0) {
      fixed_[op.results[0]] = {false, op.attributes.site};
    } else if (count == checks) {
      const Fixed* guard = op.operands.size() > 2 ? FixedAt(op.operands[2]) : nullptr;
      const bool decides = op.operands.size() == 2 || (guard != nullptr && guard->value);
      if (decides) fixed_[op.results[0]] = {true, op.attributes.site};
    }
  }

  void FixLogic(const Op& op) {
    const Fixed* first = FixedAt(op.operands[0]);
    if (op.code == kNot) {
      if (first != nullptr) fixed_[op.results[0]] = Fixed{!first->value, first->site};
      return;
    }
    // One operand of this value settles it; two of the other do as well.
    const bool settles = op.code == kOr;
    const Fixed* second = FixedAt(op.operands[1]);
    for (const Fixed* one : {first, second}) {
      if (one != nullptr && one->value == settles) {
        fixed_[op.results[0]] = Fixed(*one);
        return;
      }
    }
    if (first != nullptr && second != nullptr) fixed_[op.results[0]] = Fixed(*first);
  }

  void FollowSelect(const Op& op) {
    const Fixed* condition = FixedAt(op.operands[0]);
    for (const bool chosen : {true, false}) {
      const ValueId operand = op.operands[chosen ? 1 : 2];
      if (condition == nullptr || condition->value == chosen) {
        Pass(operand, op.results[0]);
      } else if (Reaches(operand)) {
        Note(condition->site);
      }
    }
  }

  void FollowWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t carried = static_cast<size_t>(counts.carried);
    const size_t exports = static_cast<size_t>(counts.exports);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    const size_t first_export = op.attributes.has_entry ? 3 : 2;
    const auto ran = decided_.iterations.find(op.attributes.site);
    const bool runs = ran == decided_.iterations.end() || ran->second > 0;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      Pass(op.operands[k], test.args[k]);
      Pass(op.operands[k], body.args[k < carried ? k : k + exports]);
    }
    // A value goes once around for every slot that it can move on to.
    for (size_t round = 0; round <= carried; ++round) {
      Follow(test);
      for (size_t k = 0; k < exports; ++k) {
        Pass(test.yields[first_export + k], body.args[carried + k]);
      }
      if (!runs) break;
      Follow(body);
      for (size_t k = 0; k < carried; ++k) {
        Pass(body.yields[k], body.args[k]);
        Pass(body.yields[k], test.args[k]);
      }
    }
    for (size_t k = 0; k < carried; ++k) Pass(test.args[k], op.results[k]);
    for (size_t k = 0; k < exports; ++k) {
      Pass(test.yields[first_export + k], op.results[carried + k]);
    }
    if (!runs && Uses(body)) Note(op.attributes.site);
  }

  // Whether a body reads what the value reached, beyond handing it on.
  bool Uses(const Region& body) const {
    return std::any_of(body.ops.begin(), body.ops.end(), [this](const Op& op) {
      return ReachesAny(op.operands) ||
             std::any_of(op.regions.begin(), op.regions.end(),
                         [this](const Region& nested) { return Uses(nested); });
    });
  }

  void FollowFor(const Op& op) {
    const Region& body = op.regions[0];
    for (size_t k = 0; k < op.operands.size(); ++k) {
      Pass(op.operands[k], body.args[k + 1]);
      Pass(op.operands[k], op.results[k]);
    }
    for (size_t round = 0; round <= body.yields.size() && op.attributes.max_iter > 0; ++round) {
      Follow(body);
      for (size_t k = 0; k < body.yields.size(); ++k) {
        Pass(body.yields[k], body.args[k + 1]);
        Pass(body.yields[k], op.results[k]);
      }
    }
  }

  const Program& program_;
  const Decided& decided_;
  std::unordered_set<ValueId> reached_;
  std::unordered_map<ValueId, Fixed> fixed_;
  std::string gate_;
};

}  // namespace

void Decided::Add(const std::vector<Site>& sites, const StepDiagnostics& diagnostics) {
  size_t termination = 0;
  size_t event = 0;
  for (const Site& site : sites) {
    if (site.kind == SiteKind::kTermination) {
      if (termination == diagnostics.terminations.size()) return;  // nothing was recorded
      uint64_t& sum = iterations[site.name];
      for (const TerminationStep& step : diagnostics.terminations[termination]) {
        sum += step.iterations_sum;
      }
      ++termination;
    } else {
      if (event == diagnostics.events.size()) return;
      Event& sum = events[site.name];
      for (const EventStep& step : diagnostics.events[event]) {
        sum.checks += step.checks;
        sum.count += step.count;
      }
      ++event;
    }
  }
}

std::string GateOf(const Program& program, int32_t input, const Decided& decided) {
  return Flow(program, decided).GateOf(program.inputs[static_cast<size_t>(input)].value);
}

}  // namespace simgrad::sim
