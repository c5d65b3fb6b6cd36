// Statements and views.
#include "sim/plan/region_maker.h"

#include <algorithm>
#include <utility>

#include "precision/rounding.h"
#include "sim/program/axes.h"
#include "sim/program/decision_margin.h"
#include "sim/program/primal_reads.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

// The work of one operation, in element-operations (work_meter.h).
constexpr int64_t kPlanningWork = 4096;

bool HasStochastic(const Region& region) {
  return std::any_of(region.ops.begin(), region.ops.end(), [](const Op& op) {
    return IsStochastic(op) || std::any_of(op.regions.begin(), op.regions.end(), HasStochastic);
  });
}

bool AdjointDraws(const NumericalProgram& numerical) {
  if (!numerical.adjoint) return false;
  const std::vector<const Region*> regions = RegionsOf(*numerical.adjoint);
  return std::any_of(regions.begin(), regions.end(),
                     [](const Region* region) { return HasStochastic(*region); });
}

}  // namespace

RegionMaker::RegionMaker(const NumericalProgram& numerical, const Detection& looks,
                         WorkMeter& meter, Plan& plan, Function& function, Records records)
    : numerical_(numerical),
      program_(numerical.program),
      looks_(looks),
      meter_(meter),
      plan_(plan),
      function_(function),
      records_(records),
      views_(program_.values.size()),
      inputs_(program_.inputs.size(), kNoBuffer),
      adjoint_draws_(AdjointDraws(numerical)),
      block_(&function.statements),
      producers_(program_.values.size()) {
  for (const Site& site : numerical.sites) site_numbers_.emplace(site.name, site.number);
  if (!records.decides) return;
  behind_ = BehindPredicates(program_);
  if (behind_.empty()) return;
  radii_.resize(behind_.size());
  tests_ = DecidingTestsOf(program_, numerical.sites);
}

Statement& RegionMaker::Emit(Statement statement) {
  return block_->emplace_back(std::move(statement));
}

Register RegionMaker::Call(std::string function, Carrier carrier, std::vector<Register> operands,
                           std::string comment) {
  const Register result = function_.AddRegister(carrier);
  Emit({.code = Code::kCall,
        .result = result,
        .operands = std::move(operands),
        .function = std::move(function),
        .comment = std::move(comment)});
  return result;
}

Register RegionMaker::Constant(Carrier carrier, int64_t number) {
  const Register result = function_.AddRegister(carrier);
  Emit({.code = Code::kConstant, .result = result, .number = number});
  return result;
}

// Reals stand in the table of numbers, integers in that of integers.
Register RegionMaker::NumberLike(double number, const Value& value, std::string comment) {
  if (value.type.element != ElementType::kReal) {
    const Register result = Integer(CarrierOf(value), static_cast<int64_t>(number));
    block_->back().comment = std::move(comment);
    return result;
  }
  const Register result = function_.AddRegister(CarrierOf(value));
  Emit({.code = Code::kNumber,
        .result = result,
        .number = static_cast<int64_t>(plan_.numbers.size()),
        .comment = std::move(comment)});
  plan_.numbers.push_back(precision::RoundTo(*value.format, number));
  known_[result] = plan_.numbers.back();
  return result;
}

Register RegionMaker::Integer(Carrier carrier, int64_t number) {
  const Register result = function_.AddRegister(carrier);
  Emit({.code = Code::kInteger,
        .result = result,
        .number = static_cast<int64_t>(plan_.integers.size())});
  plan_.integers.push_back(number);
  return result;
}

View RegionMaker::Local(Carrier carrier, Shape shape, std::string name) {
  const BufferId buffer = function_.AddBuffer({.kind = BufferKind::kLocal,
                                               .carrier = carrier,
                                               .count = ElementCount(shape),
                                               .name = std::move(name)});
  Emit({.code = Code::kDeclare, .buffer = buffer});
  std::vector<int64_t> strides = StridesOf(shape);
  return {carrier, std::move(shape), kNoRegister, buffer, {}, std::move(strides)};
}

View RegionMaker::FieldView(int32_t field, const Shape& shape, const std::string& name) {
  const Field& f = plan_.fields[static_cast<size_t>(field)];
  const BufferId buffer = function_.AddBuffer({.kind = BufferKind::kField,
                                               .carrier = f.carrier,
                                               .count = f.count,
                                               .number = field,
                                               .name = name});
  return {f.carrier, shape, kNoRegister, buffer, {}, StridesOf(shape)};
}

