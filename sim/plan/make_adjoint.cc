// The adjoint: slots, sums of gradients, loops in reverse; the pseudocode of sim/program/loop.h.
#include <algorithm>
#include <array>
#include <utility>

#include "sim/plan/region_maker.h"
#include "sim/program/axes.h"
#include "sim/program/loop.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

ValueId CotangentAt(std::span<const ValueId> ids, size_t k) {
  return k < ids.size() / 2 ? ids[k] : ValueId::kNone;
}

// The moving slots, with others between the carried ones and the captures.
std::vector<Slot> With(const std::vector<Slot>& moving, size_t carried,
                       std::initializer_list<const std::vector<Slot>*> between) {
  const auto captures = moving.begin() + static_cast<std::ptrdiff_t>(carried);
  std::vector<Slot> slots(moving.begin(), captures);
  for (const auto* list : between) slots.insert(slots.end(), list->begin(), list->end());
  slots.insert(slots.end(), captures, moving.end());
  return slots;
}

}  // namespace

View RegionMaker::Everywhere(Carrier carrier, int64_t number, const Shape& shape) {
  return View::Splat(carrier, shape, out_.Constant(carrier, number));
}

Slot RegionMaker::SlotOfFields(int32_t cotangent, int32_t mask, const Shape& shape,
                               const std::string& name) {
  return {out_.Field(cotangent, shape, name), out_.Field(mask, shape, name + "_mask")};
}

View RegionMaker::Sent(int32_t number, Carrier carrier, const Shape& shape) {
  return out_.Whole(
      {.kind = BufferKind::kSent, .carrier = carrier, .number = number, .name = "sent"}, shape);
}

Register RegionMaker::Seed(Carrier carrier) {
  return out_.Computed(carrier, {.code = Code::kSeed});
}

// ---- slots ----

Slot RegionMaker::NewSlot(std::initializer_list<ValueId> types, const std::string& name) {
  for (ValueId id : types) {
    if (id == ValueId::kNone) continue;
    const Value& value = program_[id];
    return {out_.Local(CarrierOf(value), value.type.shape, name),
            out_.Local(Carrier::kBool, value.type.shape, name + "_mask")};
  }
  return {};
}

Slot RegionMaker::ReadSlot(std::span<const ValueId> list, size_t k) {
  const SlotList slots = SlotList::Of(list);
  if (k >= slots.size() || slots.cotangents[k] == ValueId::kNone) return {};
  Slot slot = {values_.ViewOf(slots.cotangents[k]), {}};
  slot.mask = slots.masks[k] == ValueId::kNone ? Everywhere(Carrier::kBool, 1, slot.cotangent.shape)
                                               : values_.ViewOf(slots.masks[k]);
  return slot;
}

void RegionMaker::InitSlot(const Slot& to, const Slot& from) {
  if (!to.cotangent.set()) return;
  const bool present = from.cotangent.set();
  const Shape& shape = to.cotangent.shape;
  out_.Copy(to.cotangent, present ? from.cotangent : Everywhere(to.cotangent.carrier, 0, shape));
  out_.Copy(to.mask, present ? from.mask : Everywhere(Carrier::kBool, 0, shape));
}

void RegionMaker::BindSlots(std::span<const ValueId> args, const std::vector<Slot>& slots) {
  const SlotList list = SlotList::Of(args);
  for (size_t k = 0; k < list.size(); ++k) {
    const ValueId id = list.cotangents[k];
    if (id == ValueId::kNone) continue;
    const bool present = slots[k].cotangent.set();
    const Value& value = program_[id];
    const Shape& shape = value.type.shape;
    values_.Bind(id, present ? slots[k].cotangent : Everywhere(CarrierOf(value), 0, shape));
    if (list.masks[k] == ValueId::kNone) continue;
    values_.Bind(list.masks[k], present && slots[k].mask.set()
                                    ? slots[k].mask
                                    : Everywhere(Carrier::kBool, present ? 1 : 0, shape));
  }
}

void RegionMaker::YieldSlots(std::span<const ValueId> yields, const std::vector<Slot>& to) {
  std::vector<View> targets;
  std::vector<View> sources;
  for (size_t k = 0; k < to.size(); ++k) {
    if (!to[k].cotangent.set()) continue;
    const Slot from = ReadSlot(yields, k);
    if (from.cotangent.set()) {
      targets.push_back(to[k].cotangent);
      sources.push_back(from.cotangent);
    }
    if (!to[k].mask.set()) continue;
    targets.push_back(to[k].mask);
    sources.push_back(from.cotangent.set() ? from.mask
                                           : Everywhere(Carrier::kBool, 0, to[k].mask.shape));
  }
  out_.CopyAtOnce(targets, sources);
}

