// while and for, forward, for a layout of lanes (sim/program/loop.h says what they mean).
#include <algorithm>

#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {
namespace {

// The argument of a carried slot points to what the loop was given, until a body has run or lanes
// were packed; from then on to a buffer of the loop's own.
class CarriedPointers {
 public:
  CarriedPointers(LoopScratch& scratch, size_t n) : own_(scratch.own) { own_.assign(n, 0); }

  void Enter(Machine& m, const std::vector<CarriedPlan>& carried, int64_t element) {
    for (size_t k = 0; k < carried.size(); ++k) {
      const CarriedPlan& c = carried[k];
      m.at[c.argument] = m.at[c.operand] + element * c.count * c.lane_bytes * m.width[0];
      if (!(c.stored && m.tape != nullptr)) m.at[c.yield] = m.HomeOf(c.yield);
      own_[k] = 0;
    }
  }

  // After a body: what it yielded is what comes next.
  void Advance(Machine& m, const std::vector<CarriedPlan>& carried) {
    for (size_t k = 0; k < carried.size(); ++k) {
      const CarriedPlan& c = carried[k];
      if (c.stored && m.tape != nullptr) {
        m.at[c.argument] = m.at[c.yield];
      } else if (own_[k] != 0) {
        std::swap(m.at[c.argument], m.at[c.yield]);
      } else {
        m.at[c.argument] = m.at[c.yield];
        m.at[c.yield] = m.HomeOf(c.spare);
        own_[k] = 1;
      }
    }
  }

  // Where the packed lanes of a carried slot go.
  std::byte* PackTarget(Machine& m, const CarriedPlan& c, size_t k, int64_t lanes) {
    if (c.stored && m.tape != nullptr) return m.tape->Take(c.count * c.lane_bytes * lanes);
    if (own_[k] != 0) return m.at[c.argument];
    own_[k] = 1;
    return m.HomeOf(c.spare);
  }

 private:
  std::vector<uint8_t>& own_;
};

// Packing one lane, in operations on one lane.
constexpr int64_t kPackCost = 200;

class WhileLoop {
 public:
  WhileLoop(Machine& machine, const WhilePlan& plan)
      : m_(machine),
        plan_(plan),
        around_width_(machine.lane_set.width),
        around_element_(machine.element),
        around_iteration_(machine.iteration),
        scratch_(machine.ScratchAt(machine.depth)),
        carried_(scratch_, plan.carried.size()),
        saved_(scratch_.saved),
        counts_(machine.sites != nullptr && plan.site_index >= 0) {
    saved_.clear();
    for (const CapturePlan& capture : plan.captures) saved_.push_back(m_.at[capture.slot]);
  }

  void Run() {
    ++m_.depth;
    const int64_t runs = std::max<int64_t>(plan_.elements, 1);
    LoopRecord* record = nullptr;
    if (m_.tape != nullptr) {
      record = &m_.frame->loops[plan_.record];
      record->runs = m_.tape->TakeArray<RunRecord>(runs);
    }
    m_.recorded_bytes += runs * (192 + 4 * around_width_);
    for (element_ = 0; element_ < runs; ++element_) {
      run_ = record == nullptr ? nullptr : &record->runs[element_];
      Enter();
      while (Iterate()) {
      }
      Leave();
    }
    --m_.depth;
  }

 private:
  void Enter() {
    if (plan_.elements > 0) m_.element = around_element_ * plan_.elements + element_;
    if (counts_) m_.sites->BeginRun(m_);
    carried_.Enter(m_, plan_.carried, element_);
    for (const CapturePlan& capture : plan_.captures) {
      if (capture.mapped_operand < 0) continue;
      const int64_t row = capture.count * capture.lane_bytes * m_.width[capture.uniform ? 1 : 0];
      m_.at[capture.slot] = m_.at[capture.mapped_operand] + element_ * row;
    }
    from_ = nullptr;
    side_ = 0;
    iteration_ = 0;
    idle_ = 0;
    left_ = m_.lane_set.all_running ? around_width_ : m_.lane_set.running.Count();
  }

  void Leave() {
    if (counts_) m_.sites->EndRun(m_, plan_);
    for (size_t k = 0; k < plan_.captures.size(); ++k) m_.at[plan_.captures[k].slot] = saved_[k];
    if (narrowed_) m_.SetLanes(scratch_.around);
    narrowed_ = false;
    m_.element = around_element_;
    m_.iteration = around_iteration_;
  }