View RegionMaker::InputView(size_t input) {
  const Input& declared = program_.inputs[input];
  const Type& type = program_[declared.value].type;
  const Carrier carrier = CarrierOf(program_[declared.value]);
  if (inputs_[input] == kNoBuffer) {
    inputs_[input] = function_.AddBuffer({.kind = BufferKind::kInput,
                                          .carrier = carrier,
                                          .count = ElementCount(type.shape),
                                          .number = static_cast<int32_t>(input),
                                          .name = declared.name});
  }
  return {carrier, type.shape, kNoRegister, inputs_[input], {}, StridesOf(type.shape)};
}

void RegionMaker::First(Statement statement) {
  function_.statements.insert(function_.statements.begin(), std::move(statement));
}

const View& RegionMaker::ViewOf(ValueId id) {
  View& view = views_[Index_(id)];
  if (view.set()) return view;
  // The adjoint reads literals of the step.
  if (const Op* literal = tape_ == nullptr ? nullptr : tape_->LiteralOf(id)) {
    std::vector<Statement> first;
    std::vector<Statement>* const around = std::exchange(block_, &first);
    Literal(*literal);
    block_ = around;
    for (Statement& statement : first) First(std::move(statement));
    return views_[Index_(id)];
  }
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    if (input.value != id) continue;
    if (input.kind == InputKind::kStep) {
      const Register t = function_.AddRegister(CarrierOf(program_[id]));
      // At the beginning, where every later statement sees it.
      function_.statements.insert(function_.statements.begin(), {.code = Code::kTime, .result = t});
      view = {CarrierOf(program_[id]), {}, t, kNoBuffer, {}, {}};
    } else {
      view = InputView(i);
    }
  }
  return view;
}

Register RegionMaker::Load(const View& view, const Index& index) {
  if (view.all != kNoRegister) return view.all;
  const Register result = function_.AddRegister(view.carrier);
  Emit({.code = Code::kLoad, .result = result, .buffer = view.buffer, .index = index});
  return result;
}

void RegionMaker::Store(const View& view, const Index& index, Register value) {
  Emit({.code = Code::kStore, .operands = {value}, .buffer = view.buffer, .index = index});
}

Register RegionMaker::One(const View& view) { return Load(view, view.start); }

void RegionMaker::StoreOne(const View& to, Register value) { Store(to, to.start, value); }

void RegionMaker::Each(int64_t extent, bool parallel, const std::function<void(Register)>& body) {
  if (extent == 0) return;
  const Register counter = function_.AddRegister(Carrier::kI64);
  std::vector<Statement> inside;
  std::vector<Statement>* const around = std::exchange(block_, &inside);
  body(counter);
  block_ = around;
  Emit({.code = Code::kEach,
        .result = counter,
        .number = extent,
        .parallel = parallel,
        .body = std::move(inside)});
}

// As often as a register says, one after the other.
void RegionMaker::EachOf(Register extent, const std::function<void(Register)>& body) {
  Each(1, false, body);
  block_->back().operands = {extent};
}

void RegionMaker::Repeat(const std::function<void()>& body) {
  std::vector<Statement> inside;
  std::vector<Statement>* const around = std::exchange(block_, &inside);
  body();
  block_ = around;
  Emit({.code = Code::kRepeat, .body = std::move(inside)});
}

void RegionMaker::If(Register condition, const std::function<void()>& body) {
  std::vector<Statement> inside;
  std::vector<Statement>* const around = std::exchange(block_, &inside);
  body();
  block_ = around;
  Emit({.code = Code::kIf, .operands = {condition}, .body = std::move(inside)});
}

void RegionMaker::Leave(Register condition) {
  Emit({.code = Code::kLeave, .operands = {condition}});
}

namespace {

// Neighbouring axes that every view walks as one.
struct Loops {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [view][loop]
};

Loops LoopsOver(const Shape& shape, const std::vector<View>& views) {
  Loops loops;
  loops.strides.resize(views.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = !loops.extents.empty();
    for (size_t v = 0; v < views.size() && joins; ++v) {
      if (views[v].all != kNoRegister) continue;
      joins = loops.strides[v].back() == views[v].strides[axis] * shape[axis];
    }
    if (joins) {
      loops.extents.back() *= shape[axis];
    } else {
      loops.extents.push_back(shape[axis]);
      for (std::vector<int64_t>& strides : loops.strides) strides.push_back(0);
    }
    for (size_t v = 0; v < views.size(); ++v) {
      if (views[v].all == kNoRegister) loops.strides[v].back() = views[v].strides[axis];
    }
  }
  return loops;
}

}  // namespace

