// Runs a region of the adjoint over the taped frames of the primal: tape reads, accumulation
// into gradients, and the loops in reverse as sim/program/loop.h writes them.
#pragma once

#include <optional>
#include <vector>

#include "sim/backend/reference/region_runner.h"
#include "sim/program/loop.h"

namespace simgrad::sim::reference {

// A cotangent and where it is present.
struct Slot {
  std::optional<Array> cotangent;  // unset: never present
  std::optional<Array> mask;       // unset: present everywhere
};

// The gradient of one input of one instance, as it grows.
struct GradientSum {
  std::vector<double> sum;  // [entries][shape]; empty: not wanted
  // A per-step input has an entry for each step; weights have one for each step of the range that is
  // reversed, or one for the terminal cost or `initial`.
  bool per_step = false;
  int64_t first = 0;  // the step of the first entry
  bool connected = false;
};

class AdjointRunner : public RegionRunner {
 public:
  // Gradients by input; `step` says where a per-step input's contribution belongs.
  AdjointRunner(const NumericalProgram& program, const Layouts& layouts, RunSinks sinks,
                std::vector<GradientSum>& gradients, int64_t step)
      : RegionRunner(program, layouts, sinks), gradients_(gradients), step_(step) {}

  // Runs `region` in a fresh frame over `primal`; the arguments are `leading`, then slots.
  std::vector<Slot> RunRegion(const Region& region, const Frame* around, const Frame& primal,
                              const std::vector<Array>& leading, std::vector<Slot> slots);

 protected:
  void Execute(const Op& op, Frame& frame) override;

 private:
  // Shows the watch what `op` reads of the primal.
  void SeeReads(const Op& op, const Frame& frame) const;
  // `read`: an operand of `reader`, or what that was made of. `where`: as of SeeResult.
  void SeeRead(ValueId read, const Frame& frame, const Array* where) const;
  // The elements of operand k that an operation reads under its mask.
  static Array MaskOfRead(const Op& reader, size_t k, size_t elements, const Frame& frame,
                          const Array* where);
  void ExecuteTape(const Op& op, Frame& frame);
  void ExecuteAccumulate(const Op& op, Frame& frame);
  void ExecuteWhileVjp(const Op& op, Frame& frame);
  void ExecuteForVjp(const Op& op, Frame& frame);
  // The reverse of one run; returns carried, captures.
  std::vector<Slot> ReverseWhile(const Op& op, const Frame& around, const LoopRun& run,
                                 std::vector<Slot> carried, const std::vector<Slot>& exports,
                                 std::vector<Slot> captures);

  std::vector<GradientSum>& gradients_;
  int64_t step_;
};

// The slots that a list of ids names in a frame; and a slot's binding to an argument.
std::vector<Slot> ReadSlots(const SlotList& list, const Frame& frame);
void BindSlot(const Program& program, ValueId cotangent, ValueId mask, Slot slot, Frame& frame);

}  // namespace simgrad::sim::reference
