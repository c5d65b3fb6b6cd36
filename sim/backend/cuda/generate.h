// From a numerical program to CUDA C++ that runs it: forward, adjoint, diagnostics.
//
// How: the text is printed from the program's plan (sim/plan), statement by statement, by text/. Numbers
//   (literals, configuration, caps, trip counts) go to tables, so programs that differ only in
//   numbers have one text.
// Mappings: a thread per instance, where every value is private to its thread, or a block per
//   instance. With a block, arrays are shared, the turns of a loop that may run side by side are those
//   of the threads, and every thread computes the scalars.
// Errors: RESOURCE_EXHAUSTED for a program with more inputs or fields than a kernel takes.
// Cost: linear in the program. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/kernel_abi.h"
#include "sim/backend/executor.h"
#include "sim/program/carrier.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::cuda {

enum class Mapping : uint8_t { kThreadPerInstance, kBlockPerInstance };
std::string_view MappingName(Mapping mapping);

struct GenerateOptions {
  Mapping mapping = Mapping::kThreadPerInstance;
  std::vector<bool> per_step;  // per input: its binding is per step (gradients have a step axis)
  // The records of launches of this text, fixed so that a kernel holds nothing else; kCounts is the
  // same as kSummary, kInstances can do all.
  Recording recording = Recording::kSummary;
  // A function of more statements is cut into several that are not inlined.
  int64_t longest_function = 400;
  bool operator==(const GenerateOptions&) const = default;
};

enum class FieldKind : uint8_t {
  // These travel with an instance; a checkpoint is a copy of them.
  kState,       // index: place among the state inputs
  kExport,      // of the last step that counted
  kCost,        // memory type of role objective
  kHealth,      // i64: -1 fine; else (step << 8) | (phase << 1) | stopped
  kSignature,   // i64, bits of the path signature
  kLastEvent,   // index: event site; bool [elements]
  kFirstEvent,  // index: event site; i64
  // For the adjoint.
  kCotangent,  // index: state; kCotangentMask: bool, only where the slot has a mask
  kCotangentMask,
  kExportCotangent,  // of the last step, from the terminal cost
  kExportCotangentMask,
  // index: input; memory type of role gradient; [steps] outermost if per step; a window for weights
  kGradient,
  kConnected,      // index: input; bool
  kAdjointHealth,  // as kHealth
};

struct Field {
  FieldKind kind = FieldKind::kState;
  int32_t index = 0;
  MemoryType memory_type = MemoryType::kF32;
  int64_t elements = 1;   // without the step axis
  bool per_step = false;  // [steps] more, outermost of all
  // Weights have [entries] more, outermost of all, in memory of each launch. Entry t - window_first is
  // of step t; start_adjoint and finish_adjoint have one.
  bool is_window = false;
  bool operator==(const Field&) const = default;
};

// A text is compiled whole, or, where it has an adjoint, in two parts at once: with the macro of
// this name at 1 all but the kernels of the adjoint, at 2 those alone.
inline constexpr char kPartMacro[] = "SIMGRAD_PART";
bool HasAdjointPart(std::string_view text);
// Whether an entry point is in the part of the adjoint.
bool IsOfAdjoint(std::string_view entry);

struct GeneratedSource {
  Mapping mapping = Mapping::kThreadPerInstance;
  // Entry points, extern "C" __global__ void NAME(const __grid_constant__ KernelArgs args):
  //   simgrad_start    z[0]: rounds what was sent, runs `initial`; clears what travels
  //   simgrad_forward  steps [first_step, first_step + count)
  //   simgrad_merge    columns of blocks to columns of steps; grid: count blocks
  //   simgrad_finish   terminal cost
  // and only where the program has an adjoint:
  //   simgrad_start_adjoint, simgrad_adjoint (replays its range with a tape),
  //   simgrad_finish_adjoint
  // and, where it is wanted for weights, for one of them at a time:
  //   simgrad_adjoint_sums    the sums of blocks of ids in each entry of a window
  //   simgrad_adjoint_totals  adds them to the totals of blocks
  // Every kernel strides over the instances with its grid, so any grid is right.
  std::string text;
  std::vector<double> numbers;
  std::vector<int64_t> integers;
  std::vector<Field> fields;
  int64_t workspace_bytes = 0;                              // per block
  int64_t shared_bytes = 0;                                 // dynamic shared memory of a block
  int64_t window_bytes = 0;                                 // more of it, in simgrad_forward
  int64_t terminal_tape_units = 0, initial_tape_units = 0;  // needs of start_ and finish_adjoint
};

absl::StatusOr<GeneratedSource> Generate(const NumericalProgram& program,
                                         const GenerateOptions& options);

// The default mapping: a thread per instance, unless its private values are too large for registers
// and stack.
Mapping ChooseMapping(const NumericalProgram& program);

// How a number lies in memory: of a type at run time, or of a value.
MemoryType MemoryTypeOf(Carrier carrier);
MemoryType MemoryTypeOf(const Value& value);

// The headers that a generated text includes, by the path under which it does, embedded in the
// binary: precision/, kernel_abi.h and device/.
struct EmbeddedHeader {
  std::string_view name;
  std::string_view text;
};
const std::vector<EmbeddedHeader>& EmbeddedHeaders();

}  // namespace simgrad::sim::cuda