void RegionMaker::Reverse(const Region& region, size_t leading, const std::vector<Slot>& args,
                          const std::vector<Slot>& to) {
  BindSlots(std::span(region.args).subspan(leading), args);
  Run(region);
  YieldSlots(region.yields, to);
}

void RegionMaker::Leaves(const Slot& slot) {
  if (!slot.cotangent.set()) return;
  out_.EachElement(slot.cotangent.shape, {slot.cotangent, slot.mask},
                   [&](const Read& read, const Places&) {
                     const Register cotangent = read(0);
                     out_.Emit({.code = Code::kTake,
                                .operands = {cotangent, read(1)},
                                .format = numerical_.policy[Role::kAdjoint].format,
                                .role = Role::kAdjoint});
                   });
}

// ---- gradients ----

View RegionMaker::GivenTo(size_t input, BufferKind kind, Carrier carrier, const Shape& shape) {
  View& view = given_[{input, kind}];
  if (!view.set()) {
    view = out_.Whole({.kind = kind,
                       .carrier = carrier,
                       .number = static_cast<int32_t>(input),
                       .name = program_.inputs[input].name},
                      shape);
  }
  return view;
}

RegionMaker::Gradient RegionMaker::GradientOf(size_t input, const Shape& shape) {
  const Format format = numerical_.policy[Role::kGradient].format;
  const Carrier carrier = format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  return {GivenTo(input, BufferKind::kGradient, carrier, shape),
          GivenTo(input, BufferKind::kConnected, Carrier::kBool, {})};
}

void RegionMaker::Accumulate(const Op& op) {
  const size_t input = static_cast<size_t>(op.attributes.input);
  if (!numerical_.adjoint_spec->wanted[input]) return;
  if (products_ != nullptr) {
    const auto product = products_->made_by.find(&op);
    if (product != products_->made_by.end()) return GiveFactors(op, *product->second);
  }
  const View value = values_.ViewOf(op.operands[0]);
  const Gradient gradient = GradientOf(input, value.shape);
  const Carrier carrier = gradient.sum.carrier;
  const Format format = numerical_.policy[Role::kGradient].format;
  const bool is_same = *program_[op.operands[0]].format == format;
  const std::string name(precision::FormatName(format));
  std::vector<View> views = {value, gradient.sum};
  if (op.operands.size() > 1 && op.operands[1] != ValueId::kNone) {
    views.push_back(values_.MaskFor(value.shape, op.operands[1]));
  }
  if (op.attributes.where != ValueId::kNone) {
    views.push_back(values_.MaskFor(value.shape, op.attributes.where));
  }
  out_.EachElement(value.shape, views, [&](const Read& read, const Places& place) {
    Register where = kNoRegister;  // everywhere
    for (size_t k = 2; k < views.size(); ++k) {
      where = k == 2 ? read(k) : out_.Call("and_bool", Carrier::kBool, {where, read(k)});
    }
    Register x = read(0);
    const Register before = read(1);
    Register added;
    if (op.attributes.combine == Combine::kMax) {
      added = out_.Call(Cat("max_", CarrierName(carrier)), carrier, {before, x});
    } else if (is_same) {
      added = out_.Call(Cat("add_", name), carrier, {before, x});
    } else {
      Register wide = before;
      if (value.carrier == Carrier::kF32) x = out_.Call("widen_f32", Carrier::kF64, {x});
      if (carrier == Carrier::kF32) wide = out_.Call("widen_f32", Carrier::kF64, {wide});
      added = out_.Call(Cat("add_wide_", name), Carrier::kF64, {wide, x});
      if (carrier == Carrier::kF32) added = out_.Call("narrow_f64", Carrier::kF32, {added});
    }
    if (where == kNoRegister) {
      if (records_.looks) out_.Emit({.code = Code::kLook, .operands = {added}});
      return out_.Store(gradient.sum, place(1), added);
    }
    if (records_.looks) out_.Emit({.code = Code::kLook, .operands = {added, where}});
    out_.Store(gradient.sum, place(1),
               out_.Call(Cat("select_", CarrierName(carrier)), carrier, {where, added, before}));
    out_.StoreOne(gradient.connected,
                  out_.Call("or_bool", Carrier::kBool, {out_.One(gradient.connected), where}));
  });
  // Behind the loop: turns that run side by side write elements of their own alone.
  if (views.size() == 2 && ElementCount(value.shape) > 0) {
    out_.StoreOne(gradient.connected, out_.Constant(Carrier::kBool, 1));
  }
}

