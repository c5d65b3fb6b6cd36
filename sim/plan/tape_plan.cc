#include "sim/plan/tape_plan.h"

namespace simgrad::sim::plan {
namespace {

// Room for `count` numbers behind what a frame holds.
int64_t Take(FrameLayout& frame, int64_t bytes_each, int64_t count) {
  frame.bytes = (frame.bytes + bytes_each - 1) / bytes_each * bytes_each;
  const int64_t at = frame.bytes;
  frame.bytes += bytes_each * count;
  return at;
}

bool IsLoop(const Op& op) { return op.code == OpCode::kWhile || op.code == OpCode::kFor; }
bool IsVjp(const Op& op) { return op.code == OpCode::kWhileVjp || op.code == OpCode::kForVjp; }

}  // namespace

TapePlan::TapePlan(const NumericalProgram& numerical) : program_(numerical.program) {
  if (!numerical.adjoint) return;
  const Region* terminal = TerminalOf(numerical);
  if (terminal == nullptr) terminal = &no_terminal_;
  for (const Region* region : {&program_.step, &program_.initial, terminal}) {
    Index(*region, region);
  }
  Scan(numerical.adjoint->terminal, terminal);
  Scan(numerical.adjoint->Last(), &program_.step);
  Scan(numerical.adjoint->inner, &program_.step);
  Scan(numerical.adjoint->initial, &program_.initial);
  RoundSizes();
}

void TapePlan::Index(const Region& region, const Region* owner) {
  owners_[&region] = owner;
  for (ValueId id : region.args) home_[static_cast<int32_t>(id)] = &region;
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) home_[static_cast<int32_t>(id)] = &region;
    if (op.code == OpCode::kLiteral) literals_[static_cast<int32_t>(op.results[0])] = &op;
    if (!IsLoop(op)) continue;
    if (!op.results.empty()) loops_[static_cast<int32_t>(op.results[0])] = {&op, &region};
    // The test and the body of a turn share a frame.
    loop_frames_.insert(&op.regions[0]);
    for (const Region& nested : op.regions) Index(nested, &op.regions[0]);
  }
}

FrameLayout& TapePlan::LayoutOf(const Region& region) {
  const Region* const owner = owners_.at(&region);
  const auto [frame, is_new] = frames_.try_emplace(owner);
  if (is_new && loop_frames_.contains(owner)) {
    frame->second.is_linked = true;
    Take(frame->second, 8, 1);
  }
  return frame->second;
}

void TapePlan::AddValue(ValueId id, const Region* top) {
  const Region* const home = HomeOf(id);
  FrameLayout& frame = LayoutOf(home == nullptr ? *top : *home);
  if (frame.values.contains(static_cast<int32_t>(id))) return;
  const Value& value = program_[id];
  frame.values[static_cast<int32_t>(id)] =
      Take(frame, BytesOf(CarrierOf(value)), ElementCount(value.type.shape));
}

void TapePlan::Scan(const Region& adjoint, const Region* top) {
  for (const Op& op : adjoint.ops) {
    if (op.code == OpCode::kTape) AddValue(op.attributes.primal, top);
    if (IsVjp(op)) {
      const Loop& loop = LoopOf(op.attributes.primal);
      FrameLayout& frame = LayoutOf(*loop.around);
      const auto [place, is_new] = frame.loops.try_emplace(loop.op);
      if (is_new) {
        const int64_t n = loop.op->attributes.elements > 0 ? loop.op->attributes.elements : 1;
        place->second = {n, Take(frame, 8, n), Take(frame, 8, n), Take(frame, 4, n),
                         Take(frame, 4, n)};
      }
    }
    for (const Region& nested : op.regions) Scan(nested, top);
  }
}

// Frames lie one behind the other.
void TapePlan::RoundSizes() {
  for (auto& [region, frame] : frames_) frame.bytes = (frame.bytes + 7) / 8 * 8;
}

const FrameLayout* TapePlan::Of(const Region& region) const {
  const auto owner = owners_.find(&region);
  if (owner == owners_.end()) return nullptr;
  const auto frame = frames_.find(owner->second);
  return frame == frames_.end() ? nullptr : &frame->second;
}

const Region* TapePlan::HomeOf(ValueId id) const {
  const auto home = home_.find(static_cast<int32_t>(id));
  return home == home_.end() ? nullptr : home->second;
}

const TapePlan::Loop& TapePlan::LoopOf(ValueId primal) const {
  return loops_.at(static_cast<int32_t>(primal));
}

const Op* TapePlan::LiteralOf(ValueId id) const {
  const auto literal = literals_.find(static_cast<int32_t>(id));
  return literal == literals_.end() ? nullptr : literal->second;
}

}  // namespace simgrad::sim::plan
