#include "sim/engine/gate.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// Follows the flow of one input's value through `step`, in text order.
class Flow {
 public:
  explicit Flow(const Program& program) : program_(program) {}

  std::string GateOf(ValueId input) {
    reached_.insert(input);
    Follow(program_.step, "");
    for (ValueId id : program_.step.yields) ungated_ = ungated_ || Reaches(id);
    for (const Export& item : program_.exports) ungated_ = ungated_ || Reaches(item.value);
    return ungated_ ? "" : gate_;
  }

 private:
  bool Reaches(ValueId id) const { return reached_.count(id) != 0; }
  bool ReachesAny(const std::vector<ValueId>& ids) const {
    for (ValueId id : ids) {
      if (Reaches(id)) return true;
    }
    return false;
  }
  void Note(const std::string& gate) {
    if (gate_.empty()) gate_ = gate;
  }

  // The event that a condition comes from, through logic and shape; empty if it is none.
  std::string EventOf(ValueId condition) const {
    const auto found = event_of_.find(condition);
    return found == event_of_.end() ? "" : found->second;
  }

  // `around`: the site of the innermost loop whose body this is.
  void Follow(const Region& region, const std::string& around) {
    for (const Op& op : region.ops) FollowOp(op, around);
  }

  void FollowOp(const Op& op, const std::string& around) {
    const OpClass op_class = InfoOf(op.code).op_class;
    if (op.code == kEvent) {
      event_of_[op.results[0]] = op.attributes.site;
      return;
    }
    if (op_class == OpClass::kLogic || op_class == OpClass::kShape) {
      for (ValueId id : op.operands) {
        const std::string event = EventOf(id);
        if (!event.empty()) event_of_.emplace(op.results[0], event);
      }
    }
    if (op.code == kWhile) return FollowWhile(op, around);
    if (op.code == kFor) return FollowFor(op, around);
    if (op_class == OpClass::kCompare || op.code == kStopGradient) return;
    if (!ReachesAny(op.operands)) return;
    if (op.code == kSelect) {
      const std::string event = EventOf(op.operands[0]);
      if (!event.empty()) return Note(event);
    }
    // A use inside the body of a loop is gated by it, wherever the value flows from there.
    if (!around.empty()) return Note(around);
    reached_.insert(op.results.begin(), op.results.end());
  }

  void FollowWhile(const Op& op, const std::string& around) {
    const WhileCounts counts = CountsOf(op);
    const size_t carried = static_cast<size_t>(counts.carried);
    const size_t exports = static_cast<size_t>(counts.exports);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    const auto pass = [&](ValueId from, ValueId to) {
      if (Reaches(from)) reached_.insert(to);
    };
    for (size_t k = 0; k < op.operands.size(); ++k) {
      pass(op.operands[k], test.args[k]);
      pass(op.operands[k], body.args[k < carried ? k : k + exports]);
    }
    Follow(test, around);
    const size_t first_export = op.attributes.has_entry ? 3 : 2;
    for (size_t k = 0; k < exports; ++k) {
      pass(test.yields[first_export + k], body.args[carried + k]);
      pass(test.yields[first_export + k], op.results[carried + k]);
    }
    // What enters the loop leaves it, whether the body runs or not.
    for (size_t k = 0; k < carried; ++k) pass(op.operands[k], op.results[k]);
    Follow(body, op.attributes.site);
    for (ValueId id : body.yields) {
      bool is_carried = false;
      for (size_t k = 0; k < carried; ++k) is_carried = is_carried || body.args[k] == id;
      if (!is_carried && Reaches(id)) Note(op.attributes.site);
    }
  }

  void FollowFor(const Op& op, const std::string& around) {
    const Region& body = op.regions[0];
    for (size_t k = 0; k < op.operands.size(); ++k) {
      if (Reaches(op.operands[k])) reached_.insert({body.args[k + 1], op.results[k]});
    }
    Follow(body, around);
    for (size_t k = 0; k < body.yields.size(); ++k) {
      if (Reaches(body.yields[k])) reached_.insert(op.results[k]);
    }
  }

  const Program& program_;
  std::unordered_set<ValueId> reached_;
  std::unordered_map<ValueId, std::string> event_of_;
  std::string gate_;
  bool ungated_ = false;
};

}  // namespace

std::string GateOf(const Program& program, int32_t input) {
  return Flow(program).GateOf(program.inputs[static_cast<size_t>(input)].value);
}

}  // namespace simgrad::sim
