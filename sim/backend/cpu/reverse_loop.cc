// The reverse of while and for over their records (sim/program/loop.h, "Reverse").
//
// A region of the reverse runs in the layout of lanes of the iteration it reverses, with a mask of
// the lanes that executed it. Going down from the last iteration the layouts widen; between them
// the cotangents pass through their `home`, which has the layout around the loop.
#include <algorithm>

#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/travellers.h"

namespace simgrad::sim::cpu {
namespace {

class WhileReverse {
 public:
  WhileReverse(Machine& machine, const WhileVjpPlan& plan)
      : m_(machine),
        plan_(plan),
        around_(machine.lane_set),
        scratch_(machine.EnterReverse()),
        travellers_(machine, plan.slots, scratch_) {
    scratch_.parents = machine.position_in;
    scratch_.saved.clear();
    for (const CapturePlan& read : plan_.reads) scratch_.saved.push_back(m_.at[read.slot]);
  }

  void Run() {
    const LoopRecord& record =
        m_.frames[static_cast<size_t>(plan_.region)].frame->loops[plan_.record];
    depth_ = static_cast<int>(parents_.size());
    m_.position_in.push_back(nullptr);
    m_.layout_width.push_back(around_.width);
    const int64_t runs = std::max<int64_t>(plan_.primal->elements, 1);
    for (element_ = 0; element_ < runs; ++element_) {
      run_ = &record.runs[element_];
      if (!run_->alike) SetMatter(around_.width);
      travellers_.Enter(element_);
      for (const VjpRegion* region : Regions()) travellers_.ResetYields(*region);
      Reverse();
      Move({around_.width, nullptr});
      travellers_.Leave(element_);
    }
    for (size_t k = 0; k < plan_.reads.size(); ++k) m_.at[plan_.reads[k].slot] = saved_[k];
    m_.position_in = parents_;
    m_.layout_width.pop_back();
    m_.SetLanes(around_);
    m_.LeaveReverse();
  }

 private:
  std::array<const VjpRegion*, 4> Regions() const {
    return {&plan_.body, &plan_.test_inner, &plan_.test_last, &plan_.test_both};
  }

  void Reverse() {
    if (run_->alike) return ReverseAlike();
    const int32_t last = run_->last;
    for (int32_t i = last; i >= 0; --i) {
      LaneBits went_on;  // the lanes of the current layout that ran this body
      if (i < last) {
        const IterationRecord& body = run_->bodies.entries[i];
        Move(body.layout);
        went_on = GreaterThan(i);
        RunRegion(plan_.body, plan_.primal->body.id, body.frame, went_on);
      }
      if (i >= run_->tests.size) continue;
      const IterationRecord& test = run_->tests.entries[i];
      if (test.layout.from != from_) {
        Move(test.layout);
        went_on = GreaterThan(i);
      }
      const int32_t id = plan_.primal->test.id;
      if (!plan_.test_last.idle) RunRegion(plan_.test_last, id, test.frame, EqualTo(i));
      // A loop that looks at its cap first ends with a body where it reaches it: then its last test
      // is one that went on.
      const bool ended = plan_.primal->cap_first && i + 1 == plan_.primal->max_iter;
      RunRegion(ended ? plan_.test_both : plan_.test_inner, id, test.frame, went_on);
    }
  }

  // Where all lanes iterated alike there is one layout, and nothing to compare.
  void ReverseAlike() {
    const int32_t last = run_->last;
    if (!(m_.lane_set.running == around_.running)) m_.SetLanes(around_);
    for (int32_t i = last; i >= 0; --i) {
      if (i > 0) __builtin_prefetch(run_->bodies.entries[i - 1].frame);
      if (i > 0) __builtin_prefetch(run_->tests.entries[i - 1].frame);
      if (i < last) RunAll(plan_.body, plan_.primal->body.id, run_->bodies.entries[i].frame);
      if (i >= run_->tests.size) continue;
      const bool capped = plan_.primal->cap_first && i + 1 == plan_.primal->max_iter;
      const VjpRegion& test =
          i == last ? plan_.test_last : (capped ? plan_.test_both : plan_.test_inner);
      RunAll(test, plan_.primal->test.id, run_->tests.entries[i].frame);
    }
  }