void RegionMaker::EachElement(const Shape& shape, const std::vector<View>& views,
                              const std::function<void(const Read&, const Place&)>& body) {
  const Loops loops = LoopsOver(shape, views);
  std::vector<Register> counters;
  const Place place = [&](size_t k) {
    Index index = views[k].start;
    for (size_t depth = 0; depth < counters.size(); ++depth) {
      const int64_t stride = loops.strides[k][depth];
      if (stride != 0) index.terms.emplace_back(counters[depth], stride);
    }
    return index;
  };
  const Read read = [&](size_t k) {
    return views[k].all != kNoRegister ? views[k].all : Load(views[k], place(k));
  };
  const std::function<void(size_t)> nest = [&](size_t depth) {
    if (depth == loops.extents.size()) return body(read, place);
    Each(loops.extents[depth], true, [&](Register counter) {
      counters.push_back(counter);
      nest(depth + 1);
      counters.pop_back();
    });
  };
  nest(0);
}

void RegionMaker::Copy(const View& to, const View& from) {
  EachElement(to.shape, {to, from}, [&](const Read& read, const Place& place) {
    const Register value = read(1);
    Store(to, place(0), value);
  });
}

void RegionMaker::CopyAtOnce(const std::vector<View>& to, const std::vector<View>& from) {
  // A source that another copy overwrites is read first.
  std::vector<View> sources = from;
  std::vector<bool> is_same(to.size());
  for (size_t k = 0; k < from.size(); ++k) {
    const View& source = from[k];
    if (source.buffer == kNoBuffer) continue;
    is_same[k] = source.buffer == to[k].buffer && source.start == to[k].start &&
                 source.strides == to[k].strides;
    const bool is_overwritten = std::any_of(
        to.begin(), to.end(), [&](const View& other) { return other.buffer == source.buffer; });
    if (is_same[k] || !is_overwritten) continue;
    if (ElementCount(source.shape) == 1) {
      sources[k] = {source.carrier, source.shape, One(source), kNoBuffer, {}, {}};
    } else {
      sources[k] = Local(source.carrier, source.shape, "");
      Copy(sources[k], source);
    }
  }
  for (size_t k = 0; k < to.size(); ++k) {
    if (!is_same[k]) Copy(to[k], sources[k]);
  }
}

View RegionMaker::ContiguousOf(const View& view) {
  if (view.all != kNoRegister || view.strides == StridesOf(view.shape)) return view;
  const View copy = Local(view.carrier, view.shape, "");
  Copy(copy, view);
  return copy;
}

View RegionMaker::MaskFor(const Shape& shape, ValueId mask) {
  View view = ViewOf(mask);
  if (view.shape == shape) return view;
  const int64_t count = ElementCount(view.shape);
  if (view.all == kNoRegister && count == ElementCount(shape)) {
    view = ContiguousOf(view);
    view.shape = shape;
    view.strides = StridesOf(shape);
    return view;
  }
  return AnyOf(shape, view);
}

View RegionMaker::AnyOf(const Shape& shape, const View& mask) {
  View same{.carrier = Carrier::kBool, .shape = shape, .all = mask.all};
  if (mask.all != kNoRegister) return same;
  View line = ContiguousOf(mask);
  line.shape = {ElementCount(mask.shape)};
  line.strides = {1};
  same.all = Fold(line, "or_bool", 0);
  return same;
}

void RegionMaker::Define(const Op& op, const Element& element) {
  std::vector<View> operands;
  for (ValueId operand : op.operands) operands.push_back(ViewOf(operand));
  Define(op, operands, element);
}

