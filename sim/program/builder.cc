#include "sim/program/builder.h"

#include <algorithm>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/program/verify.h"

namespace simgrad::sim {

Shape Var::shape() const { return builder->program()[id].type.shape; }

Builder::Builder(std::string world_name) {
  program_.name = std::move(world_name);
  stack_.push_back(&program_.step);
}

void Builder::Fail(std::string message) {
  if (error_.empty()) error_ = std::move(message);
}

Type Builder::TypeOf(Var x) const { return program_[x.id].type; }

Shape Builder::WithAxis(int64_t n, const Shape& shape) const {
  Shape result = {n};
  result.insert(result.end(), shape.begin(), shape.end());
  return result;
}

Var Builder::AddInput(InputKind kind, std::string name, Type type,
                      std::optional<double> default_value, std::string description) {
  const ValueId value = program_.AddValue(std::move(type), name);
  program_.inputs.push_back({kind, std::move(name), value, default_value, std::move(description)});
  return {this, value};
}

Var Builder::State(std::string name, Shape shape, std::string description, ElementType element) {
  return AddInput(InputKind::kState, std::move(name), {element, std::move(shape)}, std::nullopt,
                  std::move(description));
}

Var Builder::Param(std::string name, Shape shape, std::optional<double> default_value,
                   std::string description) {
  return AddInput(InputKind::kParam, std::move(name), {ElementType::kReal, std::move(shape)},
                  default_value, std::move(description));
}

Var Builder::Weights(std::string name, Shape shape, std::optional<double> default_value,
                     std::string description) {
  const Var made = Param(std::move(name), std::move(shape), default_value, std::move(description));
  program_.inputs.back().weights = true;
  return made;
}

Var Builder::Control(std::string name, Shape shape, std::optional<double> default_value,
                     std::string description) {
  return AddInput(InputKind::kControl, std::move(name), {ElementType::kReal, std::move(shape)},
                  default_value, std::move(description));
}

Var Builder::Data(std::string name, Shape shape, std::optional<double> default_value,
                  std::string description) {
  return AddInput(InputKind::kData, std::move(name), {ElementType::kReal, std::move(shape)},
                  default_value, std::move(description));
}

Var Builder::Config(std::string name, double value) {
  return AddInput(InputKind::kConfig, std::move(name), {ElementType::kReal, {}}, value, "");
}

Var Builder::StepIndex() {
  if (const Input* input = program_.FindInput(InputKind::kStep, "step"))
    return {this, input->value};
  return AddInput(InputKind::kStep, "step", {ElementType::kI32, {}}, std::nullopt, "");
}

Var Builder::Emit(Op op, Type type) {
  op.role = role_;
  if (op.site.empty()) op.site = site_;
  op.label = label_;
  const ValueId result = program_.AddValue(std::move(type));
  op.results = {result};
  stack_.back()->ops.push_back(std::move(op));
  return {this, result};
}

Var Builder::WidenTo(Var x, const Shape& shape) {
  if (x.shape() == shape || !x.shape().empty()) return x;
  return Broadcast(x, shape, {});
}

Var Builder::Emit(Op op) {
  const absl::StatusOr<std::vector<Type>> types = ResultTypes(program_, op);
  if (types.ok()) return Emit(std::move(op), types->front());
  Fail(std::string(types.status().message()));
  return {this, op.operands[0]};
}

Var Builder::Apply(OpCode code, Vars operands) {
  Shape widest;
  for (const Var& x : operands) {
    if (x.shape().size() > widest.size()) widest = x.shape();
  }
  Op op{.code = code};
  for (Var& x : operands) op.operands.push_back(WidenTo(x, widest).id);
  return Emit(std::move(op));
}

Var Builder::Literal(double value, Shape shape) { return LiteralArray({value}, std::move(shape)); }

Var Builder::LiteralArray(std::vector<double> values, Shape shape) {
  return Emit({.code = OpCode::kLiteral, .attributes = {.literal = std::move(values)}},
              {ElementType::kReal, std::move(shape)});
}

Var Builder::Integer(int64_t value, ElementType type, Shape shape) {
  const double number = static_cast<double>(value);
  return Emit({.code = OpCode::kLiteral, .attributes = {.literal = {number}}},
              {type, std::move(shape)});
}

Var Builder::IntegerArray(std::vector<double> values, Shape shape) {
  return Emit({.code = OpCode::kLiteral, .attributes = {.literal = std::move(values)}},
              {ElementType::kI32, std::move(shape)});
}

Var Builder::Broadcast(Var x, Shape shape, std::vector<int64_t> dims) {
  return Emit({.code = OpCode::kBroadcast,
               .operands = {x.id},
               .attributes = {.shape = std::move(shape), .dims = std::move(dims)}});
}

Var Builder::Reshape(Var x, Shape shape) {
  return Emit(
      {.code = OpCode::kReshape, .operands = {x.id}, .attributes = {.shape = std::move(shape)}});
}

Var Builder::Slice(Var x, std::vector<int64_t> start, Shape shape) {
  return Emit({.code = OpCode::kSlice,
               .operands = {x.id},
               .attributes = {.start = std::move(start), .shape = std::move(shape)}});
}

Var Builder::Concat(Vars parts, int64_t axis) {
  Op op{.code = OpCode::kConcat, .attributes = {.axes = {axis}}};
  for (const Var& part : parts) op.operands.push_back(part.id);
  return Emit(std::move(op));
}

Var Builder::Do(OpCode code, const Vars& operands, Attributes attributes) {
  Op op{.code = code, .attributes = std::move(attributes)};
  for (const Var& x : operands) op.operands.push_back(x.id);
  return Emit(std::move(op));
}

Var Builder::Iota(Shape shape, int64_t axis, ElementType type) {
  return Emit({.code = OpCode::kIota, .attributes = {.axes = {axis}, .shape = shape}},
              {type, shape});
}

Var Builder::Reduce(OpCode code, Var x, std::vector<int64_t> axes) {
  if (axes.empty()) {
    for (size_t i = 0; i < x.shape().size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  return Emit({.code = code, .operands = {x.id}, .attributes = {.axes = std::move(axes)}});
}

Var Builder::Cumsum(Var x, int64_t axis, bool reverse) {
  return Emit({.code = OpCode::kCumsum,
               .operands = {x.id},
               .attributes = {.axes = {axis}, .reverse = reverse}});
}

Var Builder::Mean(Var x) {
  const double n = static_cast<double>(ElementCount(x.shape()));
  const Var sum = Reduce(OpCode::kSum, x);
  return sum / Literal(n);
}

Var Builder::Cast(Var x, std::optional<Format> format, std::optional<Overflow> overflow,
                  std::optional<CastRounding> rounding) {
  return Emit({.code = OpCode::kCast,
               .operands = {x.id},
               .attributes = {.format = format, .overflow = overflow, .rounding = rounding}});
}

Var Builder::Convert(Var x, ElementType type) {
  return Emit({.code = OpCode::kConvert, .operands = {x.id}}, {type, x.shape()});
}

Var Builder::Event(std::string site, Var a, Comparison comparison, Var b,
                   std::optional<Var> guard) {
  RoleScope role(*this, Role::kEvent);
  SiteScope scope(*this, site);
  const Shape widest = a.shape().size() >= b.shape().size() ? a.shape() : b.shape();
  Op op{.code = OpCode::kEvent,
        .operands = {WidenTo(a, widest).id, WidenTo(b, widest).id},
        .attributes = {.site = std::move(site), .comparison = comparison}};
  if (guard) op.operands.push_back(WidenTo(*guard, widest).id);
  return Emit(std::move(op), {ElementType::kBool, widest});
}

Var Builder::Choice(std::string site, Var chosen, Var a, Var b) {
  SiteScope scope(*this, site);
  const Type type = program_[chosen.id].type;
  return Emit({.code = OpCode::kChoice,
               .operands = {chosen.id, WidenTo(a, type.shape).id, WidenTo(b, type.shape).id},
               .attributes = {.site = std::move(site)}},
              type);
}

Var Builder::Accept(std::string site, Var a, Comparison comparison, Var b, Var trial, Var current) {
  return Emit({.code = OpCode::kAccept,
               .operands = {a.id, b.id, trial.id, current.id},
               .attributes = {.site = std::move(site), .comparison = comparison}});
}

Op Builder::LoopOp(OpCode code, size_t carried) const {
  return {.code = code,
          .role = role_,
          .site = site_,
          .attributes = {.carried = static_cast<int32_t>(carried)},
          .label = label_};
}

Var Builder::NewArg(Region& region, const Type& type, std::string name) {
  const ValueId id = program_.AddValue(type, std::move(name));
  region.args.push_back(id);
  return {this, id};
}

LoopResult Builder::While(const WhileOptions& options, Vars carried, Vars mapped,
                          const std::function<LoopTest(const Vars&, const Vars&)>& test,
                          const std::function<Vars(const Vars&, const Vars&, const Vars&)>& body) {
  const auto tested = [&](const Vars& now, const Vars& elements) {
    LoopTest made = test(now, elements);
    Tested result{{made.lhs, made.rhs}, std::move(made.exports), false};
    if (made.entry) result.tested.push_back(*made.entry);
    return result;
  };
  return WhileTested(options, std::move(carried), std::move(mapped), tested, body);
}

LoopResult Builder::While(const WhileOptions& options, Vars carried, Vars mapped,
                          const std::function<LoopPredicate(const Vars&, const Vars&)>& test,
                          const std::function<Vars(const Vars&, const Vars&, const Vars&)>& body) {
  const auto tested = [&](const Vars& now, const Vars& elements) {
    LoopPredicate made = test(now, elements);
    return Tested{{made.stop}, std::move(made.exports), true};
  };
  return WhileTested(options, std::move(carried), std::move(mapped), tested, body);
}

Vars Builder::Cond(Var choice, Vars args,
                   const std::vector<std::function<Vars(const Vars&)>>& regions) {
  Op op = LoopOp(OpCode::kCond, 0);
  op.operands = {choice.id};
  for (Var x : args) op.operands.push_back(x.id);
  op.regions.resize(regions.size());
  for (size_t k = 0; k < regions.size(); ++k) {
    Region& region = op.regions[k];
    Vars inner;
    for (Var x : args) inner.push_back(NewArg(region, TypeOf(x), program_[x.id].name));
    stack_.push_back(&region);
    for (Var x : regions[k](inner)) region.yields.push_back(x.id);
    stack_.pop_back();
  }
  Vars results;
  for (ValueId id : op.regions[0].yields) {
    op.results.push_back(program_.AddValue(program_[id].type));
    results.push_back({this, op.results.back()});
  }
  stack_.back()->ops.push_back(std::move(op));
  return results;
}

Vars Builder::Call(Vars args, const std::function<Vars(const Vars&)>& body,
                   const std::function<Vars(const Vars&, const Vars&, const Vars&)>& vjp) {
  Op op = LoopOp(OpCode::kCall, 0);
  for (Var x : args) op.operands.push_back(x.id);
  op.regions.resize(vjp == nullptr ? 1 : 2);
  const auto bound = [&](Region& region, const Vars& outer) {
    Vars inner;
    for (Var x : outer) inner.push_back(NewArg(region, TypeOf(x), program_[x.id].name));
    return inner;
  };
  const auto write = [&](Region& region, const std::function<Vars()>& made) {
    stack_.push_back(&region);
    for (Var x : made()) region.yields.push_back(x.id);
    stack_.pop_back();
  };
  const Vars inner = bound(op.regions[0], args);
  write(op.regions[0], [&] { return body(inner); });
  Vars results;
  Vars real;
  for (ValueId id : op.regions[0].yields) {
    op.results.push_back(program_.AddValue(program_[id].type));
    results.push_back({this, op.results.back()});
    if (program_.IsReal(id)) real.push_back(results.back());
  }
  if (vjp != nullptr) {
    Region& region = op.regions[1];
    const Vars operands = bound(region, args);
    const Vars given = bound(region, results);
    const Vars cotangents = bound(region, real);
    write(region, [&] { return vjp(operands, given, cotangents); });
  }
  stack_.back()->ops.push_back(std::move(op));
  return results;
}

void Builder::Halt(std::string name, Var condition, bool error) {
  Op op = LoopOp(OpCode::kHalt, 0);
  op.operands = {condition.id};
  op.attributes.site = std::move(name);
  op.attributes.error = error;
  stack_.back()->ops.push_back(std::move(op));
}

LoopResult Builder::WhileTested(
    const WhileOptions& options, Vars carried, Vars mapped,
    const std::function<Tested(const Vars&, const Vars&)>& test,
    const std::function<Vars(const Vars&, const Vars&, const Vars&)>& body) {
  Op op = LoopOp(OpCode::kWhile, carried.size());
  op.attributes.site = options.site;
  op.attributes.max_iter = options.max_iter;
  op.attributes.comparison = options.comparison;
  op.attributes.cap_order = options.cap_order;
  op.attributes.elements = options.elements;
  const bool is_mapped = options.elements > 0;
  const auto inner = [&](Var x) {
    Type type = TypeOf(x);
    if (is_mapped && !type.shape.empty()) type.shape.erase(type.shape.begin());
    return type;
  };
  const auto name_of = [&](Var x) { return program_[x.id].name; };
  op.regions.resize(2);

  Region& test_region = op.regions[0];
  Vars test_carried, test_mapped;
  for (Var x : carried) test_carried.push_back(NewArg(test_region, inner(x), name_of(x)));
  for (Var x : mapped) test_mapped.push_back(NewArg(test_region, inner(x), name_of(x)));
  stack_.push_back(&test_region);
  Tested tested;
  {
    RoleScope role(*this, Role::kTermination);
    SiteScope scope(*this, options.site);
    tested = test(test_carried, test_mapped);
  }
  for (Var x : tested.tested) test_region.yields.push_back(x.id);
  op.attributes.predicate = tested.is_predicate;
  op.attributes.has_entry = tested.tested.size() > 2;
  for (Var x : tested.exports) test_region.yields.push_back(x.id);
  stack_.pop_back();

  Region& body_region = op.regions[1];
  Vars body_carried, body_exports, body_mapped;
  for (Var x : carried) body_carried.push_back(NewArg(body_region, inner(x), name_of(x)));
  for (Var x : tested.exports) {
    body_exports.push_back(NewArg(body_region, TypeOf(x), name_of(x)));
  }
  for (Var x : mapped) body_mapped.push_back(NewArg(body_region, inner(x), name_of(x)));
  stack_.push_back(&body_region);
  for (Var x : body(body_carried, body_exports, body_mapped)) body_region.yields.push_back(x.id);
  stack_.pop_back();

  LoopResult result;
  const auto outer = [&](Type type) {
    if (is_mapped) type.shape = WithAxis(options.elements, type.shape);
    return type;
  };
  for (Var x : carried) {
    op.operands.push_back(x.id);
    op.results.push_back(program_.AddValue(TypeOf(x), name_of(x)));
    result.carried.push_back({this, op.results.back()});
  }
  for (Var x : mapped) op.operands.push_back(x.id);
  for (Var x : tested.exports) {
    op.results.push_back(program_.AddValue(outer(TypeOf(x)), name_of(x)));
    result.exports.push_back({this, op.results.back()});
  }
  op.results.push_back(
      program_.AddValue(outer({ElementType::kI32, {}}), options.site + "_iterations"));
  result.iterations = {this, op.results.back()};
  stack_.back()->ops.push_back(std::move(op));
  return result;
}

Vars Builder::For(int64_t count, Vars carried, const std::function<Vars(Var, const Vars&)>& body) {
  return Scan(count, std::move(carried), {}, false,
              [&](Var index, const Vars& now, const Vars&) { return body(index, now); });
}

Vars Builder::Scan(int64_t count, Vars carried, Vars scanned, bool reverse,
                   const std::function<Vars(Var, const Vars&, const Vars&)>& body) {
  Op op = LoopOp(OpCode::kFor, carried.size());
  op.attributes.max_iter = count;
  op.attributes.scanned = static_cast<int32_t>(scanned.size());
  op.attributes.reverse = reverse;
  op.regions.resize(1);
  Region& region = op.regions[0];
  const Var index = NewArg(region, {ElementType::kI32, {}}, "index");
  Vars args, elements;
  for (Var x : carried) args.push_back(NewArg(region, TypeOf(x), program_[x.id].name));
  for (Var x : scanned) {
    Type type = TypeOf(x);
    if (!type.shape.empty()) type.shape.erase(type.shape.begin());
    elements.push_back(NewArg(region, type, program_[x.id].name));
  }
  stack_.push_back(&region);
  for (Var x : body(index, args, elements)) region.yields.push_back(x.id);
  stack_.pop_back();
  for (const Vars* list : {&carried, &scanned}) {
    for (Var x : *list) op.operands.push_back(x.id);
  }
  Vars results;
  for (size_t k = 0; k < region.yields.size(); ++k) {
    const bool is_carried = k < carried.size();
    const Value like = program_[is_carried ? carried[k].id : region.yields[k]];
    Type type = like.type;
    if (!is_carried) type.shape = WithAxis(count, type.shape);
    op.results.push_back(program_.AddValue(type, like.name));
    results.push_back({this, op.results.back()});
  }
  stack_.back()->ops.push_back(std::move(op));
  return results;
}

Var Builder::Named(Var x, std::string name) {
  program_[x.id].name = std::move(name);
  return x;
}

void Builder::SetInitial(const std::function<Vars()>& states) {
  stack_.push_back(&program_.initial);
  for (Var x : states()) program_.initial.yields.push_back(x.id);
  stack_.pop_back();
}

void Builder::SetNext(Vars next_states) {
  for (Var x : next_states) program_.step.yields.push_back(x.id);
}

void Builder::Export(std::string name, Var value, bool observable) {
  program_.exports.push_back({std::move(name), value.id, observable});
}

void Builder::AddObjective(std::string name, const std::function<Var()>& stage,
                           const std::function<Var(const Vars&, const Vars&)>& terminal) {
  RoleScope role(*this, Role::kObjective);
  Objective objective;
  objective.name = std::move(name);
  if (stage) {
    stack_.push_back(&objective.stage);
    objective.stage.yields = {stage().id};
    stack_.pop_back();
  }
  if (terminal) {
    Vars states, exports;
    for (const Input& input : std::vector<Input>(program_.inputs)) {
      if (input.kind != InputKind::kState) continue;
      states.push_back(NewArg(objective.terminal, program_[input.value].type, input.name));
    }
    for (const sim::Export& exported : std::vector<sim::Export>(program_.exports)) {
      exports.push_back(NewArg(objective.terminal, program_[exported.value].type, exported.name));
    }
    stack_.push_back(&objective.terminal);
    objective.terminal.yields = {terminal(states, exports).id};
    stack_.pop_back();
  }
  program_.objectives.push_back(std::move(objective));
}

absl::StatusOr<Program> Builder::Finish() {
  if (!error_.empty()) return absl::InvalidArgumentError(error_);
  // Regions take states first: put the state inputs in front, keeping their order.
  std::stable_partition(program_.inputs.begin(), program_.inputs.end(),
                        [](const Input& input) { return input.kind == InputKind::kState; });
  if (absl::Status status = Verify(program_); !status.ok()) return status;
  return program_;
}

Var operator+(Var a, Var b) { return a.builder->Apply(OpCode::kAdd, {a, b}); }
Var operator-(Var a, Var b) { return a.builder->Apply(OpCode::kSub, {a, b}); }
Var operator*(Var a, Var b) { return a.builder->Apply(OpCode::kMul, {a, b}); }
Var operator/(Var a, Var b) { return a.builder->Apply(OpCode::kDiv, {a, b}); }
Var operator-(Var a) { return a.builder->Apply(OpCode::kNeg, {a}); }
Var operator*(double a, Var b) { return b.builder->Literal(a) * b; }
Var Max(Var a, Var b) { return a.builder->Apply(OpCode::kMax, {a, b}); }
Var Min(Var a, Var b) { return a.builder->Apply(OpCode::kMin, {a, b}); }
Var Relu(Var x) { return Max(x, x.builder->Literal(0.0)); }
Var Sqrt(Var x) { return x.builder->Apply(OpCode::kSqrt, {x}); }
Var Select(Var condition, Var a, Var b) {
  return a.builder->Apply(OpCode::kSelect, {condition, a, b});
}
Var And(Var a, Var b) { return a.builder->Apply(OpCode::kAnd, {a, b}); }
Var Not(Var a) { return a.builder->Apply(OpCode::kNot, {a}); }

}  // namespace simgrad::sim
