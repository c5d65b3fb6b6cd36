#include "sim/plan/frame_writer.h"

#include <utility>

#include "sim/program/axes.h"

namespace simgrad::sim::plan {

void FrameWriter::Use(const TapePlan* tape, bool keeps) {
  tape_ = tape;
  keeps_ = keeps;
  values_.ReadLiteralsOf(tape);
}

void FrameWriter::Push(const Region& region) {
  if (tape_ == nullptr) return;
  const FrameLayout* const layout = tape_->Of(region);
  if (layout == nullptr) return;
  frames_[layout] = out_.Computed(Carrier::kI64, {.code = Code::kPush, .number = layout->bytes});
}

void FrameWriter::Set(const Region& region, Register place) {
  if (const FrameLayout* const layout = tape_->Of(region)) frames_[layout] = place;
}

Register FrameWriter::Of(const Region& region) const {
  const FrameLayout* const layout = tape_->Of(region);
  return layout == nullptr ? kNoRegister : frames_.at(layout);
}

void FrameWriter::KeepAt(Register frame, int64_t offset, const View& view) {
  // Contiguous in the frame.
  View to = {view.carrier, view.shape, kNoRegister, 0, {}, StridesOf(view.shape)};
  out_.EachElement(view.shape, {view, to}, [&](const Read& read, const Places& place) {
    const Register value = read(0);
    out_.Emit({.code = Code::kKeep,
               .operands = {value},
               .index = place(1),
               .number = offset,
               .frame = frame});
  });
}

void FrameWriter::Keep(ValueId id, const Region& home) {
  if (!keeps_) return;
  const FrameLayout* const layout = tape_->Of(home);
  if (layout == nullptr) return;
  const auto offset = layout->values.find(static_cast<int32_t>(id));
  if (offset != layout->values.end())
    KeepAt(frames_.at(layout), offset->second, values_.ViewOf(id));
}

void FrameWriter::KeepArgs(const Region& region) {
  for (ValueId id : region.args) {
    if (id != ValueId::kNone) Keep(id, region);
  }
}

Register FrameWriter::RecallOne(Register frame, int64_t offset, Register element, Carrier carrier,
                                bool shared) {
  Index index;
  if (element != kNoRegister) index.terms.emplace_back(element, 1);
  return out_.Computed(carrier, {.code = Code::kRecall,
                                 .index = std::move(index),
                                 .number = offset,
                                 .frame = frame,
                                 .shared = shared});
}

View FrameWriter::Recall(ValueId primal) {
  const Region* const home = tape_->HomeOf(primal);
  const FrameLayout* const layout = tape_->Of(home == nullptr ? *primal_ : *home);
  const Register frame = frames_.at(layout);
  const int64_t offset = layout->values.at(static_cast<int32_t>(primal));
  const Value& value = program_[primal];
  const Carrier carrier = CarrierOf(value);
  if (ElementCount(value.type.shape) == 1) {
    const Register one = RecallOne(frame, offset, kNoRegister, carrier, false);
    return View::Splat(carrier, value.type.shape, one);
  }
  const View to = out_.Local(carrier, value.type.shape, value.name);
  out_.EachElement(value.type.shape, {to}, [&](const Read&, const Places& place) {
    const Register result = out_.Computed(
        carrier, {.code = Code::kRecall, .index = place(0), .number = offset, .frame = frame});
    out_.Store(to, place(0), result);
  });
  return to;
}

FrameWriter::Chain FrameWriter::Open(const Op& loop) {
  Chain chain;
  if (tape_ == nullptr) return chain;
  const FrameLayout* const around = tape_->Of(values_.region());
  if (around == nullptr) return chain;
  const auto place = around->loops.find(&loop);
  if (place == around->loops.end()) return chain;
  chain.place = &place->second;
  chain.frame = around;
  if (!keeps_) return chain;
  const auto shared = [&](const char* name) {
    const View view = out_.SharedLocal(name);
    out_.StoreOne(view, out_.Constant(Carrier::kI64, 0));
    return view;
  };
  chain.last = shared("last_frame");
  chain.turns = shared("turns");
  return chain;
}

void FrameWriter::Next(const Chain& chain, const Op& loop) {
  if (chain.place == nullptr) return;
  Push(loop.regions[0]);
  if (!keeps_) return;
  out_.StoreOne(chain.turns, out_.Call("add_i64", Carrier::kI64,
                                       {out_.One(chain.turns), out_.Constant(Carrier::kI64, 1)}));
  const FrameLayout* const layout = tape_->Of(loop.regions[0]);
  if (layout == nullptr) return;
  const Register place = frames_.at(layout);
  const Register before = out_.One(chain.last);
  out_.Emit({.code = Code::kKeep, .operands = {before}, .frame = place, .shared = true});
  out_.StoreOne(chain.last, place);
}

void FrameWriter::Close(const Chain& chain, Register element, Register iterations, Register tests) {
  if (chain.place == nullptr || !keeps_) return;
  const Register frame = frames_.at(chain.frame);
  const auto keep = [&](int64_t offset, Register value, bool shared) {
    Index index;
    if (element != kNoRegister) index.terms.emplace_back(element, 1);
    out_.Emit({.code = Code::kKeep,
               .operands = {value},
               .index = std::move(index),
               .number = offset,
               .frame = frame,
               .shared = shared});
  };
  keep(chain.place->last, out_.One(chain.last), true);
  keep(chain.place->turns, out_.One(chain.turns), true);
  if (iterations == kNoRegister) return;
  keep(chain.place->iterations, iterations, false);
  keep(chain.place->tests, tests, false);
}

}  // namespace simgrad::sim::plan