// The product of the largest magnitudes tells whether a cell is not finite: where both are finite, none
// is, unless the largest overflows.
void RegionMaker::GiveFactors(const Op& accumulate, const Op& matmul) {
  const size_t input = static_cast<size_t>(accumulate.attributes.input);
  const std::array<View, 2> sides = {values_.ViewOf(matmul.operands[0]),
                                     values_.ViewOf(matmul.operands[1])};
  const Carrier carrier = sides[0].carrier;
  const std::string_view name = CarrierName(carrier);
  const int64_t rows = ElementCount(sides[0].shape);
  const View factors =
      GivenTo(input, BufferKind::kFactors, carrier, {rows + ElementCount(sides[1].shape)});
  std::vector<Register> largest;
  for (const View& side : sides) {
    View to = factors;
    to.start.base = &side == &sides[0] ? 0 : rows;
    to.shape = side.shape;
    to.strides = StridesOf(side.shape);
    out_.Copy(to, side);
    if (!records_.looks) continue;
    const View most = out_.Local(carrier, {}, "largest");
    out_.StoreOne(most, out_.Constant(carrier, 0));
    out_.Each(ElementCount(side.shape), false, [&](Register counter) {
      const Register x = out_.Load(to, {.base = to.start.base, .terms = {{counter, 1}}});
      const Register magnitude = out_.Call(Cat("abs_", name), carrier, {x});
      out_.StoreOne(most, out_.Call(Cat("max_", name), carrier, {out_.One(most), magnitude}));
    });
    largest.push_back(out_.One(most));
  }
  if (records_.looks) {
    out_.Emit({.code = Code::kLook, .operands = {out_.Call(Cat("mul_", name), carrier, largest)}});
  }
  out_.StoreOne(GivenTo(input, BufferKind::kConnected, Carrier::kBool, {}),
                out_.Constant(Carrier::kBool, 1));
}

void RegionMaker::SetGradient(size_t input, const Slot& slot) {
  const Gradient gradient = GradientOf(input, slot.cotangent.shape);
  const Carrier carrier = gradient.sum.carrier;
  const precision::RoleSetting& setting = numerical_.policy[Role::kGradient];
  const std::string round =
      Cat("round_", CarrierName(slot.cotangent.carrier), "_", precision::FormatName(setting.format),
          setting.overflow == Overflow::kSaturate ? "_saturate" : "");
  out_.EachElement(
      slot.cotangent.shape, {slot.cotangent, slot.mask, gradient.sum},
      [&](const Read& read, const Places& place) {
        const Register x = out_.Call(round, carrier, {read(0)});
        const Register where = read(1);
        if (records_.looks) out_.Emit({.code = Code::kLook, .operands = {x, where}});
        out_.Store(gradient.sum, place(2),
                   out_.Call(Cat("select_", CarrierName(carrier)), carrier, {where, x, read(2)}));
        out_.StoreOne(gradient.connected,
                      out_.Call("or_bool", Carrier::kBool, {out_.One(gradient.connected), where}));
      });
}

// ---- loops in reverse ----

void RegionMaker::WhileVjp(const Op& op) {
  const TapePlan::Loop& loop = frames_.tape().LoopOf(op.attributes.primal);
  const Register around = frames_.Of(*loop.around);
  const int64_t n = loop.op->attributes.elements;
  const size_t slots = op.operands.size() / 2;
  std::vector<Slot> given;
  for (size_t k = 0; k < slots; ++k) given.push_back(ReadSlot(op.operands, k));
  if (n == 0) {
    return BindSlots(op.results, ReverseWhile(op, *loop.op, around, kNoRegister, given));
  }
  std::vector<Slot> joined;
  for (size_t k = 0; k < op.results.size() / 2; ++k) {
    joined.push_back(NewSlot({op.results[k]}, "joined"));
  }
  const Register around_element = out_.around().element;
  out_.Each(n, true, [&](Register element) {
    if (adjoint_draws_)
      out_.around().element =
          out_.Flattened(around_element, out_.Constant(Carrier::kI64, n), element);
    std::vector<Slot> own;
    for (const Slot& slot : given) {
      own.push_back(slot.cotangent.set()
                        ? Slot{ElementOf(slot.cotangent, element), ElementOf(slot.mask, element)}
                        : Slot{});
    }
    const std::vector<Slot> out = ReverseWhile(op, *loop.op, around, element, own);
    for (size_t k = 0; k < joined.size(); ++k) {
      if (!joined[k].cotangent.set()) continue;
      InitSlot({ElementOf(joined[k].cotangent, element), ElementOf(joined[k].mask, element)},
               k < out.size() ? out[k] : Slot{});
    }
  });
  out_.around().element = around_element;
  BindSlots(op.results, joined);
}

