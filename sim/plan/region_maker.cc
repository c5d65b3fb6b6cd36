// Values and regions.
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
      out_(plan, function),
      records_(records),
      views_(program_.values.size()),
      inputs_(program_.inputs.size()),
      adjoint_draws_(AdjointDraws(numerical)),
      producers_(program_.values.size()) {
  for (const Site& site : numerical.sites) site_numbers_.emplace(site.name, site.number);
  if (!records.decides) return;
  behind_ = BehindPredicates(program_);
  if (behind_.empty()) return;
  radii_.resize(behind_.size());
  tests_ = DecidingTestsOf(program_, numerical.sites);
}

View RegionMaker::InputView(size_t input) {
  const Input& declared = program_.inputs[input];
  const Type& type = program_[declared.value].type;
  View& view = inputs_[input];
  if (!view.set()) {
    view = out_.Whole({.kind = BufferKind::kInput,
                       .carrier = CarrierOf(program_[declared.value]),
                       .number = static_cast<int32_t>(input),
                       .name = declared.name},
                      type.shape);
  }
  return view;
}

const View& RegionMaker::ViewOf(ValueId id) {
  View& view = views_[Index_(id)];
  if (view.set()) return view;
  // The adjoint reads literals of the step.
  if (const Op* literal = tape_ == nullptr ? nullptr : tape_->LiteralOf(id)) {
    out_.First([&] { Literal(*literal); });
    return views_[Index_(id)];
  }
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    if (input.value != id) continue;
    if (input.kind == InputKind::kStep) {
      const Carrier carrier = CarrierOf(program_[id]);
      out_.First(
          [&] { view = View::Splat(carrier, {}, out_.Computed(carrier, {.code = Code::kTime})); });
    } else {
      view = InputView(i);
    }
  }
  return view;
}

View RegionMaker::MaskFor(const Shape& shape, ValueId mask) {
  View view = ViewOf(mask);
  if (view.shape == shape) return view;
  const int64_t count = ElementCount(view.shape);
  if (view.all == kNoRegister && count == ElementCount(shape)) {
    view = out_.ContiguousOf(view);
    view.shape = shape;
    view.strides = StridesOf(shape);
    return view;
  }
  return AnyOf(shape, view);
}

View RegionMaker::AnyOf(const Shape& shape, const View& mask) {
  View same{.carrier = Carrier::kBool, .shape = shape, .all = mask.all};
  if (mask.all != kNoRegister) return same;
  View line = out_.ContiguousOf(mask);
  line.shape = {ElementCount(mask.shape)};
  line.strides = {1};
  same.all = out_.Fold(line, "or_bool", 0);
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
    const Register result = element([&](size_t k) { return out_.One(operands[k]); });
    Bind(id, View::Splat(CarrierOf(value), value.type.shape, result));
    return;
  }
  const View to = out_.Local(CarrierOf(value), value.type.shape, value.name);
  std::vector<View> views = operands;
  views.push_back(to);
  out_.EachElement(value.type.shape, views, [&](const Read& read, const Places& place) {
    const Register result = element(read);
    out_.Store(to, place(operands.size()), result);
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
  out_.EachElement(is_one ? Shape{} : view.shape, views, [&](const Read& read, const Places&) {
    std::vector<Register> operands = {read(0)};
    for (size_t k = 0; k < masks.size(); ++k) {
      Register mask = read(k + 1);
      if (masks[k].negated) mask = out_.Call("not_bool", Carrier::kBool, {mask});
      if (k > 0) mask = out_.Call("and_bool", Carrier::kBool, {operands[1], mask});
      operands.resize(1);
      operands.push_back(mask);
    }
    if (seen == Seen::kNan) {
      const std::string equal = Cat("eq_", CarrierName(view.carrier));
      Register is_nan = out_.Call(equal, Carrier::kBool, {operands[0], operands[0]});
      is_nan = out_.Call("not_bool", Carrier::kBool, {is_nan});
      if (operands.size() > 1)
        is_nan = out_.Call("and_bool", Carrier::kBool, {operands[1], is_nan});
      operands.resize(1);
      operands.push_back(is_nan);
    }
    out_.Emit({.code = Code::kLook, .operands = std::move(operands)});
  });
}

void RegionMaker::Stored(const View& state, Format format) {
  if (!records_.ranges) return;
  out_.EachElement(state.shape, {state}, [&](const Read& read, const Places&) {
    const Register x = read(0);
    out_.Emit({.code = Code::kStored, .operands = {x}, .format = format, .role = Role::kState});
  });
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
