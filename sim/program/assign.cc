#include "sim/program/assign.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "precision/float_environment.h"
#include "precision/quantize.h"
#include "precision/rounding.h"
#include "sim/op/op_info.h"
#include "sim/program/loop.h"
#include "sim/program/paths.h"
#include "sim/program/permutation.h"

namespace simgrad::sim {
namespace {

using precision::RoleSetting;

class Assigner {
 public:
  Assigner(NumericalProgram numerical, PassBudget& budget)
      : numerical_(std::move(numerical)), budget_(budget) {
    const size_t values = program_.values.size();
    frame_of_.resize(values, 0);
    where_of_.resize(values, ValueId::kNone);
    is_outside_.resize(values, false);
    is_stored_.resize(values, false);
    scaled_.resize(values, Scaled::kNot);
    for (const auto& [site, change] : policy_.sites) {
      precision::Policy& alone = policy_of_[site];
      alone.roles = policy_.roles;
      alone.sites.push_back({site, change});
    }
    for (const Input& input : program_.inputs) {
      const bool state = input.kind == InputKind::kState;
      SetReal(input.value, state ? policy_[Role::kState].format : Format::kF64);
      is_stored_[Index(input.value)] = state;
      is_outside_[Index(input.value)] = !state && program_.IsReal(input.value);
    }
  }

  NumericalProgram Run() {
    if (program_.HasInitial()) AssignRegion(program_.initial, Role::kState);
    AssignRegion(program_.step, Role::kState);
    bool has_terminal = false;
    for (Objective& objective : program_.objectives) {
      if (!objective.HasTerminal()) continue;
      has_terminal = true;
      SetTerminalArgs(objective.terminal);
      AssignRegion(objective.terminal, Role::kObjective);
    }
    if (numerical_.adjoint) AssignAdjoint(*numerical_.adjoint, has_terminal);
    return std::move(numerical_);
  }

 private:
  // The key of a cast: two casts with one key are the same cast.
  struct Cast {
    ValueId source;
    Format format;
    Overflow overflow;
    Role role;
    CastRounding rounding = CastRounding::kNearestEven;
    std::optional<Format> kept = {};  // what of it is left under a scale
    ValueId where = ValueId::kNone;
    bool operator==(const Cast&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Cast& cast) {
      return H::combine(std::move(hash), cast.source, cast.format, cast.overflow, cast.role,
                        cast.rounding, cast.kept, cast.where);
    }
  };
  // A reader of a value that is cast for it, and where it reads, if not wherever the value is.
  struct User {
    const Op& op;
    ValueId where = ValueId::kNone;
    User(const Op& reader) : User(reader, reader.attributes.where) {}
    User(const Op& reader, ValueId mask) : op(reader), where(mask) {}
  };
  // The origin of a value of a role with a scale.
  enum class Scaled : uint8_t {
    kNot,       // it is none
    kComputed,  // an operation of the role
    kEntered,   // another role, under the scale
  };
  // A region being rewritten.
  struct Frame {
    std::vector<Op> ops;
    absl::flat_hash_map<Cast, ValueId> casts;  // to their results
  };

  bool IsLiteral(ValueId id) const { return literal_of_.contains(id); }

  void SetReal(ValueId value, Format format) {
    if (program_.IsReal(value)) program_[value].format = format;
  }

  // A value that the role computes.
  void SetComputed(ValueId value, const RoleSetting& setting) {
    SetReal(value, setting.computes_in());
    if (value != ValueId::kNone && setting.scale != precision::Scale::kNone) {
      scaled_[Index(value)] = Scaled::kComputed;
    }
  }

  // `to` is `from`, or an element of it, under another name.
  void PassScaled(ValueId from, ValueId to) { scaled_[Index(to)] = scaled_[Index(from)]; }

  // They come as the states and the exports are.
  void SetTerminalArgs(const Region& terminal) {
    const size_t states = program_.InputsOf(InputKind::kState).size();
    for (size_t i = 0; i < terminal.args.size(); ++i) {
      if (i < states) {
        SetReal(terminal.args[i], policy_[Role::kState].format);
      } else if (const auto format = program_[program_.exports[i - states].value].format) {
        program_[terminal.args[i]].format = format;
      }
    }
  }