  // The positions of the current layout whose lane ran more than i iterations; exactly i.
  LaneBits GreaterThan(int32_t i) const {
    LaneBits bits;
    m_.kernels().greater_bits(Iterations(), i, bits.word, m_.width[0]);
    return bits & matter_;
  }
  LaneBits EqualTo(int32_t i) const {
    LaneBits bits;
    m_.kernels().equal_bits[0](Iterations(), &i, bits.word, m_.width[0]);
    return bits & matter_;
  }
  const int32_t* Iterations() const {
    return from_ == nullptr ? run_->iterations : iterations_.data();
  }

  void Move(const LaneLayout& to) {
    if (to.from == from_) return;
    travellers_.Move(from_, m_.width[0], to, around_.width);
    from_ = to.from;
    moved_ = true;
    // Where the current lanes are in the layouts around.
    composed_.resize(parents_.size());
    for (size_t d = 0; d < parents_.size(); ++d) {
      if (from_ == nullptr || parents_[d] == nullptr) {
        m_.position_in[d] = from_ == nullptr ? parents_[d] : from_;
        continue;
      }
      composed_[d].resize(static_cast<size_t>(to.width));
      for (int64_t j = 0; j < to.width; ++j) {
        composed_[d][static_cast<size_t>(j)] = parents_[d][from_[j]];
      }
      m_.position_in[d] = composed_[d].data();
    }
    SetMatter(to.width);
    m_.width[0] = to.width;
    m_.layout_width[static_cast<size_t>(depth_)] = to.width;
    for (size_t k = 0; k < plan_.reads.size(); ++k) {
      const CapturePlan& read = plan_.reads[k];
      m_.at[read.slot] = Narrowed(saved_[k], read.narrow, read.count, read.lane_bytes);
    }
  }

  // Which positions stand for a lane that runs here, which of them are counted, and how often they
  // iterated.
  void SetMatter(int64_t width) {
    if (from_ == nullptr) {
      matter_ = around_.running;
      counted_ = around_.counted;
      return;
    }
    iterations_.resize(static_cast<size_t>(width));
    m_.kernels().gather[0](iterations_.data(), run_->iterations, from_, width);
    // Padding repeats the last lane, which has been counted.
    int64_t lanes = width;
    while (lanes > 1 && from_[lanes - 1] == from_[lanes - 2]) --lanes;
    matter_ = Packed(around_.running, width);
    counted_ = Packed(around_.counted, lanes);
  }

  // The first n positions of the current layout whose lanes around the loop are among these.
  LaneBits Packed(const LaneBits& around, int64_t n) const {
    if (around == LaneBits::First(around_.width)) return LaneBits::First(n);
    LaneBits bits;
    for (int64_t j = 0; j < n; ++j) {
      if (around.Has(from_[j])) bits.Add(j);
    }
    return bits;
  }

  // Rows at the layout around the loop, as the current layout sees them.
  std::byte* Narrowed(std::byte* rows, int32_t narrow, int64_t count, int64_t bytes) {
    if (from_ == nullptr) return rows;
    std::byte* const to = m_.HomeOf(narrow);
    for (int64_t row = 0; row < count; ++row) {
      m_.kernels().gather[SizeIndex(bytes)](to + row * m_.width[0] * bytes,
                                            rows + row * around_.width * bytes, from_, m_.width[0]);
    }
    return to;
  }

  void RunRegion(const VjpRegion& region, int32_t primal, const Frame* frame,
                 const LaneBits& lanes) {
    if (region.idle || !lanes.Any()) return;
    if (moved_ || !(lanes == m_.lane_set.running)) {
      LaneSet set;
      set.width = m_.width[0];
      set.running = lanes;
      set.all_running = lanes == LaneBits::First(set.width);
      set.block_lane = m_.position_in[0];
      set.counted = counted_ & lanes;
      m_.SetLanes(set);
      moved_ = false;
    }
    RunHere(region, primal, frame, lanes == matter_);
  }

  // A region in the lanes around the loop.
  void RunAll(const VjpRegion& region, int32_t primal, const Frame* frame) {
    if (!region.idle) RunHere(region, primal, frame, true);
  }

