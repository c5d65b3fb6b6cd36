#include "sim/program/assign.h"

#include <algorithm>

#include "precision/rounding.h"
#include "sim/program/loop.h"

namespace simgrad::sim {

using precision::RoleSetting;

PrecisionAssigner::PrecisionAssigner(Program& program, const precision::Policy& policy,
                                     PassBudget& budget)
    : program_(program), policy_(policy), budget_(budget) {
  frame_of_.resize(program.values.size(), 0);
  where_of_.resize(program.values.size(), ValueId::kNone);
  is_outside_.resize(program.values.size(), false);
  is_stored_.resize(program.values.size(), false);
  for (const auto& [site, change] : policy.sites) {
    precision::Policy& alone = policy_of_[site];
    alone.roles = policy.roles;
    alone.sites.push_back({site, change});
  }
  for (const Input& input : program.inputs) {
    if (input.kind == InputKind::kState) is_stored_[Index(input.value)] = true;
    if (!IsReal(input.value)) continue;
    if (input.kind == InputKind::kState) {
      SetFormat(input.value, Role::kState);
    } else {
      SetReal(input.value, Format::kF64);
      is_outside_[Index(input.value)] = true;
    }
  }
}

bool PrecisionAssigner::IsReal(ValueId id) const {
  return id != ValueId::kNone && program_[id].type.element == ElementType::kReal;
}

void PrecisionAssigner::SetReal(ValueId value, Format format) {
  if (IsReal(value)) program_[value].format = format;
}

void PrecisionAssigner::SetFormat(ValueId value, Role role) {
  SetReal(value, policy_[role].format);
}

RoleSetting PrecisionAssigner::SettingAt(Role role, const std::string& site) const {
  const auto named = policy_of_.find(site);
  return named == policy_of_.end() ? policy_[role] : named->second.At(role, site);
}

RoleSetting PrecisionAssigner::SettingOf(const Op& op) const {
  const bool event = op.code == OpCode::kEvent;
  return SettingAt(op.role, event ? op.attributes.site : op.site);
}

void PrecisionAssigner::AssignRegion(Region& region, Role role) {
  frames_.clear();
  frames_.push_back({});
  std::vector<Op> ops = std::move(region.ops);
  frames_.back().ops.reserve(ops.size() + ops.size() / 4);
  budget_.Visit(static_cast<int64_t>(region.args.size() + region.yields.size()));
  for (ValueId id : region.args) {
    if (id != ValueId::kNone) frame_of_[Index(id)] = 0;
  }
  for (Op& op : ops) Visit(std::move(op));
  Op user;
  user.role = role;
  user.label = "";
  for (ValueId& id : region.yields) {
    if (!IsReal(id)) continue;
    id = role == Role::kState ? Store(id, user) : Bring(id, policy_[role], user);
  }
  region.ops = std::move(frames_.back().ops);
  frames_.clear();
}

void PrecisionAssigner::VisitOps(Region& region) {
  std::vector<Op> ops = std::move(region.ops);
  frames_.back().ops.reserve(ops.size());
  for (Op& op : ops) Visit(std::move(op));
}

void PrecisionAssigner::Define(const Op& op) {
  for (ValueId id : op.results) {
    if (id == ValueId::kNone) continue;
    frame_of_[Index(id)] = static_cast<int>(frames_.size()) - 1;
    where_of_[Index(id)] = op.attributes.where;
  }
}

void PrecisionAssigner::Visit(Op op) {
  budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
  Define(op);
  if (op.code == OpCode::kLiteral && IsReal(op.results[0])) {
    literal_of_[op.results[0]] = std::move(op);
    return;
  }
  if (op.code == OpCode::kCast) {
    VisitCast(op);
  } else if (op.code == OpCode::kTape) {
    VisitTape(op);
  } else if (op.code == OpCode::kWhile) {
    VisitWhile(op);
  } else if (op.code == OpCode::kFor) {
    VisitFor(op);
  } else if (op.code == OpCode::kWhileVjp || op.code == OpCode::kForVjp) {
    VisitVjp(op);
  } else if (op.code != OpCode::kLiteral) {
    const RoleSetting setting = SettingOf(op);
    BringAll(op.operands, 0, op.operands.size(), setting, op);
    for (ValueId id : op.results) SetReal(id, setting.format);
    op.attributes.order = setting.order;
    op.attributes.accumulator = setting.accumulator;
  }
  Push(frames_.back(), std::move(op));
}

void PrecisionAssigner::Push(Frame& frame, Op op) {
  const bool clamps = op.code == OpCode::kCast && op.role == Role::kState &&
                      op.attributes.overflow == Overflow::kSaturate;
  if (clamps) is_stored_[Index(op.results[0])] = true;
  frame.ops.push_back(std::move(op));
}

void PrecisionAssigner::VisitCast(Op& op) {
  const RoleSetting setting = SettingOf(op);
  const Format format = op.attributes.format.value_or(setting.format);
  op.attributes.format = format;
  op.attributes.overflow = op.attributes.overflow.value_or(setting.overflow);
  // The exact number of a literal is cast, not a number rounded before.
  if (IsLiteral(op.operands[0])) op.operands[0] = LiteralIn(op.operands[0], Format::kF64);
  SetReal(op.results[0], format);
}

void PrecisionAssigner::VisitTape(Op& op) {
  const RoleSetting setting = policy_[Role::kTape];
  SetReal(op.results[0], setting.format);
  op.attributes.overflow = setting.overflow;
}

void PrecisionAssigner::VisitWhile(Op& op) {
  const RoleSetting setting = SettingOf(op);
  const RoleSetting tested = SettingAt(Role::kTermination, op.attributes.site);
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t m = static_cast<size_t>(counts.mapped);
  const size_t e = static_cast<size_t>(counts.exports);
  BringAll(op.operands, 0, c, setting, op);
  for (size_t i = 0; i < m; ++i) {
    ValueId& id = op.operands[c + i];
    if (IsReal(id) && IsLiteral(id)) id = Bring(id, setting, op);
  }
  Region& test = op.regions[0];
  Region& body = op.regions[1];
  frames_.push_back({});
  const int inside = static_cast<int>(frames_.size()) - 1;
  for (Region* region : {&test, &body}) {
    for (ValueId id : region->args) frame_of_[Index(id)] = inside;
    const size_t mapped_at = region == &test ? c : c + e;
    for (size_t i = 0; i < c; ++i) SetReal(region->args[i], setting.format);
    for (size_t i = 0; i < m; ++i) {
      const auto format = program_[op.operands[c + i]].format;
      if (format) SetReal(region->args[mapped_at + i], *format);
    }
  }
  VisitOps(test);
  const size_t tests = FirstExport(op);
  Op tester;
  tester.role = Role::kTermination;
  tester.site = op.attributes.site;
  tester.label = op.label;
  BringAll(test.yields, 0, tests, tested, tester);
  for (size_t i = 0; i < e; ++i) {
    ValueId& id = test.yields[tests + i];
    if (!IsReal(id)) continue;
    if (IsLiteral(id) || is_outside_[Index(id)]) id = Bring(id, setting, op);
    SetReal(body.args[c + i], *program_[id].format);
    SetReal(op.results[c + i], *program_[id].format);
  }
  test.ops = std::move(frames_.back().ops);
  frames_.back() = {};
  VisitOps(body);
  BringAll(body.yields, 0, c, setting, op);
  body.ops = std::move(frames_.back().ops);
  frames_.pop_back();
  for (size_t i = 0; i < c; ++i) SetReal(op.results[i], setting.format);
}

void PrecisionAssigner::VisitFor(Op& op) {
  const RoleSetting setting = SettingOf(op);
  BringAll(op.operands, 0, op.operands.size(), setting, op);
  Region& body = op.regions[0];
  frames_.push_back({});
  for (ValueId id : body.args) {
    frame_of_[Index(id)] = static_cast<int>(frames_.size()) - 1;
    SetReal(id, setting.format);
  }
  VisitOps(body);
  BringAll(body.yields, 0, body.yields.size(), setting, op);
  body.ops = std::move(frames_.back().ops);
  frames_.pop_back();
  for (ValueId id : op.results) SetReal(id, setting.format);
}

void PrecisionAssigner::VisitVjp(Op& op) {
  const RoleSetting setting = SettingOf(op);
  BringAll(op.operands, 0, op.operands.size(), setting, op);
  for (Region& region : op.regions) {
    frames_.push_back({});
    for (ValueId id : region.args) {
      if (id == ValueId::kNone) continue;
      frame_of_[Index(id)] = static_cast<int>(frames_.size()) - 1;
      SetReal(id, setting.format);
    }
    VisitOps(region);
    BringAll(region.yields, 0, region.yields.size(), setting, op);
    region.ops = std::move(frames_.back().ops);
    frames_.pop_back();
  }
  for (ValueId id : op.results) SetReal(id, setting.format);
}

void PrecisionAssigner::BringAll(std::vector<ValueId>& values, size_t first, size_t count,
                                 const RoleSetting& setting, const Op& user) {
  for (size_t i = first; i < first + count; ++i) {
    if (IsReal(values[i])) values[i] = Bring(values[i], setting, user);
  }
}

// A value of the same type, computed in `frame`.
ValueId PrecisionAssigner::AddLike(ValueId value, int frame, ValueId where, Format format) {
  const Value source = program_[value];
  const ValueId result = program_.AddValue(source.type, source.name);
  SetReal(result, format);
  budget_.WroteValue(program_[result]);
  frame_of_.push_back(frame);
  where_of_.push_back(where);
  is_outside_.push_back(false);
  is_stored_.push_back(false);
  return result;
}

ValueId PrecisionAssigner::LiteralIn(ValueId value, Format format) {
  Frame& frame = frames_.front();
  const auto [known, added] =
      frame.casts.try_emplace({value, format, Overflow::kIeee, Role::kState}, ValueId::kNone);
  if (!added) return known->second;
  Op op = literal_of_.at(value);
  for (double& x : op.attributes.literal) x = precision::RoundTo(format, x);
  known->second = AddLike(value, 0, ValueId::kNone, format);
  op.results = {known->second};
  budget_.WroteOp(op);
  Push(frame, std::move(op));
  return known->second;
}

ValueId PrecisionAssigner::Bring(ValueId value, const RoleSetting& setting, const Op& user) {
  if (IsLiteral(value)) return LiteralIn(value, setting.format);
  // What was sent may be infinite, and a saturating role clamps it in f64 as in any other format.
  const bool clamps = is_outside_[Index(value)] && setting.overflow == Overflow::kSaturate;
  if (program_[value].format == setting.format && !clamps) return value;
  return CastOf(value, setting, user);
}

ValueId PrecisionAssigner::Store(ValueId value, const Op& user) {
  const RoleSetting& setting = policy_[Role::kState];
  const bool clamps = setting.overflow == Overflow::kSaturate && !IsLiteral(value);
  if (!clamps || is_stored_[Index(value)]) return Bring(value, setting, user);
  return CastOf(value, setting, user);
}

ValueId PrecisionAssigner::CastOf(ValueId value, const RoleSetting& setting, const Op& user) {
  const int home = is_outside_[Index(value)] ? 0 : frame_of_[Index(value)];
  Frame& frame = frames_[static_cast<size_t>(home)];
  const Cast cast = {value, setting.format, setting.overflow, user.role};
  if (const auto known = frame.casts.find(cast); known != frame.casts.end()) return known->second;
  Op op;
  op.code = OpCode::kCast;
  op.role = user.role;
  op.site = user.code == OpCode::kEvent ? user.attributes.site : user.site;
  op.label = user.label;
  op.operands = {value};
  op.attributes.format = setting.format;
  op.attributes.overflow = setting.overflow;
  // Executed where its operand is; a slot argument has no definition, so its user says where.
  op.attributes.where = where_of_[Index(value)];
  const bool by_user = op.attributes.where == ValueId::kNone &&
                       user.attributes.where != ValueId::kNone &&
                       home == static_cast<int>(frames_.size()) - 1;
  if (by_user) op.attributes.where = user.attributes.where;
  const ValueId result = AddLike(value, home, op.attributes.where, setting.format);
  op.results = {result};
  if (!by_user) frame.casts[cast] = result;
  budget_.WroteOp(op);
  Push(frame, std::move(op));
  return result;
}

}  // namespace simgrad::sim