void RegionMaker::Define(const Op& op, const std::vector<View>& operands, const Element& element) {
  const ValueId id = op.results[0];
  const Value& value = program_[id];
  const bool is_splat = std::all_of(operands.begin(), operands.end(),
                                    [](const View& view) { return view.all != kNoRegister; });
  if (ElementCount(value.type.shape) == 1 || is_splat) {
    const Register result = element([&](size_t k) { return One(operands[k]); });
    Bind(id, {CarrierOf(value), value.type.shape, result, kNoBuffer, {}, {}});
    return;
  }
  const View to = Local(CarrierOf(value), value.type.shape, value.name);
  std::vector<View> views = operands;
  views.push_back(to);
  EachElement(value.type.shape, views, [&](const Read& read, const Place& place) {
    const Register result = element(read);
    Store(to, place(operands.size()), result);
  });
  Bind(id, to);
}

void RegionMaker::Look(const View& view, ValueId where, Seen seen) {
  if (!records_.looks) return;
  std::vector<Mask> masks;
  if (where != ValueId::kNone) masks.push_back({MaskFor(view.shape, where)});
  LookUnder(view, masks, seen);
}

RegionMaker::Seen RegionMaker::SeenOf(ValueId id) const {
  const bool meant = !numerical_.infinite.empty() && numerical_.infinite[Index_(id)];
  return meant ? Seen::kNan : Seen::kNonFinite;
}

void RegionMaker::LookAtReads(const Op& op) {
  const auto found = looks_.reads.find(&op);
  if (!records_.looks || found == looks_.reads.end()) return;
  const ValueId where = op.attributes.where;
  for (const PrimalRead& read : found->second) {
    const View view = ViewOf(read.value);
    std::vector<Mask> masks;
    if (where != ValueId::kNone) {
      masks.push_back(
          {ReadsByElement(op) ? MaskFor(view.shape, where) : AnyOf(view.shape, ViewOf(where))});
    }
    if (op.code == OpCode::kSelect) {
      masks.push_back({MaskFor(view.shape, op.operands[0]), read.operand == 2});
    }
    LookUnder(view, masks, SeenOf(read.value));
  }
}

void RegionMaker::LookUnder(const View& view, const std::vector<Mask>& masks, Seen seen) {
  std::vector<View> views = {view};
  for (const Mask& mask : masks) views.push_back(mask.view);
  const bool is_one = views.size() == 1 && view.all != kNoRegister && ElementCount(view.shape) > 0;
  EachElement(is_one ? Shape{} : view.shape, views, [&](const Read& read, const Place&) {
    std::vector<Register> operands = {read(0)};
    for (size_t k = 0; k < masks.size(); ++k) {
      Register mask = read(k + 1);
      if (masks[k].negated) mask = Call("not_bool", Carrier::kBool, {mask});
      if (k > 0) mask = Call("and_bool", Carrier::kBool, {operands[1], mask});
      operands.resize(1);
      operands.push_back(mask);
    }
    if (seen == Seen::kNan) {
      const std::string equal = Cat("eq_", CarrierName(view.carrier));
      Register is_nan = Call(equal, Carrier::kBool, {operands[0], operands[0]});
      is_nan = Call("not_bool", Carrier::kBool, {is_nan});
      if (operands.size() > 1) is_nan = Call("and_bool", Carrier::kBool, {operands[1], is_nan});
      operands.resize(1);
      operands.push_back(is_nan);
    }
    Emit({.code = Code::kLook, .operands = std::move(operands)});
  });
}

void RegionMaker::Stored(const View& state, Format format) {
  if (!records_.ranges) return;
  EachElement(state.shape, {state}, [&](const Read& read, const Place&) {
    const Register x = read(0);
    Emit({.code = Code::kStored, .operands = {x}, .format = format, .role = Role::kState});
  });
}

void RegionMaker::Commit(const std::function<void()>& body, Committed when) {
  std::vector<Statement> inside;
  std::vector<Statement>* const around = std::exchange(block_, &inside);
  body();
  block_ = around;
  Emit({.code = Code::kCommit,
        .before_stop = when == Committed::kAlways,
        .body = std::move(inside)});
}

void RegionMaker::Run(const Region& region) {
  regions_.push_back(&region);
  auto around = std::exchange(kept_, {});
  for (const Op& op : region.ops) {
    meter_.Add(kPlanningWork);
    for (ValueId id : op.results) {
      if (id != ValueId::kNone) producers_[Index_(id)] = {&region, &op};
    }
    Operation(op);
    SetRadius(op);
    for (ValueId id : op.results) {
      if (id != ValueId::kNone) Keep(id, region);
    }
  }
  kept_ = std::move(around);
  regions_.pop_back();
}

}  // namespace simgrad::sim::plan