  void AssignAdjoint(Adjoint& adjoint, bool has_terminal) {
    const size_t seeds = numerical_.stage_cost == ValueId::kNone ? 0 : 1;
    AssignSlots(adjoint.terminal, has_terminal ? 1 : 0);
    if (adjoint.last) AssignSlots(*adjoint.last, seeds);
    AssignSlots(adjoint.inner, seeds);
    if (program_.HasInitial()) AssignSlots(adjoint.initial, 0);
  }

  void AssignSlots(Region& region, size_t seeds) {
    for (size_t i = 0; i < region.args.size(); ++i) {
      SetReal(region.args[i], policy_[i < seeds ? Role::kObjective : Role::kAdjoint].format);
    }
    SetPresence(std::span(region.args).subspan(seeds));
    frames_.clear();
    OpenFrame(region);
    VisitOps(region);
    Op user;
    user.role = Role::kAdjoint;
    BringSlots(region.yields, {}, policy_[Role::kAdjoint], user);
    CloseFrame(region);
  }

  // The real yields of `region` are cast into `role`.
  void AssignRegion(Region& region, Role role) {
    frames_.clear();
    OpenFrame(region);
    VisitOps(region);
    Op user;
    user.role = role;
    for (ValueId& id : region.yields) {
      if (!program_.IsReal(id)) continue;
      id = role == Role::kState ? Store(id, user) : Bring(id, policy_[role], user);
    }
    CloseFrame(region);
  }

  // A cotangent that enters or leaves a region is where its mask says.
  void SetPresence(std::span<const ValueId> slots) {
    const SlotList list = SlotList::Of(slots);
    for (size_t k = 0; k < list.size(); ++k) {
      if (list.cotangents[k] != ValueId::kNone)
        where_of_[Index(list.cotangents[k])] = list.masks[k];
    }
  }

  void OpenFrame(const Region& region) {
    frames_.push_back({});
    AddArgs(region);
  }

  // Arguments are defined in the innermost frame.
  void AddArgs(const Region& region) {
    budget_.Visit(static_cast<int64_t>(region.args.size() + region.yields.size()));
    for (ValueId id : region.args) {
      if (id != ValueId::kNone) frame_of_[Index(id)] = static_cast<int>(frames_.size()) - 1;
    }
  }

  void CloseFrame(Region& region) {
    region.ops = std::move(frames_.back().ops);
    frames_.pop_back();
  }

  void VisitOps(Region& region) {
    std::vector<Op> ops = std::move(region.ops);
    frames_.back().ops.reserve(ops.size() + ops.size() / 4);
    for (Op& op : ops) Visit(std::move(op));
  }

  RoleSetting SettingAt(Role role, const std::string& site) const {
    const auto named = policy_of_.find(site);
    return named == policy_of_.end() ? policy_[role] : named->second.At(role, site);
  }

  static std::string SiteOfEvent(const Op& event) {
    return std::string(BaseOfSite(WorldSite(event.attributes.site)));
  }

  RoleSetting SettingOf(const Op& op) const {
    const bool event = op.code == OpCode::kEvent;
    return SettingAt(op.role, event ? SiteOfEvent(op) : op.site);
  }

  void Visit(Op op) {
    budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      frame_of_[Index(id)] = static_cast<int>(frames_.size()) - 1;
      where_of_[Index(id)] = op.attributes.where;
    }
    if (op.code == OpCode::kLiteral && program_.IsReal(op.results[0])) {
      literal_of_[op.results[0]] = std::move(op);
      return;
    }
    if (op.code == OpCode::kCast) {
      VisitCast(op);
    } else if (op.code == OpCode::kTape) {
      const RoleSetting setting = policy_[Role::kTape];
      SetReal(op.results[0], setting.format);
      op.attributes.overflow = setting.overflow;
    } else if (op.code == OpCode::kWhile) {
      VisitWhile(op);
    } else if (op.code != OpCode::kLiteral) {
      VisitOther(op);
    }
    Push(frames_.back(), std::move(op));
  }

