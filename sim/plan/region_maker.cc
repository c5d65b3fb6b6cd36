#include "sim/plan/region_maker.h"

#include <algorithm>
#include <utility>

#include "precision/rounding.h"
#include "sim/program/axes.h"
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
      records_(records),
      out_(plan, function),
      values_(program_, out_),
      scales_(program_, values_, out_),
      sites_(numerical, records_, values_, scales_, out_),
      frames_(program_, values_, out_),
      radii_(numerical, records.decides, values_, scales_, out_),
      adjoint_draws_(AdjointDraws(numerical)) {}

void RegionMaker::Look(const View& view, ValueId where, Seen seen) {
  if (!records_.looks) return;
  std::vector<Mask> masks;
  if (where != ValueId::kNone) masks.push_back({values_.MaskFor(view.shape, where)});
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
    const View view = values_.ViewOf(read.value);
    std::vector<Mask> masks;
    if (where != ValueId::kNone) {
      masks.push_back({ReadsByElement(op) ? values_.MaskFor(view.shape, where)
                                          : values_.AnyOf(view.shape, values_.ViewOf(where))});
    }
    if (op.code == OpCode::kSelect) {
      masks.push_back({values_.MaskFor(view.shape, op.operands[0]), read.operand == 2});
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
  values_.Enter(region);
  for (const Op& op : region.ops) {
    meter_.Add(kPlanningWork);
    values_.Made(op);
    Operation(op);
    radii_.Set(op);
    for (ValueId id : op.results) {
      if (id != ValueId::kNone) frames_.Keep(id, region);
    }
  }
  values_.Leave();
}

}  // namespace simgrad::sim::plan
