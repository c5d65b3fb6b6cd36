// The data that the host and a generated kernel share: plain data, the same bytes on both sides.
//
// Compiles under NVRTC, nvcc and the host compiler. Numbers of a request reach a kernel through
// KernelArgs alone, never through its text: so one kernel serves every tolerance and every batch.
// Layout: "lanes" are the instances that are resident at once. Fields of instances (Field,
//   generate.h) lie [element][instance] for a thread per instance, [instance][element] for a block
//   per instance. Diagnostics are first gathered per block of threads, then merged (merge kernel).
// Threads: data.
#pragma once

#include "sim/backend/columns.h"

namespace simgrad::sim::cuda {

using sim::AdditionColumn;
using sim::BackwardColumn;
using sim::EventColumn;
using sim::ExtremeMargin;
using sim::MarginColumn;
using sim::RangeColumn;
using sim::StateColumn;
using sim::TerminationColumn;

// The inputs and the exports of a program, and its fields (generate.h), at most.
inline constexpr int kMaxInputs = 256;
inline constexpr int kMaxFields = 1536;
// The threads of a block, at most.
inline constexpr int kMostThreads = 256;
// The steps of one launch, at most: they are counted in 32 bits.
inline constexpr int64_t kMostSteps = int64_t{1} << 30;

// The unit of a tape (device/tape.h).
using TapeUnit = uint32_t;
inline constexpr int64_t kTapeUnitBytes = sizeof(TapeUnit);

// How a number lies in memory; every format has one, as in precision/lane.h.
// kBool: one byte, 0 or 1. kU32: of a u8 too.
enum class MemoryType : int32_t { kF32, kF64, kI32, kI64, kBool, kU32 };

// One input of the batch, row-major [instance][step][declared shape].
struct InputView {
  const void* data;         // in `memory_type`
  int64_t instance_stride;  // in elements; 0: shared
  int64_t step_stride;      // in elements; 0: the same at every step
  MemoryType memory_type;   // reals: kF32 where every number fits, else kF64; integers: kI64
};

// Level `instances` of one termination site, for the steps of the chunk.
struct InstanceSiteView {
  uint32_t* iterations;    // [count][instances]
  uint8_t* reasons;        // [count][instances]
  uint32_t* value_counts;  // [count][instances]
  // Written in a second pass over the chunk, when value_counts are known; null in the first.
  double* values;
  const int64_t* value_starts;  // [instances], where an instance's values of this chunk begin
};

// The requests of the host to a launch.
enum LaunchFlags : uint32_t {
  kRecordSteps = 1,      // columns, paths, health of a counted forward run
  kRecordInstances = 2,  // InstanceSiteView
  kValuesPass = 4,       // nothing is counted again; only `values` are written
  kRecordNothing = 8,    // Recording::kNone: results only
};

// The numbers on the stack of a sum over the rows of a block of ids, at most.
inline constexpr int kSumDepth = 9;

// The numbers that a launch gave to one param declared `weights`, and its sums over blocks of ids. Numbers are in
// the memory type of role gradient.
struct WeightSumsView {
  void* given;  // [entries] of a window (Field)
  int64_t entries, elements, blocks;
  int64_t entry_stride, element_stride, row_stride;  // of `given`, in numbers
  const uint32_t* block_begin;                       // [blocks + 1], in the next three
  const uint32_t* row;                               // rows that count, in ascending order of ids
  const uint8_t* joins;                              // BlockOrder
  const double* weight;                              // of the row
  void* total;                                       // [blocks][elements]
  uint32_t* nonzero;             // by row, whether a number is not 0 without the loss scale
  unsigned long long* extremes;  // the least and the largest magnitude that is told, as bits
  // The least magnitudes that are told, and that are not any more, as bits.
  uint64_t least_told, least_infinite;
};

struct KernelArgs {
  int64_t instances, steps;   // of the batch and of the whole horizon
  int64_t first_step, count;  // of this launch; at most kMostSteps
  uint32_t flags;             // LaunchFlags
  int32_t stride;             // state ranges: steps t with (t + 1) % stride == 0, and the last
  double near_band_ulps;
  double seed;                  // adjoint: seed_scale rounded to role objective, exact
  void* field[kMaxFields];      // by GeneratedSource::fields
  int64_t window_first;         // adjoint: the step of the first entry of fields that are windows
  InputView input[kMaxInputs];  // by Program::inputs
  const double* number;         // GeneratedSource::numbers
  const int64_t* integer;       // GeneratedSource::integers
  const uint64_t* instance_id;  // [instances]
  const uint32_t* rank;         // [instances]
  // Forward, where kRecordSteps. Partials of block b: b * count * sites + column * sites + site.
  TerminationColumn *termination_partial, *termination;  // [blocks][count][sites], [count][sites]
  EventColumn *event_partial, *event;
  StateColumn *state_partial, *state;  // [blocks][samples of the chunk][real states], ...
  int64_t samples;                     // sampled steps of the chunk
  int64_t blocks;                      // of the launch that wrote the partials, for simgrad_merge
  RangeColumn* ranges;                 // one; integer atomics
  AdditionColumn* additions;           // [sites of additions]; integer atomics
  MarginColumn* event_margins;         // [samples][events]; integer atomics; null: not counted
  const InstanceSiteView* instance_site;  // [termination sites]
  void* const* state_trajectory;  // [states]: [count][instances][shape] in the memory type, or null
  void* const* export_trajectory;  // [exports], likewise
  // [steps]: largest need of an instance, in tape units, also where no tape could be so long; or
  // null.
  unsigned long long* tape_units;
  // Adjoint.
  void* tape;  // [lanes or blocks resident][tape_capacity] interleaved as device/tape.h says
  int64_t tape_capacity;                        // units per resident instance
  BackwardColumn *backward_partial, *backward;  // [blocks][count], [count]
  const double* sent_final_state[kMaxInputs];   // by state order; null: not sent
  const double* sent_trajectory_state[kMaxInputs];
  const double* sent_trajectory_export[kMaxInputs];
  unsigned char* workspace;  // block mapping: values spread over a block's threads
  int64_t workspace_stride;  // bytes per block
  WeightSumsView sums;       // simgrad_adjoint_sums, simgrad_adjoint_totals
};
// A kernel takes 32,764 bytes of arguments, from compute capability 7.0 and CUDA 12.1 on; there is room for more.
static_assert(sizeof(KernelArgs) <= 28 << 10);

}  // namespace simgrad::sim::cuda
