// The places at which a reversed step finds the values of its step that it reads.
//
// A frame holds these values for one run of a region. The step has one frame, and so have `initial`
// and the terminal cost; a while has one for each turn (test and body together), a for one for each
// iteration. Sizes are fixed, so a place is an offset into a frame.
// Units: bytes per lane; every number lies at a multiple of its size.
// Cost: linear in the program. Threads: pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>

#include "sim/plan/plan.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

// The place of a loop's runs in the frame around it; arrays of `runs` for a loop per element.
struct LoopPlace {
  int64_t runs = 1;
  int64_t last = 0;        // place of the last frame, shared by all lanes
  int64_t turns = 0;       // how many frames there are, shared by all lanes
  int64_t iterations = 0;  // i32, of the lane
  int64_t tests = 0;       // i32: number of the last test of the lane
};

struct FrameLayout {
  int64_t bytes = 0;
  bool is_linked = false;  // of a loop: begins with the place of the frame before it
  std::unordered_map<int32_t, int64_t> values;  // offset by value
  std::map<const Op*, LoopPlace> loops;
};

class TapePlan {
 public:
  explicit TapePlan(const NumericalProgram& numerical);

  // The layout of a region's frames; null: nothing of it is kept.
  const FrameLayout* Of(const Region& region) const;
  // The region in which a value stands; null: it is an input.
  const Region* HomeOf(ValueId id) const;
  // The loop whose first result is `primal`, and the region around it.
  struct Loop {
    const Op* op = nullptr;
    const Region* around = nullptr;
  };
  const Loop& LoopOf(ValueId primal) const;
  const Op* LiteralOf(ValueId id) const;
  // Stands for the terminal cost where there is none.
  const Region& no_terminal() const { return no_terminal_; }

 private:
  void Index(const Region& region, const Region* owner);
  void Scan(const Region& adjoint, const Region* top);
  FrameLayout& LayoutOf(const Region& region);
  void AddValue(ValueId id, const Region* top);
  void RoundSizes();

  const Program& program_;
  std::unordered_map<int32_t, const Region*> home_;
  std::unordered_map<int32_t, Loop> loops_;
  std::unordered_map<int32_t, const Op*> literals_;
  std::unordered_map<const Region*, const Region*> owners_;  // region whose frame it shares
  std::set<const Region*> loop_frames_;                      // owners that are turns of loops
  std::map<const Region*, FrameLayout> frames_;              // by owner
  Region no_terminal_;
};

}  // namespace simgrad::sim::plan
