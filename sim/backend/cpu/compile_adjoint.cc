// Emission of the adjoint: tapes, accumulation, and the loops in reverse (sim/program/loop.h).
#include <algorithm>
#include <array>
#include <numeric>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/identity.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {

namespace {

// Which travelling slot stands at each place of the lists of a reversed while (loop.h): carried
// 0.., captures c.., exports as the body yields them c + x.., exports from outside -1, -2, ...
struct WhileVjpPlaces {
  WhileVjpPlaces(int32_t c, int32_t e, int32_t x) {
    const std::vector<int32_t> carried = Run(0, c);
    const std::vector<int32_t> captures = Run(c, x);
    const std::vector<int32_t> exports = Run(c + x, e);
    std::vector<int32_t> outside(static_cast<size_t>(e));
    for (int32_t k = 0; k < e; ++k) outside[static_cast<size_t>(k)] = -1 - k;
    both = Join({carried, captures});
    threaded = Join({carried, exports, captures});
    args = {both, threaded, Join({carried, outside, captures}),
            Join({carried, outside, exports, captures})};
    yields = {threaded, both, both, both};
  }

  // By travelling slot: its place in `threaded`.
  std::vector<size_t> InThreaded() const {
    std::vector<size_t> place(threaded.size());
    for (size_t k = 0; k < threaded.size(); ++k) place[static_cast<size_t>(threaded[k])] = k;
    return place;
  }

  std::vector<int32_t> both, threaded;               // without, with the exports of the body
  std::array<std::vector<int32_t>, 4> args, yields;  // by region

 private:
  static std::vector<int32_t> Run(int32_t from, int32_t count) {
    std::vector<int32_t> list(static_cast<size_t>(count));
    std::iota(list.begin(), list.end(), from);
    return list;
  }
  static std::vector<int32_t> Join(std::initializer_list<std::vector<int32_t>> parts) {
    std::vector<int32_t> list;
    for (const auto& part : parts) list.insert(list.end(), part.begin(), part.end());
    return list;
  }
};

}  // namespace

void Compiler::CompileAdjoint() {
  const Adjoint& adjoint = *program_->adjoint;
  of_adjoint_ = true;
  const bool staged = program_->stage_cost != ValueId::kNone;
  CompileAdjointRegion(adjoint.terminal, plan_->terminal_yield >= 0, plan_->adjoint_terminal);
  hoists_ = true;
  if (adjoint.last) CompileAdjointRegion(*adjoint.last, staged, plan_->adjoint_last.emplace());
  CompileAdjointRegion(adjoint.inner, staged, plan_->adjoint_inner);
  hoists_ = false;
  if (program_->program.HasInitial()) {
    CompileAdjointRegion(adjoint.initial, false, plan_->adjoint_initial);
  }
}

SlotPair Compiler::PairAt(const SlotList& list, size_t k) {
  SlotPair pair;
  if (list.cotangents[k] == ValueId::kNone) return pair;
  pair.cotangent = Varying(At(list.cotangents[k]));
  if (list.masks[k] != ValueId::kNone) pair.mask = Varying(At(list.masks[k]));
  return pair;
}

void Compiler::CompileAdjointRegion(const Region& region, bool seeded, AdjointRegionPlan& plan) {
  Scope scope;
  OpenScope(scope, region, plan.region);
  const auto place = [&](ValueId id) {
    if (id == ValueId::kNone) return -1;
    const Value& value = ValueAt(id);
    const int32_t slot = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                                 CountOf(id), false, false);
    PlaceForever(slot);
    Alias(id, slot);
    return slot;
  };
  if (seeded) plan.seed = place(region.args[0]);
  const SlotList args = SlotList::Of(std::span(region.args).subspan(seeded ? 1 : 0));
  for (size_t k = 0; k < args.size(); ++k) {
    plan.args.push_back({place(args.cotangents[k]), place(args.masks[k])});
  }
  CompileOps(scope);
  // What is yielded is held where the arguments are read from, so it must not be an argument.
  const SlotList yields = SlotList::Of(region.yields);
  std::set<int32_t> taken;
  for (size_t k = 0; k < yields.size(); ++k) {
    SlotPair pair;
    if (yields.cotangents[k] != ValueId::kNone) {
      pair.cotangent = OwnedYield(scope, yields.cotangents[k], taken, false);
      if (yields.masks[k] != ValueId::kNone) {
        pair.mask = OwnedYield(scope, yields.masks[k], taken, false);
      }
    }
    plan.yields.push_back(pair);
  }
  CloseScope(scope);
}

int32_t Compiler::Constant(Carrier carrier, Format format, int64_t count, double value) {
  int32_t& slot = constants_.try_emplace({carrier, count, value}, -1).first->second;
  if (slot < 0) {
    const int32_t uniform = NewSlot(carrier, format, count, true, true);
    PlaceForever(uniform);
    plan_->literals.push_back({uniform, {value}});
    slot = Varying(uniform);
  }
  return slot;
}

