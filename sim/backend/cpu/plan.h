// A program compiled for the block interpreter: slots, instructions, loops.
//
// One plan serves every block of a run. A *slot* is the storage of one value, or of several equal
// ones: a reshape shares the slot of its operand. Lanes::at points to the slots. So a loop
// exchanges two buffers, and an adjoint reads a recorded one, without moving numbers.
// An *invariant* slot does not change from step to step. It is computed once per block, or once per
// run if it is uniform.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "precision/policy.h"
#include "sim/backend/cpu/exact_reduction.h"
#include "sim/backend/cpu/kernel_table.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::cpu {

constexpr int64_t LaneBytes(Carrier carrier) {
  return carrier == Carrier::kF64 || carrier == Carrier::kI64 ? 8 : 4;
}
// Index of a kernel that comes in a 4-byte and an 8-byte version.
constexpr int SizeIndex(int64_t lane_bytes) { return lane_bytes == 8 ? 1 : 0; }
constexpr int SizeIndex(Carrier carrier) { return SizeIndex(LaneBytes(carrier)); }
Carrier CarrierOfValue(const Value& value);

struct Slot {
  Carrier carrier = Carrier::kF32;
  Format format = Format::kF32;  // of a real
  int64_t count = 1;             // elements
  bool uniform = false;
  bool invariant = false;
  // Place in the workspace, in bytes per lane; -1: it points elsewhere (state, record, argument).
  int64_t offset = -1;
  int64_t lane_bytes() const { return LaneBytes(carrier); }
  int64_t bytes_per_lane() const { return count * lane_bytes(); }
};

struct WhilePlan;
struct ForPlan;
struct WhileVjpPlan;
struct ForVjpPlan;

// The instructions of a region.
struct RegionPlan {
  std::vector<Instruction> code;
  // In a plan that records: the region is number `id`. Before it runs, `stored` slots get fresh
  // memory; after it has run, the adjoint finds the `taped` slots there.
  int32_t id = -1;
  std::vector<int32_t> stored;
  std::vector<int32_t> taped;
  int64_t stored_bytes_per_lane = 0;
  int32_t loops = 0;  // direct loops inside, which have a record each
  // Element-operations of a lane, without those of loops inside: the larger of the counts of the
  // text and of the code.
  int64_t work = 0;
};

// A site test a op b as diagnostics see it.
struct TestedPair {
  int32_t a = -1, b = -1;  // slots
  bool real = true;
  Format format = Format::kF32;
  // Operands of the additions that made a or b (sim/program/compared_sum.h).
  struct Extra {
    int32_t slot = -1;
    int32_t factor = -1;  // of an fma: the product slot * factor in f64
  };
  std::vector<Extra> extras;
  bool plain_extras = true;  // the vector scan can read them: same carrier, no products
};

// A slot that a loop carries from iteration to iteration.
struct CarriedPlan {
  int32_t operand = -1;
  int32_t argument = -1;
  int32_t yield = -1;
  int32_t spare = -1;   // a second buffer, unless the yield is recorded
  int32_t result = -1;  // -1: not read
  int64_t count = 1;    // elements of one run
  int64_t lane_bytes = 4;
  bool stored = false;  // the yield is recorded
};

// A value from outside a loop, as its regions read it after lanes have left.
struct CapturePlan {
  int32_t slot = -1;
  int32_t narrow = -1;  // buffer for the lanes that are left
  int64_t count = 1;
  int64_t lane_bytes = 4;
  int32_t mapped_operand = -1;  // the argument of a mapped loop: a window into this slot
  bool uniform = false;
};

struct WhilePlan {
  std::string site;
  uint64_t site_hash = 0;
  int32_t site_index = -1;  // among the termination sites; -1: not of `step`
  int64_t max_iter = 0;
  int64_t operations = 0;  // of the text, in one iteration
  bool cap_first = false;
  bool has_entry = false;
  int64_t elements = 0;
  RegionPlan test;
  RegionPlan body;
  std::vector<CarriedPlan> carried;
  struct ExportPlan {
    int32_t value = -1;
    int32_t result = -1;
    int64_t count = 1;
    int64_t lane_bytes = 4;
  };
  std::vector<ExportPlan> exports;
  std::vector<CapturePlan> captures;  // varying ones, mapped arguments among them
  int32_t iterations = -1;            // slot of the result; -1: not read
  // The decisions: lhs comparison rhs, and lhs >= entry. As masks, or for a real lhs against a
  // uniform number as bits at once.
  struct Decision {
    int32_t mask = -1;
    int32_t a = -1, b = -1;
    Comparison comparison = Comparison::kLt;
  };
  Decision stop, entry;
  TestedPair tested, entry_tested;
  // Whether the comparison also finds the margins: a test of floats against one number of at least
  // `least_watched`, with no other operands.
  bool watched = false;
  double least_watched = 0.0;
  int32_t record = -1;  // place among the loops of its region
};

struct ForPlan {
  int64_t trips = 0;
  RegionPlan body;
  int32_t index = -1;  // slot, uniform
  std::vector<CarriedPlan> carried;
  int32_t record = -1;
};

struct EventPlan {
  std::string site;
  uint64_t site_hash = 0;
  int32_t site_index = -1;  // among the event sites; -1: not of `step`
  int64_t elements = 1;     // of this event alone
  TestedPair tested;
  int32_t guard = -1;
  int32_t result = -1;
};

// A narrowing cast or tape, whose under- and overflows are counted.
struct RangePlan {
  int32_t source = -1;
  int32_t result = -1;
  Format to = Format::kF32;
  precision::Role role = precision::Role::kDynamics;
  int32_t where = -1;
  int32_t invariant = -1;  // number of a cast whose numbers stay, among these
};