  // Operands, results, and the arguments and yields of regions have one format.
  void VisitOther(Op& op) {
    const RoleSetting setting = SettingOf(op);
    const bool moves = InfoOf(op.code).op_class == OpClass::kShape;
    if (moves && setting.scale != precision::Scale::kNone) return VisitMoving(op, setting);
    if (op.code == OpCode::kWhileVjp || op.code == OpCode::kForVjp)
      return VisitReverse(op, setting);
    BringAll(op.operands, setting, op);
    for (Region& region : op.regions) {
      OpenFrame(region);
      for (ValueId id : region.args) SetComputed(id, setting);
      VisitOps(region);
      BringAll(region.yields, setting, op);
      CloseFrame(region);
    }
    for (ValueId id : op.results) SetComputed(id, setting);
    if (!op.regions.empty()) return;
    op.attributes.order = setting.order;
    op.attributes.accumulator = setting.accumulator;
    if (op.code == OpCode::kMatmul) {
      op.attributes.rounding = setting.inputs;
      op.attributes.ordered = setting.products.order.has_value();
      if (op.attributes.ordered) op.attributes.order = *setting.products.order;
    }
    if (op.attributes.order.kind == Order::kShuffled) CountPermutation(op);
  }

  // Slots of the reverse loop of a branch that keep the format in which their cotangents enter.
  struct KeptSlots {
    size_t first = 0;
    std::vector<std::optional<Format>> formats = {};  // none: there is no cotangent
    size_t end() const { return first + formats.size(); }
  };

  KeptSlots KeptOf(const Op& op) const {
    KeptSlots kept;
    if (op.code != OpCode::kWhileVjp || op.attributes.kept_from == 0) return kept;
    kept.first = static_cast<size_t>(op.attributes.kept_from);
    for (size_t k = kept.first; k < static_cast<size_t>(op.attributes.carried); ++k) {
      const ValueId id = op.operands[k];
      const bool has_format = program_.IsReal(id) && !IsLiteral(id);
      kept.formats.push_back(has_format ? program_[id].format : std::nullopt);
    }
    return kept;
  }

  void SetKept(std::span<const ValueId> slots, const KeptSlots& kept) {
    for (size_t k = kept.first; k < kept.end(); ++k) {
      if (kept.formats[k - kept.first]) SetReal(slots[k], *kept.formats[k - kept.first]);
    }
  }

  // Operands, results, and what the regions take and yield are slots.
  void VisitReverse(Op& op, const RoleSetting& setting) {
    const KeptSlots kept = KeptOf(op);
    BringSlots(op.operands, kept, setting, op);
    const size_t index = op.code == OpCode::kForVjp ? 1 : 0;  // arguments that are no slots
    for (Region& region : op.regions) {
      OpenFrame(region);
      for (ValueId id : region.args) SetComputed(id, setting);
      SetPresence(std::span(region.args).subspan(index));
      SetKept(region.args, kept);
      VisitOps(region);
      BringSlots(region.yields, kept, setting, op);
      CloseFrame(region);
    }
    for (ValueId id : op.results) SetComputed(id, setting);
    SetPresence(op.results);
    SetKept(op.results, kept);
  }

  // Brings each cotangent where it is present, but for the kept ones, of which literals alone have no format yet.
  void BringSlots(std::span<ValueId> slots, const KeptSlots& kept, const RoleSetting& setting,
                  const Op& user) {
    const size_t half = slots.size() / 2;
    for (size_t k = 0; k < half; ++k) {
      if (!program_.IsReal(slots[k])) continue;
      const bool is_kept = k >= kept.first && k < kept.end() && kept.formats[k - kept.first];
      if (!is_kept) {
        slots[k] = Bring(slots[k], setting, User(user, slots[half + k]));
      } else if (IsLiteral(slots[k])) {
        slots[k] = LiteralIn(slots[k], *kept.formats[k - kept.first]);
      }
    }
  }

  // How many numbers the operation sums in its order for one of its results.
  int64_t LineOf(const Op& op) const {
    const AttributeSet& attributes = InfoOf(op.code).attributes;
    if (attributes.Has(Attribute::kProducts) && op.attributes.ordered) {
      return program_[op.operands[0]].type.shape.back();
    }
    if (!attributes.Has(Attribute::kOrder) || !program_.IsReal(op.results[0])) return 0;
    const int64_t lines = ElementCount(program_[op.results[0]].type.shape);
    return lines == 0 ? 0 : ElementCount(program_[op.operands[0]].type.shape) / lines;
  }