// A slot as numbers: absent ones are zeros under a mask of false.
SlotPair Compiler::FilledPair(const SlotList& list, size_t k, const CotangentType& type) {
  SlotPair pair = PairAt(list, k);
  const Carrier carrier = type.format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  const bool present = pair.cotangent >= 0;
  if (!present) pair.cotangent = Constant(carrier, type.format, type.count, 0.0);
  if (pair.mask < 0) {
    pair.mask = Constant(Carrier::kBool, Format::kF64, type.count, present ? 1 : 0);
  }
  return pair;
}

void Compiler::CompileVjpRegion(const Region& region, size_t leading,
                                const std::vector<int32_t>& args,
                                const std::vector<int32_t>& yields,
                                std::vector<TravellingSlot>& slots, size_t outside,
                                VjpRegion& plan) {
  Scope* const around = scope_;
  Scope scope;
  OpenScope(scope, region, plan.region);
  plan.args.resize(slots.size());
  plan.yields.resize(slots.size());
  plan.outside.resize(outside);
  const SlotList list = SlotList::Of(std::span(region.args).subspan(leading));
  const auto bind = [&](ValueId id) {
    if (id == ValueId::kNone) return -1;
    const Value& value = ValueAt(id);
    const int32_t slot = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                                 CountOf(id), false, false);
    Alias(id, slot);
    return slot;
  };
  for (size_t k = 0; k < list.size(); ++k) {
    const SlotPair pair = {bind(list.cotangents[k]), bind(list.masks[k])};
    if (args[k] >= 0) {
      plan.args[static_cast<size_t>(args[k])] = pair;
    } else {
      plan.outside[static_cast<size_t>(-1 - args[k])] = pair;
    }
  }
  CompileOps(scope);
  const SlotList out = SlotList::Of(region.yields);
  std::set<int32_t> taken;
  for (size_t k = 0; k < out.size(); ++k) {
    const size_t at = static_cast<size_t>(yields[k]);
    const SlotPair argument = plan.args[at];
    const auto own = [&](ValueId id, int32_t unchanged) {
      if (At(id) == unchanged) return kUnchanged;
      const int32_t owned = OwnedYield(scope, id, taken, false);
      MakeExclusive(owned);
      return owned;
    };
    SlotPair& pair = plan.yields[at];
    pair.cotangent = kUnchanged;
    if (out.cotangents[k] == ValueId::kNone) {
      pair.mask = kNowhere;
    } else {
      pair.cotangent = own(out.cotangents[k], argument.cotangent);
      pair.mask = kEverywhere;
      if (out.masks[k] != ValueId::kNone) pair.mask = own(out.masks[k], argument.mask);
    }
  }
  // The yields' buffers travel on when the region has ended.
  for (int32_t slot : taken) {
    if (scope.kept.erase(slot) > 0) around->scratch.push_back(slot);
  }
  CloseScope(scope);
}

TravellingSlot Compiler::MakeTravelling(const SlotList& operands, size_t k,
                                        const CotangentType& type) {
  TravellingSlot slot;
  slot.operand = FilledPair(operands, k, type);
  const Slot from = SlotAt(slot.operand.cotangent);
  slot.carrier = from.carrier;
  slot.format = from.format;
  slot.count = from.count;
  return slot;
}

// What the cotangents of each travelling slot look like: any that a list names has their type. A
// slot that no list names is never present, and has no elements.
std::vector<Compiler::CotangentType> Compiler::TypesOfSlots(
    size_t slots, const std::vector<NamedSlots>& lists) const {
  std::vector<CotangentType> types(slots);
  for (const NamedSlots& named : lists) {
    for (size_t k = 0; k < named.list.size(); ++k) {
      const ValueId id = named.list.cotangents[k];
      if (id == ValueId::kNone || named.slot[k] < 0) continue;
      types[static_cast<size_t>(named.slot[k])] = {*ValueAt(id).format,
                                                   CountOf(id) * named.repeats};
    }
  }
  return types;
}

// The buffers between the regions; the regions' own have been kept apart from them.
// A mask that is not read is not kept.
void Compiler::FinishTravelling(std::vector<TravellingSlot>& slots,
                                const std::vector<const VjpRegion*>& regions, int64_t elements) {
  for (size_t k = 0; k < slots.size(); ++k) {
    TravellingSlot& slot = slots[k];
    slot.count /= std::max<int64_t>(elements, 1);
    slot.masked = slot.result.mask >= 0;
    for (const VjpRegion* region : regions) {
      if (k < region->args.size()) slot.masked |= region->args[k].mask >= 0;
    }
    slot.cotangent = LoopBuffer(slot.carrier, slot.format, slot.count);
    slot.home = LoopBuffer(slot.carrier, slot.format, slot.count);
    slot.mask = LoopBuffer(Carrier::kBool, Format::kF64, slot.count);
    slot.home_mask = LoopBuffer(Carrier::kBool, Format::kF64, slot.count);
  }
}

// Whether nothing happens in a region: it computes nothing, and passes on what it was given.
bool Compiler::IsIdle(const VjpRegion& region, const std::vector<TravellingSlot>& slots) {
  if (!region.region.code.empty()) return false;
  for (size_t k = 0; k < region.yields.size(); ++k) {
    const SlotPair& yield = region.yields[k];
    if (yield.cotangent >= 0) return false;
    if (slots[k].masked && yield.mask != kUnchanged && yield.mask != -1) return false;
  }
  return true;
}