std::vector<Slot> RegionMaker::ReverseWhile(const Op& op, const Op& loop, Register around,
                                            Register element, const std::vector<Slot>& given) {
  const LoopPlace& place =
      frames_.tape().Of(*frames_.tape().LoopOf(op.attributes.primal).around)->loops.at(&loop);
  const FrameLayout* const layout = frames_.tape().Of(loop.regions[0]);
  const Region& body = op.regions[0];
  const Region& inner = op.regions[1];
  const Region& last = op.regions[2];
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t e = static_cast<size_t>(CountsOf(loop).exports);
  const bool cap_first = loop.attributes.cap_order == CapOrder::kCapFirst;
  const bool has_both = cap_first && op.regions.size() > 3 && !op.regions[3].yields.empty();
  const auto recall = [&](int64_t offset, Carrier carrier, bool shared) {
    return frames_.RecallOne(around, offset, element, carrier, shared);
  };
  const Register turns = recall(place.turns, Carrier::kI64, true);
  const Register iterations = recall(place.iterations, Carrier::kI32, false);
  const Register tests = recall(place.tests, Carrier::kI32, false);
  // The slots that move through the iterations, and what the last test's exports get from outside.
  std::vector<Slot> moving;
  for (size_t k = 0; k + e < given.size(); ++k) {
    const size_t in_test = k < c ? k : k + e;
    moving.push_back(NewSlot({CotangentAt(body.args, k), CotangentAt(last.args, in_test),
                              CotangentAt(inner.args, in_test), CotangentAt(inner.yields, k),
                              CotangentAt(last.yields, k), CotangentAt(body.yields, in_test)},
                             "moving"));
    InitSlot(moving.back(), given[in_test]);
  }
  const std::vector<Slot> outside(given.begin() + static_cast<std::ptrdiff_t>(c),
                                  given.begin() + static_cast<std::ptrdiff_t>(c + e));
  View frame;
  if (layout != nullptr) {
    frame = out_.SharedLocal("frame");
    out_.StoreOne(frame, recall(place.last, Carrier::kI64, true));
  }
  const Register around_iteration = out_.around().iteration;
  out_.EachOf(turns, [&](Register counter) {
    // From the last turn down.
    const Register next =
        out_.Call("add_i64", Carrier::kI64, {counter, out_.Constant(Carrier::kI64, 1)});
    const Register turn = out_.Call("convert_i64_i32", Carrier::kI32,
                                    {out_.Call("sub_i64", Carrier::kI64, {turns, next})});
    if (adjoint_draws_ && !IsBranch(loop)) {
      const Register radix = out_.Integer(Carrier::kI64, RadixOf(loop));
      out_.around().iteration = out_.Flattened(around_iteration, radix,
                                               out_.Call("convert_i32_i64", Carrier::kI64, {turn}));
    }
    if (layout != nullptr) frames_.Set(loop.regions[0], out_.One(frame));
    const Register is_last = out_.Call("eq_i32", Carrier::kBool, {turn, tests});
    // The last test without a body behind it.
    const Register ended = out_.Call("eq_i32", Carrier::kBool, {turn, iterations});
    out_.If(out_.Call("and_bool", Carrier::kBool, {is_last, ended}),
            [&] { Reverse(last, 0, With(moving, c, {&outside}), moving); });
    Register runs = out_.Call("lt_i32", Carrier::kBool, {turn, iterations});
    if (op.attributes.last > 0) {
      // Only the last iterations are reversed.
      const Register count = out_.Integer(Carrier::kI32, op.attributes.last);
      const Register first = out_.Call("sub_i32", Carrier::kI32, {iterations, count});
      const Register is_among = out_.Call("ge_i32", Carrier::kBool, {turn, first});
      runs = out_.Call("and_bool", Carrier::kBool, {runs, is_among});
    }
    out_.If(runs, [&] {
      std::vector<Slot> from_body;
      for (size_t k = 0; k < e; ++k) {
        from_body.push_back(
            NewSlot({CotangentAt(inner.args, c + k), CotangentAt(body.yields, c + k)}, "export"));
        InitSlot(from_body.back(), {});
      }
      Reverse(body, 0, moving, With(moving, c, {&from_body}));
      const auto reverse_inner = [&] { Reverse(inner, 0, With(moving, c, {&from_body}), moving); };
      if (!has_both) return reverse_inner();
      out_.If(is_last, [&] {
        Reverse(op.regions[3], 0, With(moving, c, {&outside, &from_body}), moving);
      });
      out_.If(out_.Call("not_bool", Carrier::kBool, {is_last}), reverse_inner);
    });
    if (layout != nullptr) {
      const Register before =
          frames_.RecallOne(frames_.Of(loop.regions[0]), 0, kNoRegister, Carrier::kI64, true);
      out_.StoreOne(frame, before);
    }
  });
  out_.around().iteration = around_iteration;
  return moving;
}