  // In a role with a scale: rounds nothing, and is computed where all that it moves is.
  void VisitMoving(Op& op, const RoleSetting& setting) {
    const Format format = setting.computes_in();
    bool computed = !op.operands.empty();
    for (ValueId& id : op.operands) {
      if (!program_.IsReal(id)) continue;
      computed = computed && scaled_[Index(id)] == Scaled::kComputed;
      if (IsLiteral(id)) {
        id = LiteralIn(id, format);
      } else if (program_[id].format != format) {
        id = Written({id, format, Overflow::kIeee, op.role}, op);
      }
    }
    for (ValueId id : op.results) {
      SetReal(id, format);
      if (computed) scaled_[Index(id)] = Scaled::kComputed;
    }
  }

  // Executors hold one permutation for all sums with its key.
  void CountPermutation(const Op& op) {
    const int64_t length = LineOf(op);
    if (length == 0) return;
    if (permutations_.insert(PermutationKeyOf(op, length)).second) budget_.Permuted(length);
  }

  void VisitCast(Op& op) {
    const RoleSetting setting = SettingOf(op);
    const bool enters = !op.attributes.format && setting.scale != precision::Scale::kNone;
    if (enters) op.operands[0] = Entered(op.operands[0], setting, op);
    const Format format = op.attributes.format.value_or(setting.computes_in());
    op.attributes.format = format;
    op.attributes.overflow = op.attributes.overflow.value_or(setting.overflow);
    const Format from = program_[op.operands[0]].format.value_or(Format::kF64);
    op.attributes.rounding =
        op.attributes.rounding.value_or(RoundingFrom(from, format, setting.rounding));
    // The exact number of a literal is cast, not a number rounded before.
    if (IsLiteral(op.operands[0])) op.operands[0] = LiteralIn(op.operands[0], Format::kF64);
    SetReal(op.results[0], format);
    if (!enters) return;
    const bool computed = scaled_[Index(op.operands[0])] == Scaled::kComputed;
    scaled_[Index(op.results[0])] = computed ? Scaled::kComputed : Scaled::kEntered;
  }

  void VisitWhile(Op& op) {
    const RoleSetting setting = SettingOf(op);
    const RoleSetting tested =
        SettingAt(Role::kTermination, std::string(BaseOfSite(op.attributes.site)));
    const WhileCounts counts = CountsOf(op);
    const size_t c = static_cast<size_t>(counts.carried);
    const size_t m = static_cast<size_t>(counts.mapped);
    const size_t e = static_cast<size_t>(counts.exports);
    // Kept values of a branch have the formats that its body says.
    const size_t own =
        op.attributes.kept_from > 0 ? static_cast<size_t>(op.attributes.kept_from) : c;
    BringAll(std::span(op.operands).first(own), setting, op);
    for (ValueId& id : std::span(op.operands).last(m)) {
      if (IsLiteral(id)) id = Bring(id, setting, op);
    }
    Region& test = op.regions[0];
    Region& body = op.regions[1];
    OpenFrame(test);
    AddArgs(body);
    for (Region* region : {&test, &body}) {
      for (size_t i = 0; i < own; ++i) SetComputed(region->args[i], setting);
      for (size_t i = 0; i < m; ++i) {
        const ValueId element = std::span(region->args).last(m)[i];
        const auto format = program_[op.operands[c + i]].format;
        if (format) SetReal(element, *format);
        if (element != ValueId::kNone) PassScaled(op.operands[c + i], element);
      }
    }
    VisitOps(test);
    const std::span yields(test.yields);
    Op tester;
    tester.role = Role::kTermination;
    tester.site = op.attributes.site;
    tester.label = op.label;
    BringAll(yields.first(FirstExport(op)), tested, tester);
    for (size_t i = 0; i < e; ++i) {
      ValueId& id = yields.last(e)[i];
      if (!program_.IsReal(id)) continue;
      if (IsLiteral(id) || is_outside_[Index(id)]) id = Bring(id, setting, op);
      for (const ValueId seen : {body.args[c + i], op.results[c + i]}) {
        if (seen == ValueId::kNone) continue;
        SetReal(seen, *program_[id].format);
        PassScaled(id, seen);
      }
    }
    test.ops = std::move(frames_.back().ops);
    frames_.back() = {};
    VisitOps(body);
    BringAll(std::span(body.yields).first(own), setting, op);
    for (size_t i = own; i < c; ++i) Keep(op, i);
    CloseFrame(body);
    for (size_t i = 0; i < own; ++i) SetComputed(op.results[i], setting);
  }