  // One test, and a body where lanes are left. False: all have stopped.
  bool Iterate() {
    m_.iteration = around_iteration_ * (plan_.max_iter + 1) + iteration_;
    if (plan_.cap_first && iteration_ == plan_.max_iter) {
      Stop(m_.lane_set.running);
      return false;
    }
    Frame* const frame = m_.Run(plan_.test);
    if (run_ != nullptr) m_.tape->Append(run_->tests, frame, m_.lane_set.width, from_);
    const Share share = Decide();
    if (share == Share::kAll) {
      Stop(m_.lane_set.running);
      return false;
    }
    if (share == Share::kSome) {
      KeepAround();
      Stop(scratch_.stopped);
      Continue();
    }
    if (!m_.lane_set.all_running && m_.lane_set.width > kLaneGroup) PackWhereItPays();
    Frame* const body = m_.Run(plan_.body);
    if (run_ != nullptr) m_.tape->Append(run_->bodies, body, m_.lane_set.width, from_);
    carried_.Advance(m_, plan_.carried);
    ++iteration_;
    return true;
  }

  // The running lanes for which a decision holds.
  Share ShareOfRunning(const WhilePlan::Decision& decision, LaneBits& bits) const {
    const uint64_t* const running = m_.lane_set.running.word;
    const int64_t width = m_.lane_set.width;
    const std::byte* const a = m_.at[decision.mask >= 0 ? decision.mask : decision.a];
    if (decision.mask >= 0) {
      const auto* const mask = reinterpret_cast<const int32_t*>(a);
      return static_cast<Share>(m_.kernels().mask_share(mask, running, bits.word, width));
    }
    const int wide = m_.slot(decision.a).carrier == Carrier::kF64 ? 1 : 0;
    const auto compare = m_.kernels().compare_share[static_cast<int>(decision.comparison)][wide];
    return static_cast<Share>(compare(a, m_.at[decision.b], running, bits.word, width));
  }

  // The same for the stop of a loop whose tests are watched.
  Share WatchedShareOfRunning(LaneBits& bits, TestWatch& watch) const {
    const WhilePlan::Decision& stop = plan_.stop;
    m_.sites->Watch(m_, plan_, iteration_, watch);
    const auto compare = m_.kernels().compare_watched[static_cast<int>(stop.comparison)];
    return static_cast<Share>(compare(reinterpret_cast<const float*>(m_.at[stop.a]),
                                      reinterpret_cast<const float*>(m_.at[stop.b]),
                                      m_.lane_set.running.word, bits.word, m_.lane_set.width,
                                      watch));
  }

  // Which running lanes stop at this test.
  Share Decide() {
    LaneBits& stopped = scratch_.stopped;
    TestWatch watch;
    Share share = counts_ && plan_.watched ? WatchedShareOfRunning(stopped, watch)
                                           : ShareOfRunning(plan_.stop, stopped);
    const LaneBits& running = m_.lane_set.running;
    LaneBits refused;
    const LaneBits* held = &stopped;
    LaneBits tested;
    if (plan_.has_entry && iteration_ == 0) {
      LaneBits entered;
      ShareOfRunning(plan_.entry, entered);
      refused = running - entered;
      tested = stopped - refused;
      held = &tested;
      stopped = stopped | refused;
      share = ShareOf(stopped, running, m_.lane_set.width);
    }
    if (counts_) {
      // What a loop that looks at its cap first is going to do after the last body is known here.
      const bool last = iteration_ + (plan_.cap_first ? 1 : 0) == plan_.max_iter;
      m_.sites->Test(m_, plan_, {iteration_, around_iteration_, *held, refused, last, watch.quiet});
    }
    return !plan_.cap_first && iteration_ == plan_.max_iter ? Share::kAll : share;
  }