// Reads a recorded value into the adjoint.
struct TapePlan {
  int32_t result = -1;
  int32_t region = -1;  // of the primal
  int32_t place = -1;   // in its `taped`
};

struct AccumulatePlan {
  Format format = Format::kF32;     // of the sums
  Carrier carrier = Carrier::kF32;  // of the value, and of the sums
  int64_t rows = 1;                 // of the value
  bool uniform_factor = false;
  int32_t input = -1;
  int32_t value = -1;
  int32_t by = -1;            // value stands for value * by
  int32_t factor = -1;        // the contribution is value * factor
  bool negated = false;       // it is -value
  int32_t second_input = -1;  // gets value * second_factor; both factors are uniform
  int32_t second_factor = -1;
  int32_t mask = -1;
  int32_t where = -1;
  bool magnitudes_known = false;  // a product of this region has left the magnitudes of the value
};

// A cotangent of a reversed loop and the mask of where it is present. A cotangent of -1 is never
// present; with a mask of -1 it is present everywhere.
struct SlotPair {
  int32_t cotangent = -1;
  int32_t mask = -1;
};
// What a region of a reversed loop may yield instead of a mask.
inline constexpr int32_t kUnchanged = -2;
inline constexpr int32_t kEverywhere = -3;
inline constexpr int32_t kNowhere = -4;

// One region of a reversed loop, and how the cotangents pass through it.
struct VjpRegion {
  RegionPlan region;
  std::vector<SlotPair> args;     // by travelling slot
  std::vector<SlotPair> outside;  // exports from outside, by export
  std::vector<SlotPair> yields;   // by travelling slot
  bool idle = false;              // nothing happens in it
};

// A cotangent on its way through the iterations.
struct TravellingSlot {
  Carrier carrier = Carrier::kF32;
  Format format = Format::kF32;
  int64_t count = 1;
  bool masked = false;                // its mask is read
  SlotPair operand;                   // filled: both are slots
  SlotPair result;                    // -1: not read
  int32_t cotangent = -1, mask = -1;  // at the layout of the iteration
  int32_t home = -1, home_mask = -1;  // at the layout around the loop
};

struct WhileVjpPlan {
  const WhilePlan* primal = nullptr;
  int32_t region = -1;  // of the primal loop
  int32_t record = -1;
  VjpRegion body, test_inner, test_last, test_both;
  // Carried, captures, then what the body yields for the exports.
  std::vector<TravellingSlot> slots;
  std::vector<SlotPair> outside;         // exports of the operands
  std::vector<SlotPair> outside_narrow;  // buffers for the lanes that are left
  std::vector<CapturePlan> reads;        // values of the adjoint around
};

struct ForVjpPlan {
  const ForPlan* primal = nullptr;
  int32_t region = -1;
  int32_t record = -1;
  VjpRegion body;
  int32_t index = -1;
  std::vector<TravellingSlot> slots;
};

// What the program reads from outside.
struct InputPlan {
  int32_t slot = -1;  // -1: not read
  bool per_step = false;
  bool used = false;  // the forward program reads it
};

struct LiteralPlan {
  int32_t slot = -1;
  std::vector<double> values;  // one, or one per element
};

struct StatePlan {
  int32_t slot = -1;   // what the step reads
  int32_t yield = -1;  // what it yields; never shared with another value
  bool stored = false;
};

// A top-level region of the adjoint: its slots by place.
struct AdjointRegionPlan {
  RegionPlan region;
  int32_t seed = -1;
  std::vector<SlotPair> args;
  std::vector<SlotPair> yields;
};

struct Plan {
  std::shared_ptr<const NumericalProgram> program;
  const KernelTable* kernels = nullptr;
  std::vector<Slot> slots;
  std::vector<int32_t> slot_of;  // by value
  std::vector<InputPlan> inputs;
  std::vector<StatePlan> states;  // by state input
  std::vector<int32_t> exports;   // slots; none in a plan with an adjoint
  std::vector<LiteralPlan> literals;
  int32_t stage_cost = -1;
  bool checks_step_inputs = false;     // a real input changes from step to step
  std::vector<Instruction> per_run;    // uniform invariants
  std::vector<Instruction> per_block;  // varying invariants
  RegionPlan initial;
  std::vector<int32_t> initial_yields;
  RegionPlan step;
  RegionPlan terminal;
  std::vector<int32_t> terminal_args;
  int32_t terminal_yield = -1;
  AdjointRegionPlan adjoint_terminal, adjoint_inner, adjoint_initial;
  std::optional<AdjointRegionPlan> adjoint_last;  // none: it is adjoint_inner
  int32_t regions = 0;                            // recorded regions
  int32_t invariant_ranges = 0;                   // RangePlan::invariant
  int64_t varying_bytes = 0;                      // workspace, bytes per lane
  int64_t uniform_bytes = 0;

  // Owners of what instructions point to.
  std::deque<WhilePlan> whiles;
  std::deque<ForPlan> fors;
  std::deque<EventPlan> events;
  std::deque<RangePlan> ranges;
  std::deque<TapePlan> tapes;
  std::deque<AccumulatePlan> accumulates;
  std::deque<WhileVjpPlan> while_vjps;
  std::deque<ForVjpPlan> for_vjps;
  std::deque<RowPlan> rows;
  std::deque<ReducePlan> reductions;
  std::deque<ExactReductionPlan> exact_reductions;
  std::deque<std::vector<int32_t>> lists;

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

}  // namespace simgrad::sim::cpu