  // The branch carries value i as its body yields it, and 0 where it is not taken.
  void Keep(Op& branch, size_t i) {
    const ValueId yield = branch.regions[1].yields[i];
    if (!program_.IsReal(yield)) return;
    const Format format = *program_[yield].format;
    branch.operands[i] = LiteralIn(branch.operands[i], format);
    for (const ValueId seen :
         {branch.regions[0].args[i], branch.regions[1].args[i], branch.results[i]}) {
      SetReal(seen, format);
      if (seen != ValueId::kNone) PassScaled(yield, seen);
    }
  }

  void Push(Frame& frame, Op op) {
    const bool clamps = op.code == OpCode::kCast && op.role == Role::kState &&
                        op.attributes.overflow == Overflow::kSaturate;
    if (clamps) is_stored_[Index(op.results[0])] = true;
    frame.ops.push_back(std::move(op));
  }

  void BringAll(std::span<ValueId> values, const RoleSetting& setting, const Op& user) {
    for (ValueId& id : values) {
      if (program_.IsReal(id)) id = Bring(id, setting, user);
    }
  }

  ValueId Bring(ValueId value, const RoleSetting& setting, const User& user) {
    if (setting.scale != precision::Scale::kNone) return Entered(value, setting, user);
    if (IsLiteral(value)) return LiteralIn(value, setting.format);
    // An input may be infinite, and a saturating role clamps it in f64 as in any other format.
    const bool clamps = is_outside_[Index(value)] && setting.overflow == Overflow::kSaturate;
    if (program_[value].format == setting.format && !clamps) return value;
    return CastOf(value, setting, user);
  }

  // As Bring, for a role with a scale. What the role computed is as it is, but where matmul reads it.
  ValueId Entered(ValueId value, const RoleSetting& setting, const User& user) {
    if (IsLiteral(value)) return LiteralIn(value, setting.computes_in(), setting.format);
    const Scaled known = scaled_[Index(value)];
    const bool keeps = known == Scaled::kEntered ||
                       (known == Scaled::kComputed && user.op.code != OpCode::kMatmul);
    if (!keeps) value = Quantized(value, setting.format, user);
    if (program_[value].format == setting.computes_in()) return value;
    value = CastOf(value, setting, user);
    scaled_[Index(value)] = keeps ? known : Scaled::kEntered;
    return value;
  }

  // As Bring, for the next state: where its role saturates, a value that has its format already is
  // clamped too.
  ValueId Store(ValueId value, const Op& user) {
    const RoleSetting& setting = policy_[Role::kState];
    const bool clamps = setting.overflow == Overflow::kSaturate && !IsLiteral(value);
    if (!clamps || is_stored_[Index(value)]) return Bring(value, setting, user);
    return CastOf(value, setting, user);
  }

  // A value of the same type, computed in `frame`.
  ValueId AddLike(ValueId value, int frame, ValueId where, Format format) {
    const Value source = program_[value];
    const ValueId result = program_.AddValue(source.type, source.name);
    SetReal(result, format);
    budget_.WroteValue(program_[result]);
    frame_of_.push_back(frame);
    where_of_.push_back(where);
    is_outside_.push_back(false);
    is_stored_.push_back(false);
    scaled_.push_back(Scaled::kNot);
    return result;
  }

  // `kept`: what of its finite numbers is left under a scale.
  ValueId LiteralIn(ValueId value, Format format, std::optional<Format> kept = {}) {
    Frame& frame = frames_.front();
    const auto [known, added] = frame.casts.try_emplace(
        {value, format, Overflow::kIeee, Role::kState, CastRounding::kNearestEven, kept},
        ValueId::kNone);
    if (!added) return known->second;
    Op op = literal_of_.at(value);
    if (kept) Quantize(*kept, op.attributes.literal);
    for (double& x : op.attributes.literal) x = precision::RoundTo(format, x);
    known->second = AddLike(value, 0, ValueId::kNone, format);
    op.results = {known->second};
    budget_.WroteOp(op);
    Push(frame, std::move(op));
    return known->second;
  }