void RegionMaker::ForVjp(const Op& op) {
  const TapePlan::Loop& loop = frames_.tape().LoopOf(op.attributes.primal);
  const FrameLayout& around = *frames_.tape().Of(*loop.around);
  const LoopPlace& place = around.loops.at(loop.op);
  const FrameLayout* const layout = frames_.tape().Of(loop.op->regions[0]);
  const Region& body = op.regions[0];
  const std::span<const ValueId> args = std::span(body.args).subspan(1);
  const size_t slots = op.operands.size() / 2;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t stacked = StackedOf(*loop.op);
  const size_t first_scanned = slots - static_cast<size_t>(loop.op->attributes.scanned);
  const auto moves = [&](size_t k) { return k < c || (k >= c + stacked && k < first_scanned); };
  // The slots that move through the turns; what stacked results received; what scanned values get.
  std::vector<Slot> moving(slots), given(slots), joined(slots);
  for (size_t k = 0; k < slots; ++k) {
    if (moves(k)) {
      moving[k] = NewSlot({CotangentAt(args, k), CotangentAt(body.yields, k),
                           CotangentAt(op.operands, k), CotangentAt(op.results, k)},
                          "moving");
      InitSlot(moving[k], ReadSlot(op.operands, k));
    } else if (k < first_scanned) {
      given[k] = ReadSlot(op.operands, k);
    } else {
      joined[k] = NewSlot({CotangentAt(op.results, k)}, "joined");
    }
  }
  View frame;
  if (layout != nullptr) {
    frame = out_.SharedLocal("frame");
    out_.StoreOne(frame, frames_.RecallOne(frames_.Of(*loop.around), place.last, kNoRegister,
                                           Carrier::kI64, true));
  }
  const Register trips = out_.Integer(Carrier::kI64, loop.op->attributes.max_iter);
  const Register around_iteration = out_.around().iteration;
  out_.EachOf(trips, [&](Register counter) {
    const Register next =
        out_.Call("add_i64", Carrier::kI64, {counter, out_.Constant(Carrier::kI64, 1)});
    const Register turn = out_.Call("sub_i64", Carrier::kI64, {trips, next});
    if (adjoint_draws_) out_.around().iteration = out_.Flattened(around_iteration, trips, turn);
    if (layout != nullptr) frames_.Set(loop.op->regions[0], out_.One(frame));
    if (body.args[0] != ValueId::kNone) {
      const Register element = IndexOfTurn(*loop.op, trips, turn);
      const Register index = out_.Call("convert_i64_i32", Carrier::kI32, {element});
      values_.Bind(body.args[0], View::Splat(Carrier::kI32, {}, index));
    }
    const auto one = [&](const Slot& whole) {
      if (!whole.cotangent.set()) return Slot{};
      const bool descends = !loop.op->attributes.reverse;
      return Slot{CountedElement(whole.cotangent, counter, descends),
                  CountedElement(whole.mask, counter, descends)};
    };
    std::vector<Slot> entering = moving;
    std::vector<Slot> leaving = moving;
    for (size_t k = 0; k < slots; ++k) {
      if (moves(k)) continue;
      if (k < first_scanned) {
        entering[k] = one(given[k]);
      } else {
        leaving[k] = one(joined[k]);
      }
    }
    Reverse(body, 1, entering, leaving);
    if (layout != nullptr) {
      out_.StoreOne(frame, frames_.RecallOne(frames_.Of(loop.op->regions[0]), 0, kNoRegister,
                                             Carrier::kI64, true));
    }
  });
  out_.around().iteration = around_iteration;
  for (size_t k = first_scanned; k < slots; ++k) moving[k] = joined[k];
  BindSlots(op.results, moving);
}

}  // namespace simgrad::sim::plan