  // Hands the results of `lanes` out.
  void Stop(const LaneBits& lanes) {
    // All at once: the other positions are not read.
    const bool whole = !narrowed_;
    if (whole) {
      mask_ = nullptr;
    } else if (from_ == nullptr) {
      m_.kernels().expand_bits(lanes.word, scratch_.mask, around_width_);
      mask_ = scratch_.mask;
    }
    for (const CarriedPlan& c : plan_.carried) {
      HandOut(c.argument, c.result, c.count, c.lane_bytes, lanes);
    }
    for (const WhilePlan::ExportPlan& e : plan_.exports) {
      HandOut(e.value, e.result, e.count, e.lane_bytes, lanes);
    }
    if (plan_.iterations < 0 && run_ == nullptr) return;
    int32_t* counts = nullptr;
    if (plan_.iterations >= 0) {
      counts = reinterpret_cast<int32_t*>(m_.at[plan_.iterations]) + element_ * around_width_;
    }
    if (counts != nullptr) SetIterations(counts, whole, lanes);
    if (run_ == nullptr) return;
    run_->last = static_cast<int32_t>(iteration_);
    run_->alike = whole;
    if (whole) return;
    if (run_->iterations == nullptr) {
      run_->iterations = reinterpret_cast<int32_t*>(m_.tape->Take(4 * around_width_));
      std::fill_n(run_->iterations, around_width_, -1);
    }
    SetIterations(run_->iterations, false, lanes);
  }

  void SetIterations(int32_t* list, bool whole, const LaneBits& lanes) const {
    const int32_t iterations = static_cast<int32_t>(iteration_);
    if (whole) {
      std::fill_n(list, around_width_, iterations);
    } else if (from_ == nullptr) {
      for (int64_t j = 0; j < around_width_; ++j) list[j] = mask_[j] != 0 ? iterations : list[j];
    } else {
      ForEachLane(lanes, [&](int64_t j) { list[from_[j]] = iterations; });
    }
  }

  void HandOut(int32_t value, int32_t result, int64_t count, int64_t bytes, const LaneBits& lanes) {
    if (result < 0) return;
    const int64_t outer = around_width_;
    const int64_t inner = m_.lane_set.width;
    std::byte* const to = m_.at[result] + element_ * count * bytes * outer;
    const std::byte* const from = m_.at[value];
    if (from_ == nullptr) {
      if (mask_ == nullptr) {
        CopyInPieces(m_.meter, to, from, count * bytes * outer);
        return;
      }
      for (int64_t row = 0; row < count; ++row) {
        m_.CountRow(row);
        const int64_t at = row * bytes * outer;
        m_.kernels().blend[SizeIndex(bytes)](to + at, from + at, mask_, outer);
      }
      return;
    }
    for (int64_t row = 0; row < count; ++row) {
      m_.CountRow(row);
      ScatterRow(to + row * outer * bytes, from + row * inner * bytes, bytes, from_, lanes);
    }
  }

  void KeepAround() {
    if (!narrowed_) scratch_.around = m_.lane_set;
    narrowed_ = true;
  }

  // Goes on with the lanes that are left.
  void Continue() {
    m_.Leave(scratch_.stopped);
    left_ = m_.lane_set.running.Count();
  }

  // Packs the lanes when what the others have cost exceeds what packing costs: so the two together
  // are at most twice the least possible.
  void PackWhereItPays() {
    const int64_t width = m_.lane_set.width;
    const int64_t packed = (left_ + kLaneGroup - 1) / kLaneGroup * kLaneGroup;
    idle_ += plan_.operations * (width - packed);
    if (2 * packed > width || idle_ < kPackCost * packed) return;
    KeepAround();
    Pack(m_.lane_set.running, left_, packed);
    idle_ = 0;
  }

  void Pack(const LaneBits& left, int64_t n, int64_t packed) {
    int32_t* const index = scratch_.index.data();
    int64_t at = 0;
    ForEachLane(left, [&](int64_t j) { index[at++] = static_cast<int32_t>(j); });
    // Padding repeats the last lane, so it computes nothing that is out of the ordinary.
    std::fill(index + n, index + packed, index[n - 1]);
    for (size_t k = 0; k < plan_.carried.size(); ++k) {
      const CarriedPlan& c = plan_.carried[k];
      PackRows(c.argument, carried_.PackTarget(m_, c, k, packed), c.count, c.lane_bytes, packed);
    }
    for (const WhilePlan::ExportPlan& e : plan_.exports) {
      const bool recorded = m_.tape != nullptr && m_.HomeOf(e.value) == nullptr;
      std::byte* const to =
          recorded ? m_.tape->Take(e.count * e.lane_bytes * packed) : m_.at[e.value];
      PackRows(e.value, to, e.count, e.lane_bytes, packed);
    }
    for (const CapturePlan& c : plan_.captures) {
      if (c.uniform) continue;
      // A loop inside may start from it, and then the adjoint reads it.
      std::byte* const to =
          m_.tape != nullptr ? m_.tape->Take(c.count * c.lane_bytes * packed) : m_.HomeOf(c.narrow);
      PackRows(c.slot, to, c.count, c.lane_bytes, packed);
    }
    for (const CarriedPlan& c : plan_.carried)
      CountPacked(c.stored, c.count * c.lane_bytes, packed);
    for (const WhilePlan::ExportPlan& e : plan_.exports) {
      CountPacked(true, e.count * e.lane_bytes, packed);
    }
    for (const CapturePlan& c : plan_.captures) CountPacked(true, c.count * c.lane_bytes, packed);
    SetPackedLanes(n, packed);
  }