void Compiler::CompileWhileVjp(const Op& op) {
  const auto home = loop_of_.find(static_cast<int32_t>(op.attributes.primal));
  const Op& primal = *producer_[Index(op.attributes.primal)];
  const SlotList operands = SlotList::Of(op.operands);
  const SlotList results = SlotList::Of(op.results);
  const int32_t c = op.attributes.carried;
  const int32_t e = CountsOf(primal).exports;
  const int32_t x = static_cast<int32_t>(results.size()) - c;
  const int64_t n = primal.attributes.elements;
  WhileVjpPlan& plan = plan_->while_vjps.emplace_back();
  plan.primal = home->second.while_plan;
  plan.region = home->second.region;
  plan.record = home->second.record;
  const WhileVjpPlaces places(c, e, x);
  const std::array<VjpRegion*, 4> regions = {&plan.body, &plan.test_inner, &plan.test_last,
                                             &plan.test_both};
  const size_t region_count = plan.primal->cap_first ? 4 : 3;

  const int64_t repeats = std::max<int64_t>(n, 1);
  std::vector<NamedSlots> lists;
  for (size_t r = 0; r < region_count; ++r) {
    lists.push_back({SlotList::Of(op.regions[r].args), places.args[r], repeats});
    lists.push_back({SlotList::Of(op.regions[r].yields), places.yields[r], repeats});
  }
  lists.push_back({operands, places.threaded, 1});
  lists.push_back({results, places.both, 1});
  const std::vector<CotangentType> types = TypesOfSlots(static_cast<size_t>(c + x + e), lists);
  // Operands: carried, exports, captures. What enters for the exports from the body is nothing; it
  // only has to be of the right type.
  const std::vector<size_t> place = places.InThreaded();
  for (size_t t = 0; t < place.size(); ++t) {
    plan.slots.push_back(MakeTravelling(operands, place[t], types[t]));
    if (t >= static_cast<size_t>(c + x)) {
      plan.outside.push_back(plan.slots.back().operand);
    } else if (results.cotangents[t] != ValueId::kNone) {
      plan.slots[t].result.cotangent = LoopResult(results.cotangents[t]);
      plan.slots[t].result.mask = LoopResult(results.masks[t]);
    }
  }
  const int32_t first_inside = static_cast<int32_t>(plan_->slots.size());
  for (size_t r = 0; r < region_count; ++r) {
    CompileVjpRegion(op.regions[r], 0, places.args[r], places.yields[r], plan.slots,
                     static_cast<size_t>(e), *regions[r]);
  }
  FinishTravelling(plan.slots, {regions.begin(), regions.end()}, n);
  for (VjpRegion* region : regions) region->idle = IsIdle(*region, plan.slots);
  for (const SlotPair& pair : plan.outside) {
    const Slot like = SlotAt(pair.cotangent);
    const int64_t count = like.count / repeats;
    plan.outside_narrow.push_back({LoopBuffer(like.carrier, like.format, count),
                                   LoopBuffer(Carrier::kBool, Format::kF64, count)});
  }
  plan.reads = CapturesOf(
      {&plan.body.region, &plan.test_inner.region, &plan.test_last.region, &plan.test_both.region},
      first_inside);
  Instruction instruction;
  instruction.run = RunWhileVjp;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

void Compiler::CompileForVjp(const Op& op) {
  const auto home = loop_of_.find(static_cast<int32_t>(op.attributes.primal));
  const SlotList operands = SlotList::Of(op.operands);
  const SlotList results = SlotList::Of(op.results);
  const Region& body = op.regions[0];
  ForVjpPlan& plan = plan_->for_vjps.emplace_back();
  plan.primal = home->second.for_plan;
  plan.region = home->second.region;
  plan.record = home->second.record;
  std::vector<int32_t> places(results.size());
  std::iota(places.begin(), places.end(), 0);
  const std::vector<CotangentType> types =
      TypesOfSlots(results.size(), {{SlotList::Of(std::span(body.args).subspan(1)), places, 1},
                                    {SlotList::Of(body.yields), places, 1},
                                    {operands, places, 1},
                                    {results, places, 1}});
  for (size_t k = 0; k < results.size(); ++k) {
    plan.slots.push_back(MakeTravelling(operands, k, types[k]));
    if (results.cotangents[k] == ValueId::kNone) continue;
    plan.slots[k].result.cotangent = LoopResult(results.cotangents[k]);
    plan.slots[k].result.mask = LoopResult(results.masks[k]);
  }
  plan.index = NewSlot(Carrier::kI32, Format::kF64, 1, true, false);
  PlaceForever(plan.index);
  Alias(body.args[0], plan.index);
  CompileVjpRegion(body, 1, places, places, plan.slots, 0, plan.body);
  FinishTravelling(plan.slots, {&plan.body}, 0);
  Instruction instruction;
  instruction.run = RunForVjp;
  instruction.plan = &plan;
  scope_->plan->code.push_back(instruction);
}

}  // namespace simgrad::sim::cpu