  void RunHere(const VjpRegion& region, int32_t primal, const Frame* frame, bool all) {
    m_.frames[static_cast<size_t>(primal)] = {frame, depth_};
    travellers_.BindArguments(region);
    for (size_t k = 0; k < region.outside.size(); ++k) {
      const SlotPair& arg = region.outside[k];
      const SlotPair& operand = plan_.outside[k];
      const Slot& like = m_.slot(plan_.outside_narrow[k].cotangent);
      const int64_t row = like.count * around_.width;
      if (arg.cotangent >= 0) {
        m_.at[arg.cotangent] =
            Narrowed(m_.at[operand.cotangent] + element_ * row * like.lane_bytes(),
                     plan_.outside_narrow[k].cotangent, like.count, like.lane_bytes());
      }
      if (arg.mask >= 0) {
        m_.at[arg.mask] = Narrowed(m_.at[operand.mask] + element_ * row * 4,
                                   plan_.outside_narrow[k].mask, like.count, 4);
      }
    }
    m_.RunCode(region.region);
    travellers_.TakeYields(region, all);
  }

  Machine& m_;
  const WhileVjpPlan& plan_;
  const LaneSet around_;
  ReverseScratch& scratch_;
  Travellers travellers_;
  const std::vector<const int32_t*>& parents_ = scratch_.parents;
  const std::vector<std::byte*>& saved_ = scratch_.saved;
  std::vector<std::vector<int32_t>>& composed_ = scratch_.composed;
  const RunRecord* run_ = nullptr;
  const int32_t* from_ = nullptr;
  LaneBits matter_, counted_;
  bool moved_ = true;  // the lanes of the machine are not those of the current layout
  std::vector<int32_t>& iterations_ = scratch_.iterations;  // of a packed layout
  int64_t element_ = 0;
  int depth_ = 0;
};

}  // namespace

void RunWhileVjp(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  WhileReverse(machine, *static_cast<const WhileVjpPlan*>(instruction.plan)).Run();
}

void RunForVjp(const Instruction& instruction, Lanes& lanes) {
  Machine& m = static_cast<Machine&>(lanes);
  const ForVjpPlan& plan = *static_cast<const ForVjpPlan*>(instruction.plan);
  const Machine::FrameRef around = m.frames[static_cast<size_t>(plan.region)];
  const RunRecord& run = around.frame->loops[plan.record].runs[0];
  Travellers travellers(m, plan.slots, m.EnterReverse());
  travellers.Enter(0);
  travellers.ResetYields(plan.body);
  for (int64_t i = run.bodies.size - 1; i >= 0; --i) {
    std::fill_n(reinterpret_cast<int32_t*>(m.at[plan.index]), kLaneGroup, static_cast<int32_t>(i));
    m.frames[static_cast<size_t>(plan.primal->body.id)] = {run.bodies.entries[i].frame,
                                                           around.depth};
    travellers.BindArguments(plan.body);
    m.RunCode(plan.body.region);
    travellers.TakeYields(plan.body, true);
  }
  travellers.Leave(0);
  m.LeaveReverse();
}

void RunTape(const Instruction& instruction, Lanes& lanes) {
  Machine& m = static_cast<Machine&>(lanes);
  const TapePlan& plan = *static_cast<const TapePlan*>(instruction.plan);
  const Machine::FrameRef ref = m.frames[static_cast<size_t>(plan.region)];
  std::byte* const recorded = ref.frame->values[plan.place];
  const Slot& slot = m.slot(plan.result);
  const int32_t* const position = m.position_in[static_cast<size_t>(ref.depth)];
  if (slot.uniform || position == nullptr) {
    m.at[plan.result] = recorded;
    return;
  }
  std::byte* const to = m.HomeOf(plan.result);
  const int64_t bytes = slot.lane_bytes();
  const int64_t recorded_width = m.layout_width[static_cast<size_t>(ref.depth)];
  for (int64_t row = 0; row < slot.count; ++row) {
    m.CountRow(row);
    m.kernels().gather[SizeIndex(bytes)](to + row * m.width[0] * bytes,
                                         recorded + row * recorded_width * bytes, position,
                                         m.width[0]);
  }
  m.at[plan.result] = to;
}

}  // namespace simgrad::sim::cpu
