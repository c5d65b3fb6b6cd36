#include "sim/program/activity.h"

#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

// Piecewise constant or explicitly cut: no derivative passes.
bool Blocks(OpCode code) {
  switch (code) {
    case OpCode::kSign:
    case OpCode::kFloor:
    case OpCode::kRound:
    case OpCode::kArgmax:
    case OpCode::kArgmin:
    case OpCode::kConvert:
    case OpCode::kStopGradient:
      return true;
    default:
      return false;
  }
}

class Activity {
 public:
  Activity(const Program& program, const AdjointSpec& spec)
      : program_(program), active_(program.values.size(), false) {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const Input& input = program.inputs[i];
      const bool wanted = i < spec.wanted.size() && spec.wanted[i];
      if (input.kind == InputKind::kState || wanted) Mark(input.value);
    }
  }

  void Visit(const Region& region) {
    do {
      changed_ = false;
      Pass(region);
    } while (changed_);
  }

  void Mark(ValueId id) {
    if (id == ValueId::kNone || active_[Index(id)]) return;
    if (program_[id].type.element != ElementType::kReal) return;
    active_[Index(id)] = true;
    changed_ = true;
  }

  std::vector<bool> Take() { return std::move(active_); }

 private:
  void Flow(ValueId from, ValueId to) {
    if (active_[Index(from)]) Mark(to);
  }

  void Pass(const Region& region) {
    for (const Op& op : region.ops) {
      if (op.code == OpCode::kWhile) {
        PassWhile(op);
      } else if (op.code == OpCode::kFor) {
        PassFor(op);
      } else if (!Blocks(op.code)) {
        for (ValueId operand : op.operands) {
          for (ValueId result : op.results) Flow(operand, result);
        }
      }
    }
  }

  void PassWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const size_t tests = op.attributes.has_entry ? 3 : 2;
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Flow(op.operands[i], test.args[i]);
      Flow(op.operands[i], body.args[i < c ? i : i + e]);
    }
    Pass(test);
    for (size_t i = 0; i < e; ++i) {
      Flow(test.yields[tests + i], body.args[c + i]);
      Flow(test.yields[tests + i], op.results[c + i]);
    }
    Pass(body);
    for (size_t i = 0; i < c; ++i) {
      Flow(body.yields[i], test.args[i]);
      Flow(body.yields[i], body.args[i]);
      Flow(test.args[i], op.results[i]);
    }
  }

  void PassFor(const Op& op) {
    const Region& body = op.regions[0];
    for (size_t i = 0; i < op.operands.size(); ++i) Flow(op.operands[i], body.args[i + 1]);
    Pass(body);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Flow(body.yields[i], body.args[i + 1]);
      Flow(body.args[i + 1], op.results[i]);
    }
  }

  const Program& program_;
  std::vector<bool> active_;
  bool changed_ = false;
};

}  // namespace

std::vector<bool> ActiveValues(const Program& program, const Region* terminal,
                               const AdjointSpec& spec) {
  Activity activity(program, spec);
  activity.Visit(program.initial);
  activity.Visit(program.step);
  if (terminal != nullptr) {
    for (ValueId id : terminal->args) activity.Mark(id);
    activity.Visit(*terminal);
  }
  return activity.Take();
}

}  // namespace simgrad::sim