  void CountPacked(bool stored, int64_t bytes, int64_t packed) {
    m_.recorded_bytes += 64 + (stored ? bytes * packed : 0);
  }

  void PackRows(int32_t slot, std::byte* to, int64_t count, int64_t bytes, int64_t packed) {
    const std::byte* const from = m_.at[slot];
    for (int64_t row = 0; row < count; ++row) {
      m_.CountRow(row);
      m_.kernels().gather[SizeIndex(bytes)](to + row * packed * bytes,
                                            from + row * m_.lane_set.width * bytes,
                                            scratch_.index.data(), packed);
    }
    m_.at[slot] = to;
  }

  void SetPackedLanes(int64_t n, int64_t packed) {
    const int32_t* const index = scratch_.index.data();
    LaneSet set;
    set.width = packed;
    set.running = LaneBits::First(packed);
    int32_t* const lanes = scratch_.lanes[side_].data();
    int32_t* from = scratch_.from[side_].data();
    if (run_ != nullptr) from = m_.tape->TakeArray<int32_t>(packed);
    m_.recorded_bytes += 64 + 4 * packed;
    for (int64_t j = 0; j < packed; ++j) {
      lanes[j] = static_cast<int32_t>(m_.lane_set.BlockLane(index[j]));
      if (j < n && m_.lane_set.counted.Has(index[j])) set.counted.Add(j);
      from[j] = from_ == nullptr ? index[j] : from_[index[j]];
    }
    set.block_lane = lanes;
    from_ = from;
    side_ = 1 - side_;
    m_.SetLanes(set);
  }

  Machine& m_;
  const WhilePlan& plan_;
  const int64_t around_width_;
  const int64_t around_element_;
  const int64_t around_iteration_;
  LoopScratch& scratch_;
  CarriedPointers carried_;
  std::vector<std::byte*>& saved_;
  const bool counts_;  // the decisions
  RunRecord* run_ = nullptr;
  const int32_t* from_ = nullptr;  // positions in the layout around; null: the same
  const int32_t* mask_ = nullptr;
  int64_t element_ = 0;
  int64_t iteration_ = 0;
  bool narrowed_ = false;  // fewer lanes run than around the loop
  int64_t left_ = 0;       // lanes that run
  int64_t idle_ = 0;       // operations on lanes that had left
  int side_ = 0;
};

}  // namespace

void RunWhile(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  WhileLoop(machine, *static_cast<const WhilePlan*>(instruction.plan)).Run();
}

void RunFor(const Instruction& instruction, Lanes& lanes) {
  Machine& m = static_cast<Machine&>(lanes);
  const ForPlan& plan = *static_cast<const ForPlan*>(instruction.plan);
  const int64_t around = m.iteration;
  RunRecord* run = nullptr;
  if (m.tape != nullptr) {
    run = m.tape->TakeArray<RunRecord>(1);
    m.frame->loops[plan.record].runs = run;
  }
  CarriedPointers carried(m.ScratchAt(m.depth), plan.carried.size());
  carried.Enter(m, plan.carried, 0);
  ++m.depth;
  for (int64_t i = 0; i < plan.trips; ++i) {
    m.iteration = around * std::max<int64_t>(plan.trips, 1) + i;
    std::fill_n(reinterpret_cast<int32_t*>(m.at[plan.index]), kLaneGroup, static_cast<int32_t>(i));
    Frame* const frame = m.Run(plan.body);
    if (run != nullptr) m.tape->Append(run->bodies, frame, m.lane_set.width, nullptr);
    carried.Advance(m, plan.carried);
  }
  --m.depth;
  m.iteration = around;
  for (const CarriedPlan& c : plan.carried) {
    if (c.result < 0) continue;
    CopyInPieces(m.meter, m.at[c.result], m.at[c.argument], c.count * c.lane_bytes * m.width[0]);
  }
}

}  // namespace simgrad::sim::cpu
