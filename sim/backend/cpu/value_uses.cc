// Counts uses, finds values that share a slot, and what the adjoint needs recorded.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/op/op_info.h"

namespace simgrad::sim::cpu {
namespace {

bool IsComparison(const Op& op) { return InfoOf(op.code).op_class == OpClass::kCompare; }

class UseAnalysis {
 public:
  UseAnalysis(const NumericalProgram& program, const PlanOptions& options, WorkMeter& meter)
      : program_(program), options_(options), meter_(meter) {
    const size_t values = program.program.values.size();
    uses_.root.resize(values);
    for (size_t i = 0; i < values; ++i) uses_.root[i] = static_cast<int32_t>(i);
    uses_.count.assign(values, 0);
    uses_.readers.assign(values, 0);
    uses_.stored.assign(values, false);
    uses_.recomputed.resize(values);
    taped_.assign(values, 0);
    passed_.assign(values, false);
    makers_.resize(values);
    zero_.resize(values);
  }

  ValueUses Run() {
    const Program& p = program_.program;
    Visit(p.initial);
    Visit(p.step);
    for (const Objective& objective : p.objectives) Visit(objective.terminal);
    if (options_.adjoint && program_.adjoint) {
      for (const Region* region : RegionsOf(*program_.adjoint)) Visit(*region);
    } else if (program_.adjoint) {
      // The forward plan counts the bytes that recording will need.
      for (const Region* region : RegionsOf(*program_.adjoint)) VisitTapes(*region);
    }
    if (!options_.adjoint) {  // a replay hands no exports out
      for (const Export& exported : p.exports) Use(exported.value);
    }
    if (program_.stage_cost != ValueId::kNone) Use(program_.stage_cost);
    while (Spread(p.step) | SpreadStates() | Spread(p.initial) | SpreadTerminal()) {
    }
    for (const Region* region : {&p.initial, &p.step}) RecomputeIn(*region);
    for (const Objective& objective : p.objectives) RecomputeIn(objective.terminal);
    for (const Region* region : {&p.initial, &p.step}) DropUnread(*region);
    for (const Objective& objective : p.objectives) DropUnread(objective.terminal);
    return std::move(uses_);
  }

 private:
  void Use(ValueId id) {
    if (id == ValueId::kNone) return;
    ++uses_.count[Index(id)];
    ++uses_.readers[static_cast<size_t>(Root(id))];
  }
  int32_t Root(ValueId id) const { return uses_.root[Index(id)]; }
  bool Stored(ValueId id) const { return uses_.stored[static_cast<size_t>(Root(id))]; }
  // What a record of an argument points to.
  bool Mark(ValueId id) {
    passed_[static_cast<size_t>(Root(id))] = true;
    if (Stored(id)) return false;
    uses_.stored[static_cast<size_t>(Root(id))] = true;
    return true;
  }
  void Tape(ValueId id) {
    const size_t root = static_cast<size_t>(Root(id));
    uses_.stored[root] = true;
    if (root != Index(id)) passed_[root] = true;
  }

  void Visit(const Region& region) {
    for (const Op& op : region.ops) {
      meter_.Add(kPassWork);
      for (ValueId id : op.operands) Use(id);
      Use(op.attributes.where);
      if (op.code == OpCode::kTape) {
        Use(op.attributes.primal);
        ++taped_[Index(op.attributes.primal)];
        Tape(op.attributes.primal);
      }
      if (IsIdentity(program_, op)) {
        uses_.root[Index(op.results[0])] = Root(op.operands[0]);
        --uses_.readers[static_cast<size_t>(Root(op.operands[0]))];
      }
      if (op.results.size() == 1 && op.results[0] != ValueId::kNone) {
        makers_[Index(op.results[0])] = &op;
      }
      for (const Region& nested : op.regions) Visit(nested);
    }
    for (ValueId id : region.yields) Use(id);
  }

  // The operation that makes a root; null: several results, or from outside.
  const Op* MakerOf(ValueId id) const { return makers_[static_cast<size_t>(Root(id))]; }

  bool IsZero(ValueId id) {
    std::optional<bool>& known = zero_[static_cast<size_t>(Root(id))];
    if (!known) known = LooksZero(id);
    return *known;
  }

  bool LooksZero(ValueId id) const {
    const Op* op = MakerOf(id);
    while (op != nullptr && op->code == OpCode::kBroadcast) op = MakerOf(op->operands[0]);
    if (op == nullptr || op->code != OpCode::kLiteral) return false;
    return std::all_of(op->attributes.literal.begin(), op->attributes.literal.end(),
                       [](double x) { return x == 0.0 && !std::signbit(x); });
  }

  // Recorded for its own sake, or a literal, which is in reach of the adjoint.
  bool IsInReach(ValueId id) const {
    const Op* op = MakerOf(id);
    if (op != nullptr && op->code == OpCode::kLiteral) return true;
    return Stored(id) && !uses_.recomputed[static_cast<size_t>(Root(id))];
  }

