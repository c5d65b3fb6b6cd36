// Margins in full, for the lanes whose margin may matter.
//
// Machine code compares each tested value in the width of its vectors with the limits of a
// MarginWatch. A lane beyond both limits is neither near its threshold nor nearer than what the
// step has seen. All others come here, NaNs among them.
//
// Maths: docs/semantics.md, "Margins". Rounding is monotone, so a limit of a few bits more than the
//   exact one never hides a lane; that it shows too many costs time only.
// Errors: none. Threads: a watch and a column belong to one.
#pragma once

#include <cstdint>

#include "precision/format.h"
#include "sim/backend/columns.h"

namespace simgrad::sim::compiled {

struct GroupArgs;

// The margins of one site in one step, as the instances of one thread have shown them so far.
struct MarginWatch {
  // Interesting are |a - b| <= absolute, and |a - b| <= reach * 2^e, where 2^e <= m < 2^(e + 1) for
  // the largest magnitude m that counts for the ulp and is no subnormal of the format; of those
  // `absolute` takes care. For sides in f32, and for f64 and integers.
  float absolute_f32, reach_f32;
  double absolute_f64, reach_f64;
  // The bits of the sides, and of 2^e, of the last margin that came here and was not near. Lanes of
  // this rank and of later ones that show them again change nothing.
  uint64_t lhs, rhs, power;
  int32_t rank;  // the largest number: no lane
  // The least rank with a margin of 0 or -0. Lanes of later ranks with a margin of 0 are near, and no
  // smaller margin. The largest number: no lane.
  int32_t zero_rank;
  // The least and the greatest last tested value, as ordered keys (TestedKey) of their carrier.
  int64_t tested_min, tested_max;
};

// How two sides are compared.
struct MarginKind {
  precision::Format format = precision::Format::kF64;
  bool is_integer = false;    // in 64 bits
  bool extra_is_f64 = false;  // else it has the carrier of the format
  bool is_event = false;      // the column is an EventColumn
  bool extremes = false;      // smallest margins are recorded
  uint64_t Code() const;
  static MarginKind Of(uint64_t code);
};

// A watch before the first lane.
MarginWatch NewWatch();

// Takes the margins of some lanes (bits of `lanes`) into a column, and narrows the watch. `stopped`:
// bits of the lanes whose test held. The sides lie as [lane]; `extra` may be null, and `tests`, the
// numbers of deciding tests.
void NoteMargins(GroupArgs* args, MarginWatch* watch, void* column, uint64_t kind, uint64_t lanes,
                 uint64_t stopped, const void* lhs, const void* rhs, const void* extra,
                 const void* tests);

// Takes last tested values beyond tested_min and tested_max into a column and the watch.
void NoteTested(MarginWatch* watch, TerminationColumn* column, bool is_f64, uint64_t lanes,
                const void* values);

}  // namespace simgrad::sim::compiled
