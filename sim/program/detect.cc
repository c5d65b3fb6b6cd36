#include "sim/program/detect.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/rounding.h"
#include "sim/op/op_info.h"
#include "sim/program/loop.h"
#include "sim/program/primal_reads.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// Every value starts as covered by whatever may cover it; what turns out not to be takes its own
// cover away from others, until nothing changes: the greatest fixpoint, of all loops at once.
class Detector {
 public:
  Detector(const NumericalProgram& numerical, PassBudget& budget)
      : program_(numerical.program),
        policy_(numerical.policy),
        infinite_(numerical.infinite),
        budget_(budget),
        primal_reads_(PrimalReadsOf(numerical)),
        values_(program_.values.size()) {
    if (numerical.adjoint) of_adjoint_ = RegionsOf(*numerical.adjoint);
  }

  Detection Looks(const Region& region, std::span<const ValueId> looked_at) {
    in_adjoint_ = std::find(of_adjoint_.begin(), of_adjoint_.end(), &region) != of_adjoint_.end();
    Read(region);
    for (ValueId id : looked_at) {
      if (id != ValueId::kNone) ++At(id).covers;
    }
    // Covers are counted as if everything were covered.
    for (size_t i = 0; i < values_.size(); ++i) {
      budget_.Visit();
      if (values_[i].maker != nullptr)
        EachCarried(*values_[i].maker, [](Known& to) { ++to.covers; });
    }
    for (size_t i = 0; i < slots_.size(); ++i)
      EachOfSlot(slots_[i], [](Known& to) { ++to.covers; });
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].home >= 0 && values_[i].covers == 0) bare_.push_back(i);
    }
    while (!bare_.empty()) {
      const size_t value = bare_.back();
      bare_.pop_back();
      Bare(values_[value]);
    }
    Detection found = {std::vector<bool>(values_.size(), false), std::move(looked_at_before_)};
    for (size_t i = 0; i < values_.size(); ++i) {
      found.look[i] = values_[i].maker != nullptr && values_[i].born && values_[i].covers == 0;
    }
    return found;
  }

 private:
  struct Known {
    int32_t home = -1;                 // the region that defines it; -1: none of these
    int32_t covers = 0;                // what carries it to where it is looked at
    int32_t slot = -1;                 // the loop slot that hangs on it
    const Op* maker = nullptr;         // real results of operations without regions
    bool born = false;                 // the maker can give a non-finite result
    const Op* primal_maker = nullptr;  // of what is looked at where it is read
    ValueId where = ValueId::kNone;
  };
  // A carried value, export or mapped operand of a loop: covered as its values say, and covering.
  struct Slot {
    enum class Rule : uint8_t { kFor, kForNever, kWhile, kWhileCapFirst, kExport, kMapped };
    Rule rule;
    ValueId result = ValueId::kNone;
    ValueId body = ValueId::kNone;     // argument of the body
    ValueId test = ValueId::kNone;     // argument of the test
    ValueId inside = ValueId::kNone;   // covered by it: a yield of `inside_home`
    ValueId operand = ValueId::kNone;  // covered by it: an operand of the loop, in `home`
    int32_t inside_home = -1;
    int32_t home = -1;
    bool holds = true;
  };

  Known& At(ValueId id) { return values_[Index(id)]; }
  const Known& At(ValueId id) const { return values_[Index(id)]; }
  bool Covered(ValueId id) const { return At(id).covers > 0; }

  // A sum of one number in one format is that number.
  bool IsSumOfOne(const Op& op) const {
    if (op.code != kSum || op.attributes.order == Order::kExact) return false;
    const Value& from = program_[op.operands[0]];
    const Value& to = program_[op.results[0]];
    return ElementCount(from.type.shape) == ElementCount(to.type.shape) &&
           from.format == to.format && !precision::Narrows(*from.format, op.attributes.accumulator);
  }

  bool CanBeBorn(const Op& op) const {
    if (IsSumOfOne(op)) return false;
    if (op.code == kCast || op.code == kTape) {
      const ValueId from = op.code == kCast ? op.operands[0] : op.attributes.primal;
      return precision::Narrows(program_[from].format.value_or(Format::kF64),
                                *program_[op.results[0]].format);
    }
    if (op.code != kLiteral) return InfoOf(op.code).can_create();
    // A literal beyond the range of its format; an infinite one where the format has no infinity.
    const Format format = *program_[op.results[0]].format;
    return std::any_of(op.attributes.literal.begin(), op.attributes.literal.end(), [&](double x) {
      const double rounded = precision::RoundTo(format, x);
      return !std::isfinite(rounded) && rounded != x;
    });
  }

  // Whether a non-finite element of operand k always makes the result non-finite.
  bool Carries(const Op& op, size_t k) const {
    const OpInfo& info = InfoOf(op.code);
    if (info.carries == nullptr) return info.propagates;
    const ValueId where = At(op.operands[k]).where;
    return info.carries({program_, op, k, OverflowInForce(policy_, op), where});
  }

  bool IsMeant(ValueId id) const {
    return id != ValueId::kNone && !infinite_.empty() && infinite_[Index(id)];
  }
  // Whether what goes from one value to another is seen there: where infinities are meant, only NaN.
  bool IsSeenAs(ValueId from, bool to_is_meant) const { return !to_is_meant || IsMeant(from); }

  // Whether `op` is executed wherever the value is.
  bool ExecutedWith(const Op& op, ValueId value) const {
    const ValueId where = op.attributes.where;
    return where == ValueId::kNone || where == At(value).where;
  }

  void Define(ValueId id, int32_t home, ValueId where) {
    if (id == ValueId::kNone) return;
    At(id).home = home;
    At(id).where = where;
  }

  int32_t Read(const Region& region) {
    const int32_t home = homes_++;
    for (ValueId id : region.args) Define(id, home, ValueId::kNone);
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
      for (ValueId id : op.results) Define(id, home, op.attributes.where);
      ReadOp(op, home);
    }
    return home;
  }

  bool IsPrimalRead(ValueId id) const {
    return id != ValueId::kNone && !primal_reads_.empty() && primal_reads_[Index(id)];
  }

  // Whether its result is looked at, or carries what it is to where that is.
  bool IsSeen(const Op& op) const {
    const bool has_regions = !op.regions.empty() || op.code == kEvent || op.code == kAccumulate;
    return !has_regions && program_.IsReal(op.results[0]) && program_[op.results[0]].watched;
  }

  // Whether it reads what may have come in from outside: a cotangent that was sent or a seed beyond its
  // format enters by no operation, and the first one that reads it is where it is seen.
  bool ReadsEntrant(const Op& op) const {
    return std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId id) {
      return program_.IsReal(id) && At(id).home >= 0 && At(id).maker == nullptr &&
             !IsPrimalRead(id);
    });
  }

  // Notes what must be looked at before `op`; returns whether it shows a number of the primal itself.
  bool ReadPrimal(const Op& op) {
    bool shows = false;
    if (!ReadsNumbers(program_, op)) return shows;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const ValueId operand = op.operands[k];
      if (!IsPrimalRead(operand) || !At(operand).born) continue;
      const bool carries = op.code == kSelect || (ReadsByElement(op) && Carries(op, k));
      const bool carried = IsSeen(op) && carries && IsSeenAs(operand, IsMeant(op.results[0]));
      shows = shows || carried;
      if (!carried) looked_at_before_[&op].push_back({operand, k});
      LookBehind(operand, op, k);
    }
    return shows;
  }

  // One that its readers look at.
  void ReadPrimalRead(const Op& op) {
    Known& result = At(op.results[0]);
    const bool reads_one = op.code != kTape && IsPrimalRead(op.operands[0]);
    result.primal_maker = &op;
    result.born = CanBeBorn(op) || (reads_one && At(op.operands[0]).born);
  }

  // Notes the numbers that a cast was made of, and may hide.
  void LookBehind(ValueId cast, const Op& reader, size_t operand) {
    const Op* const maker = At(cast).primal_maker;
    if (maker->code == kTape) return;
    const ValueId source = maker->operands[0];
    if (!IsPrimalRead(source) || !At(source).born) return;
    const bool carried = Carries(*maker, 0) && IsSeenAs(source, IsMeant(cast));
    if (!carried) looked_at_before_[&reader].push_back({source, operand});
    LookBehind(source, reader, operand);
  }

  void ReadOp(const Op& op, int32_t home) {
    if (!op.results.empty() && IsPrimalRead(op.results[0])) return ReadPrimalRead(op);
    const bool shows = ReadPrimal(op);
    if (op.code == kWhile) return ReadWhile(op, home);
    if (op.code == kFor) return ReadFor(op, home);
    for (const Region& region : op.regions) Read(region);
    // The owner of an accumulator looks at it.
    if (!IsSeen(op)) return;
    At(op.results[0]).maker = &op;
    At(op.results[0]).born = shows || CanBeBorn(op) || (in_adjoint_ && ReadsEntrant(op));
  }

  void ReadWhile(const Op& op, int32_t home) {
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t e = static_cast<size_t>(counts.exports);
    const size_t m = static_cast<size_t>(counts.mapped);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    const size_t first_export = FirstExport(op);
    const int32_t in_test = Read(test);
    const int32_t in_body = Read(body);
    const bool test_first = op.attributes.cap_order == CapOrder::kTestFirst;
    for (size_t k = 0; k < c; ++k) {
      Add({test_first ? Slot::Rule::kWhile : Slot::Rule::kWhileCapFirst, op.results[k],
           body.args[k], test.args[k], body.yields[k], op.operands[k], in_body, home});
    }
    for (size_t k = 0; k < e; ++k) {
      Add({Slot::Rule::kExport, op.results[c + k], body.args[c + k], ValueId::kNone,
           test.yields[first_export + k], ValueId::kNone, in_test, home});
    }
    for (size_t k = 0; k < m; ++k) {
      Add({Slot::Rule::kMapped, ValueId::kNone, ValueId::kNone, test.args[c + k], ValueId::kNone,
           op.operands[c + k], -1, home});
    }
  }

  void ReadFor(const Op& op, int32_t home) {
    const Region& body = op.regions[0];
    const int32_t in_body = Read(body);
    const auto rule = op.attributes.max_iter > 0 ? Slot::Rule::kFor : Slot::Rule::kForNever;
    // Only carried values cover others; a scanned or stacked one does not.
    for (size_t k = 0; k < static_cast<size_t>(op.attributes.carried); ++k) {
      Add({rule, op.results[k], body.args[k + 1], ValueId::kNone, body.yields[k], op.operands[k],
           in_body, home});
    }
  }

  void Add(const Slot& slot) {
    for (ValueId id : {slot.result, slot.body, slot.test}) {
      if (id != ValueId::kNone) At(id).slot = static_cast<int32_t>(slots_.size());
    }
    slots_.push_back(slot);
  }

  // A while whose test comes first ends with a test of the final values, which covers them.
  bool Holds(const Slot& slot) const {
    switch (slot.rule) {
      case Slot::Rule::kFor:
      case Slot::Rule::kExport:
        return Covered(slot.result) && Covered(slot.body);
      case Slot::Rule::kForNever:
        return Covered(slot.result);
      case Slot::Rule::kWhile:
        return Covered(slot.test) || (Covered(slot.result) && Covered(slot.body));
      case Slot::Rule::kWhileCapFirst:
        return Covered(slot.result) && (Covered(slot.body) || Covered(slot.test));
      case Slot::Rule::kMapped:
        return Covered(slot.test);
    }
    return false;
  }

  // A use inside a loop does not cover a value from outside: the loop may not get there.
  template <class Each>
  void EachCarried(const Op& op, const Each& each) {
    const int32_t home = At(op.results[0]).home;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const ValueId operand = op.operands[k];
      if (!program_.IsReal(operand) || At(operand).home != home) continue;
      if (!IsSeenAs(operand, IsMeant(op.results[0]))) continue;
      if (Carries(op, k) && ExecutedWith(op, operand)) each(At(operand));
    }
  }

  template <class Each>
  void EachOfSlot(const Slot& slot, const Each& each) {
    const bool meant = IsMeant(slot.result) || IsMeant(slot.body) || IsMeant(slot.test);
    const auto cover = [&](ValueId id, int32_t home) {
      if (id == ValueId::kNone || At(id).home != home || !IsSeenAs(id, meant)) return;
      each(At(id));
    };
    cover(slot.inside, slot.inside_home);
    cover(slot.operand, slot.home);
  }

  void Uncover(Known& value) {
    budget_.Visit();
    if (--value.covers == 0) bare_.push_back(static_cast<size_t>(&value - values_.data()));
  }

  // Nothing covers the value; where it is not looked at itself, it covers nothing either.
  void Bare(const Known& value) {
    budget_.Visit();
    if (value.maker != nullptr && !value.born) {
      EachCarried(*value.maker, [this](Known& to) { Uncover(to); });
    }
    if (value.slot < 0) return;
    Slot& slot = slots_[static_cast<size_t>(value.slot)];
    if (!slot.holds || Holds(slot)) return;
    slot.holds = false;
    EachOfSlot(slot, [this](Known& to) { Uncover(to); });
  }

  const Program& program_;
  const precision::Policy& policy_;
  const std::vector<bool>& infinite_;
  PassBudget& budget_;
  const std::vector<bool> primal_reads_;
  std::vector<const Region*> of_adjoint_;
  bool in_adjoint_ = false;  // the region whose looks are asked for
  absl::flat_hash_map<const Op*, std::vector<PrimalRead>> looked_at_before_;
  std::vector<Known> values_;
  std::vector<Slot> slots_;
  std::vector<size_t> bare_;  // values that have just lost their last cover
  int32_t homes_ = 0;
};

}  // namespace

Detection DetectNonFinite(const NumericalProgram& numerical, const Region& region,
                          std::span<const ValueId> looked_at, PassBudget* budget) {
  PassBudget unlimited;
  Detector detector(numerical, budget ? *budget : unlimited);
  return detector.Looks(region, looked_at);
}

Detection LooksOf(const NumericalProgram& program, LooksIn where, PassBudget* budget) {
  const Program& p = program.program;
  Detection looks = {std::vector<bool>(p.values.size(), false), {}};
  const auto add = [&](const Region& region, std::span<const ValueId> looked_at) {
    Detection found = DetectNonFinite(program, region, looked_at, budget);
    for (size_t i = 0; i < looks.look.size(); ++i) looks.look[i] = looks.look[i] || found.look[i];
    looks.reads.merge(found.reads);
  };
  std::vector<ValueId> of_step = p.step.yields;
  of_step.push_back(program.stage_cost);
  add(p.step, of_step);
  add(p.initial, p.initial.yields);
  if (const Region* terminal = TerminalOf(program)) add(*terminal, terminal->yields);
  if (where == LooksIn::kForward) return looks;
  for (const Region* region : RegionsOf(*program.adjoint)) add(*region, {});
  return looks;
}

}  // namespace simgrad::sim