  static void Quantize(Format to, std::vector<double>& numbers) {
    const precision::ScopedFloatEnvironment environment;
    double amax = 0.0;
    for (const double x : numbers) amax = std::isfinite(x) ? std::max(amax, std::abs(x)) : amax;
    for (double& x : numbers) x = std::isfinite(x) ? precision::Quantized(to, x, amax) : x;
  }

  // An exact cast does not round, so it need not draw.
  static CastRounding RoundingFrom(Format from, Format to, CastRounding rounding) {
    return precision::Narrows(from, to) ? rounding : CastRounding::kNearestEven;
  }

  ValueId CastOf(ValueId value, const RoleSetting& setting, const User& user) {
    const Format format = setting.computes_in();
    const CastRounding rounding =
        RoundingFrom(program_[value].format.value_or(Format::kF64), format, setting.rounding);
    return Written({value, format, setting.overflow, user.op.role, rounding}, user);
  }

  // The value rounded to `to` under a scale, but kept in the format that the value has.
  ValueId Quantized(ValueId value, Format to, const User& user) {
    const Format format = program_[value].format.value_or(Format::kF64);
    const ValueId result = Written(
        {value, format, Overflow::kSaturate, user.op.role, CastRounding::kNearestEven, to}, user);
    scaled_[Index(result)] = Scaled::kEntered;
    return result;
  }

  // The operation that `cast` describes, once where its operand is.
  ValueId Written(Cast cast, const User& user) {
    const ValueId value = cast.source;
    const int home = is_outside_[Index(value)] ? 0 : frame_of_[Index(value)];
    Frame& frame = frames_[static_cast<size_t>(home)];
    // Executed where its operand is; of an operand that is everywhere, where it is read, if that is known there.
    cast.where = where_of_[Index(value)];
    if (cast.where == ValueId::kNone && home == static_cast<int>(frames_.size()) - 1) {
      cast.where = user.where;
    }
    if (const auto known = frame.casts.find(cast); known != frame.casts.end()) return known->second;
    Op op;
    op.role = user.op.role;
    op.site = user.op.code == OpCode::kEvent ? std::string(WorldSite(user.op.attributes.site))
                                             : user.op.site;
    op.label = user.op.label;
    op.operands = {value};
    if (cast.kept) {
      op.code = OpCode::kFakeQuantize;
      op.attributes.format = cast.kept;
      const size_t rank = program_[value].type.shape.size();
      for (size_t axis = 0; axis < rank; ++axis) {
        op.attributes.axes.push_back(static_cast<int64_t>(axis));
      }
    } else {
      op.code = OpCode::kCast;
      op.attributes.format = cast.format;
      op.attributes.overflow = cast.overflow;
      op.attributes.rounding = cast.rounding;
    }
    op.attributes.where = cast.where;
    const ValueId result = AddLike(value, home, cast.where, cast.format);
    op.results = {result};
    frame.casts[cast] = result;
    budget_.WroteOp(op);
    Push(frame, std::move(op));
    return result;
  }

  NumericalProgram numerical_;
  Program& program_ = numerical_.program;
  const precision::Policy& policy_ = numerical_.policy;
  PassBudget& budget_;
  // By site that the policy names: the policy without its other sites.
  absl::flat_hash_map<std::string, precision::Policy> policy_of_;
  std::vector<Frame> frames_;
  // By value; grown as casts are added.
  std::vector<int> frame_of_;
  std::vector<ValueId> where_of_;
  std::vector<bool> is_outside_;  // inputs other than states
  std::vector<bool> is_stored_;   // states, and what was clamped into role state
  std::vector<Scaled> scaled_;
  absl::flat_hash_map<ValueId, Op> literal_of_;
  absl::flat_hash_set<PermutationKey> permutations_;
};

}  // namespace

NumericalProgram AssignPrecision(NumericalProgram numerical, PassBudget& budget) {
  return Assigner(std::move(numerical), budget).Run();
}

}  // namespace simgrad::sim
