// The arguments of a compiled function: one group of instances, side by side in lanes of vectors.
//
// Layout: everything that differs between instances lies as [element][lane]. The machine code was
//   written for one number of lanes; a group of fewer instances leaves lanes unused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/backend/columns.h"

namespace simgrad::sim::compiled {

struct MarginWatch;

// Read by machine code: the order of members is its contract (lane_builder.h, Member).
struct GroupArgs {
  const double* numbers;      // of the plan
  const int64_t* integers;    // of the plan
  const void* const* inputs;  // per program input: f64 or integers, [step if it has them][element]
                              // [lane]; where it is shared, without lanes
  std::byte* const* fields;   // per field of the plan: [element][lane]
  std::byte* workspace;
  // The numbers that invariant loops stored (Function::kept), from call to call of one function and
  // group; and the lanes for which they did, a bit each.
  std::byte* kept;
  int64_t reuses;
  // Element-operations until the next look at the clock. `poll` looks and returns the next amount, or 0:
  // then the function returns at once, and what it was given cannot be used any further.
  int64_t fuel;
  int64_t (*poll)(GroupArgs* args);
  const uint32_t* lanes_used;  // [lane]: all ones where there is an instance
  int64_t first_step;
  int64_t count;
  // Only if results are looked at. [lane] -1, or (step << 8) of the first non-finite result, plus 2
  // but for an input, plus 1 where the policy stopped the instance.
  int64_t* health;
  const uint32_t* bad_inputs;  // [step][lane]: not 0 where an input is not finite
  // Only if it is recorded.
  double near_band_ulps;
  const uint32_t* ranks;            // [lane]: place of the instance id in ascending order
  uint64_t* signatures;             // [lane]
  TerminationColumn* terminations;  // [step][site]
  EventColumn* events;              // [step][site]
  RangeColumn* ranges;              // one
  AdditionColumn* additions;        // [site]; null: the steps are not sampled
  MarginColumn* event_margins;      // [site]; null: the steps are not sampled
  std::byte* last_events;           // event_layout.h
  int64_t* first_events;            // [event][lane]: first step at which it held, or -1
  // Level `instances`: a tested value, and the end of a run, of one lane.
  void (*tell_tested)(GroupArgs* args, int64_t step, int64_t site, int64_t lane, double value);
  void (*tell_run)(GroupArgs* args, int64_t step, int64_t site, int64_t lane, int32_t iterations,
                   int32_t reason);
  // Margins and tested values that may matter (exact_margins.h).
  void (*note_margins)(GroupArgs* args, MarginWatch* watch, void* column, uint64_t kind,
                       uint64_t lanes, uint64_t stopped, const void* lhs, const void* rhs,
                       const void* extra, const void* tests);
  void (*note_tested)(MarginWatch* watch, TerminationColumn* column, bool is_f64, uint64_t lanes,
                      const void* values);
  MarginWatch* termination_watches;  // [step][site]
  MarginWatch* event_watches;        // [step][site]
  // The adjoint.
  double seed;
  const void* const* sent;      // per Plan::sent: [step if it has them][element][lane]
  std::byte* const* gradients;  // per program input: [step if it has them][element][lane]
  uint32_t* const* connected;   // per program input: [lane]
  BackwardColumn* backward;     // [step]
  // A whole field of cotangents that leaves the step (cotangent_record.h); `format` as its number.
  void (*take_cotangents)(BackwardColumn* column, unsigned long long* underflows,
                          const void* values, const uint32_t* present, int64_t count,
                          int32_t format);
  int64_t* frames;      // [step]: place of its frame
  int64_t* tape_bytes;  // [step]: the most that a replay would put on the tape
  std::byte* tape;      // `grow` may move it
  int64_t tape_capacity;
  void (*grow)(GroupArgs* args, int64_t bytes);
};

}  // namespace simgrad::sim::compiled
