// The plan that executors run: loops over elements, scalar statements and records.
//
// MakePlan (make_plan.h) writes it for a numerical program, Print (print.h) shows it, and
// sim/backend/compiled turns it into machine code, sim/backend/cuda into CUDA C++. A plan speaks of one instance; the executor
// chooses how instances and elements lie in the lanes of a machine.
//
// Registers are assigned once, in an enclosing or earlier statement of the same block. Buffers hold
// what is assigned again, what has several elements, and what outlives a step.
// Numbers of the program (literals, caps, thresholds) stand in tables beside the statements, so
// that programs of one structure share their machine code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "precision/format.h"
#include "precision/policy.h"
#include "sim/program/carrier.h"
#include "sim/program/permutation.h"
#include "sim/program/program.h"

namespace simgrad::sim::plan {

// The type of a register or of an element of a buffer at run time.
using sim::BytesOf;
using sim::Carrier;
using sim::CarrierName;
using sim::CarrierOf;
using sim::SuffixOf;

using Register = int32_t;  // index into Function::registers
inline constexpr Register kNoRegister = -1;
using BufferId = int32_t;  // index into Function::buffers
inline constexpr BufferId kNoBuffer = -1;

// Element number: base + the sum of stride * register + moved. The registers of terms count `each`
// loops. `moved`, an i64, was computed from data and may differ from lane to lane.
struct Index {
  int64_t base = 0;
  std::vector<std::pair<Register, int64_t>> terms;
  Register moved = kNoRegister;
  bool operator==(const Index&) const = default;
};

// A reversed step reads values of its step from frames on a tape. Each run of a region has a frame,
// which `push` makes; its name is its place, a number that all lanes share. A frame of a loop keeps
// the place of the one before it. The region around keeps the place of the last, and the count.
enum class BufferKind : uint8_t {
  kLocal,      // from the statement that declares it to the end of that block
  kField,      // of the instance, from step to step: `number` counts the fields of the plan
  kInput,      // what was sent, exact: `number` is the index in Program::inputs; read at time t
  kTable,      // Plan::numbers from `number` on: the same for every instance
  kSent,       // cotangents that the caller sent, scaled and rounded: `number` in Plan::sent
  kGradient,   // of input `number`: its sum, of the step where the input has steps
  kFactors,    // of input `number`, among Plan::outer_products: a column, then a row, of the step
  kConnected,  // of input `number`: whether the sum received anything
};

struct Buffer {
  BufferKind kind = BufferKind::kLocal;
  Carrier carrier = Carrier::kF32;
  int64_t count = 1;
  int32_t number = 0;
  bool shared = false;  // a local number that all lanes share
  bool placed = false;  // in the workspace, though it is one number: pieces share it
  std::string name;     // for people
  // Locals of several elements, and those that are placed: bytes per lane before theirs in the
  // workspace (place.h).
  int64_t offset = -1;
};

enum class Code : uint8_t {
  kNumber,    // result = numbers[number], a real of the table, in the carrier of the result
  kInteger,   // result = integers[number], of the table of caps and integer literals
  kConstant,  // result = number: fixed by the structure
  kTime,      // result = the step t, as i32 or i64
  kCall,      // result = function(operands); pure
  kDeclare,   // buffer begins
  kLoad,      // result = buffer[index]
  kStore,     // buffer[index] = operands[0]
  kEach,      // for result in [0, number), or [0, operands[0]) where there is one: body
  kRepeat,    // body, again and again, until every lane has left
  kLeave,     // lanes where operands[0] holds leave the innermost repeat
  kExactSum,  // result = sum of buffer[index + k * stride], k < number, rounded once to `format`
  kLook,      // operands[0], a real, is looked at; operands[1], if there is one, says where
  kRange,     // operands[0] became operands[1] in `format`, for `role`, `number` times; [2]: where
  kStored,    // operands[0], a state in `format`, is stored: its ranges
  kAbsorbed,  // operands[0] + operands[1] is stored as operands[2]: whether that is one of them, for
              // `site` of the additions, `number` times; at sampled steps alone
  kCommit,    // body, but for an instance that the policy stops at this step, or `before_stop`
  kTest,      // a test of `site` ([lhs, rhs, whether it ended the run], extra magnitude, where);
              // of a predicate [3] is the number of the deciding test, an i32
  kRun,       // a run of `site` ended ([iterations, reason, last tested value])
  kDecide,    // an event of `site` ([lhs, rhs, value], extra magnitude, where it is decided), or a
              // choice: its value is an i32
  kIf,        // body, for lanes where operands[0] holds
  kPush,      // result = the place of a new frame of `number` bytes per lane
  kKeep,      // frame[number + element of index] = operands[0]
  kRecall,    // result = frame[number + element of index]
  kSeed,      // result = the scale of the objective's cotangent
  kTake,      // operands[0], a state's cotangent, leaves the step; operands[1]: where it is present
};

struct Statement {
  Code code = Code::kCall;
  Register result = kNoRegister;
  std::vector<Register> operands;
  std::string function;  // kCall: a scalar function by name
  BufferId buffer = kNoBuffer;
  Index index;
  int64_t stride = 0;
  int64_t number = 0;
  // kEach: whether its iterations may run side by side: none reads what another one writes.
  bool parallel = false;
  bool invariant = false;    // kEach: every step stores the same (invariants.h)
  bool before_stop = false;  // kCommit: for every instance that ran the step
  // kTest, kRun, kDecide: number among the sites of its kind; the magnitude that widens an ulp
  // (sim/program/compared_sum.h); the mask where it happens.
  int32_t site = -1;
  Register extra = kNoRegister;
  Register where = kNoRegister;
  // kRun, kDecide: the iteration of the loops around and the element, both flattened; none: 0.
  Register iteration = kNoRegister;
  Register element = kNoRegister;
  Register frame = kNoRegister;  // kKeep, kRecall: its place
  bool shared = false;           // kKeep, kRecall: a number that all lanes share
  precision::Format format = precision::Format::kF32;
  precision::Role role = precision::Role::kDynamics;
  std::vector<Statement> body;
  std::string comment;  // value name, source label
};

// The data that stay with an instance from step to step.
enum class FieldKind : uint8_t {
  kState,
  kExport,
  kCost,
  kCotangent,  // of a state, while it travels back; its mask
  kCotangentMask,
  kExportCotangent,
  kExportCotangentMask,
};
struct Field {
  FieldKind kind = FieldKind::kState;
  int32_t index = 0;  // among its kind
  Carrier carrier = Carrier::kF32;
  int64_t count = 1;
};

// A named place where an instance decides, as records need it.
struct RecordedSite {
  uint64_t hash = 0;       // of its name
  int64_t elements = 1;    // decisions of one execution
  bool has_entry = false;  // loops: a run begins with an entry test
  bool cap_first = false;  // loops: the cap is checked before the test
  bool chooses = false;    // events: their values are integers
};

// Cotangents of the caller, in role adjoint.
enum class SentKind : uint8_t { kFinalState, kTrajectoryState, kTrajectoryExport };
struct Sent {
  SentKind kind = SentKind::kFinalState;
  int32_t index = 0;  // among states or exports
};

// The gradient that each reversed step gives to an input: cell (a, b) is the product of factors a
// and rows + b, a zero positive, as if accumulated from +0 (outer_products.h).
struct OuterProduct {
  int32_t input = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

// A straight run of statements for one instance.
struct Function {
  std::string name;
  std::vector<Carrier> registers;
  std::vector<Buffer> buffers;
  std::vector<Statement> statements;
  int64_t workspace =
      0;             // bytes per lane that its locals of several elements take at most (place.h)
  int64_t kept = 0;  // the first bytes of these: what invariant loops store
  // The place of the step's frame: made in `replay`, given in `reverse`.
  Register frame = kNoRegister;
  // A large function has pieces instead of statements; they run one after the other in one
  // workspace (cut.h). A piece that reads the frame and does not make it is given it.
  std::vector<Function> pieces;
  Register AddRegister(Carrier carrier);
  BufferId AddBuffer(Buffer buffer);
};

struct Plan {
  std::vector<Field> fields;
  std::vector<double> numbers;
  std::vector<int64_t> integers;
  // The places in `integers` at which permutations of shuffled sums begin: tables that sums share.
  std::vector<std::pair<PermutationKey, int64_t>> permutations;
  std::vector<RecordedSite> terminations;
  std::vector<RecordedSite> events;
  std::vector<precision::Role> additions;  // by site of additions (sim/program/additions.h)
  bool event_margins = false;              // margins of events are counted at sampled steps
  Function start;   // fields z[0] of the states sent; without statements: copies
  Function step;    // z[t] to z[t + 1], exports, cost
  Function finish;  // the terminal cost
  // The adjoint, where there is one. `replay` runs a step with a tape and gives the place of its
  // frame; `reverse` runs it backwards, `reverse_last` does where step T - 1 differs.
  std::vector<Sent> sent;
  std::vector<OuterProduct> outer_products;  // ascending by input
  Function replay;
  Function reverse_terminal;
  Function reverse_last;
  Function reverse;
  Function reverse_initial;
};

}  // namespace simgrad::sim::plan