  // A record goes to the second-level cache and back; a comparison of what is recorded anyway costs
  // less. Where max(x, 0) is recorded, x > 0 is told from it.
  void RecomputeIn(const Region& region) {
    std::map<int32_t, ValueId> positive_part;  // by root of x: a recorded max(x, 0)
    for (const Op& op : region.ops) {
      meter_.Add(kPassWork);
      for (const Region& nested : op.regions) RecomputeIn(nested);
      if (op.code != OpCode::kMax || !Stored(op.results[0])) continue;
      for (size_t side = 0; side < 2; ++side) {
        if (IsZero(op.operands[1 - side])) positive_part[Root(op.operands[side])] = op.results[0];
      }
    }
    for (const Op& op : region.ops) {
      meter_.Add(kPassWork);
      if (!IsComparison(op) && op.code != OpCode::kMin && op.code != OpCode::kMax) continue;
      const size_t root = static_cast<size_t>(Root(op.results[0]));
      if (!Stored(op.results[0]) || passed_[root]) continue;
      Recomputed again = {op.code, op.operands[0], op.operands[1]};
      const auto positive = positive_part.find(Root(again.a));
      if (!IsInReach(again.a) && op.code == OpCode::kGt && IsZero(again.b) &&
          positive != positive_part.end()) {
        again.a = positive->second;
      }
      if (!IsInReach(again.a) || !IsInReach(again.b)) continue;
      passed_[static_cast<size_t>(Root(again.a))] = true;
      passed_[static_cast<size_t>(Root(again.b))] = true;
      uses_.recomputed[root] = again;
      uses_.stored[root] = false;
      uses_.count[root] -= taped_[root];
    }
  }

  // Comparisons that nobody reads are not computed, and read nothing.
  void DropUnread(const Region& region) {
    for (size_t i = region.ops.size(); i-- > 0;) {
      const Op& op = region.ops[i];
      meter_.Add(kPassWork);
      for (const Region& nested : op.regions) DropUnread(nested);
      if (!IsComparison(op) || uses_.count[Index(op.results[0])] > 0) continue;
      for (ValueId id : op.operands) --uses_.count[Index(id)];
    }
  }

  void VisitTapes(const Region& region) {
    for (const Op& op : region.ops) {
      meter_.Add(kPassWork);
      if (op.code == OpCode::kTape) Tape(op.attributes.primal);
      for (const Region& nested : op.regions) VisitTapes(nested);
    }
  }

  // An argument is recorded by recording what it points to.
  bool Spread(const Region& region) {
    bool changed = false;
    for (const Op& op : region.ops) {
      meter_.Add(kPassWork);
      if (op.code == OpCode::kWhile) changed |= SpreadWhile(op);
      if (op.code == OpCode::kFor) changed |= SpreadFor(op);
      for (const Region& nested : op.regions) changed |= Spread(nested);
    }
    return changed;
  }

  // A place of a loop (or of the states): the values that hold what is carried there, and those
  // that are recorded where one of these is.
  struct CarriedPlace {
    std::vector<ValueId> arguments, sources;
  };

  // Recording one place may record the argument of another, so places are visited until none is
  // new, each once.
  bool SpreadPlaces(const std::vector<CarriedPlace>& places) {
    std::unordered_map<int32_t, size_t> place_of;  // by root of an argument
    std::vector<size_t> open;
    for (size_t k = 0; k < places.size(); ++k) {
      bool stored = false;
      for (ValueId id : places[k].arguments) {
        place_of[Root(id)] = k;
        stored = stored || Stored(id);
      }
      if (stored) open.push_back(k);
    }
    bool changed = false;
    while (!open.empty()) {
      const CarriedPlace& place = places[open.back()];
      open.pop_back();
      meter_.Add(kPassWork);
      for (const std::vector<ValueId>* ids : {&place.arguments, &place.sources}) {
        for (ValueId id : *ids) {
          if (!Mark(id)) continue;
          changed = true;
          const auto next = place_of.find(Root(id));
          if (next != place_of.end()) open.push_back(next->second);
        }
      }
    }
    return changed;
  }

  bool SpreadFor(const Op& op) {
    std::vector<CarriedPlace> places;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      places.push_back({{op.regions[0].args[k + 1]}, {op.operands[k], op.regions[0].yields[k]}});
    }
    return SpreadPlaces(places);
  }

  bool SpreadWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    std::vector<CarriedPlace> places;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      places.push_back({{test.args[k], body.args[k < c ? k : k + e]}, {op.operands[k]}});
      if (k < c) places.back().sources.push_back(body.yields[k]);
    }
    for (size_t k = 0; k < e; ++k) {
      places.push_back({{body.args[c + k]}, {test.yields[FirstExport(op) + k]}});
    }
    return SpreadPlaces(places);
  }

  bool SpreadStates() {
    const Program& p = program_.program;
    std::vector<CarriedPlace> places;
    const std::vector<int32_t> states = p.InputsOf(InputKind::kState);
    for (size_t k = 0; k < states.size(); ++k) {
      places.push_back({{p.inputs[static_cast<size_t>(states[k])].value}, {p.step.yields[k]}});
    }
    return SpreadPlaces(places);
  }

  bool SpreadTerminal() {
    bool changed = false;
    for (const Objective& objective : program_.program.objectives) {
      changed |= Spread(objective.terminal);
    }
    return changed;
  }

  const NumericalProgram& program_;
  const PlanOptions& options_;
  WorkMeter& meter_;
  ValueUses uses_;
  std::vector<int32_t> taped_;             // by value: uses by tapes
  std::vector<bool> passed_;               // by root: its record is needed for something else
  std::vector<const Op*> makers_;          // by value
  std::vector<std::optional<bool>> zero_;  // by root, once it has been asked
};

}  // namespace

ValueUses AnalyzeUses(const NumericalProgram& program, const PlanOptions& options,
                      WorkMeter& meter) {
  return UseAnalysis(program, options, meter).Run();
}

}  // namespace simgrad::sim::cpu
