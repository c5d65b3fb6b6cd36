// The numerical program: a small, typed, structured intermediate representation of a world.
//
// One description gives forward execution, the adjoint, the diagnostics of every site, the effect
// of a policy, a text for people and a fingerprint. Programs are plain data. Verify (verify.h) and
// Print (print.h) read them; every other pass is a pure function from program to program, and
// Lower (lower.h) is their chain.
//
// Values: one flat table per program. A value is a program input, a region argument, or the result
// of an operation; it may be used in its own region and in regions nested inside it.
// Shapes: static, per instance; [] is a scalar. Elementwise operations need equal shapes; a scalar
// is widened only by an explicit `broadcast` (the builder inserts it).
// Elements are numbered in row-major order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "precision/format.h"
#include "precision/policy.h"
#include "precision/reduction.h"
#include "sim/op/opcode.h"

namespace simgrad::sim {

using precision::CastRounding;
using precision::Format;
using precision::Order;
using precision::Overflow;
using precision::Role;
using precision::SumOrder;

// Index into Program::values.
enum class ValueId : int32_t { kNone = -1 };
constexpr size_t Index(ValueId id) { return static_cast<size_t>(id); }

enum class ElementType : uint8_t { kReal, kI32, kI64, kBool, kU32, kU8 };
std::string_view ElementTypeName(ElementType type);

using Shape = std::vector<int64_t>;
int64_t ElementCount(const Shape& shape);

struct Type {
  ElementType element = ElementType::kReal;
  Shape shape;
  bool operator==(const Type&) const = default;
};

struct Value {
  Type type;
  std::string name;  // for people; not necessarily unique; may be empty
  // Set by AssignPrecision for every real value. Inputs other than `state` keep kF64, the carrier
  // in which a caller's exact number arrives; a `cast` brings it into the role where it is used.
  std::optional<Format> format;
  // False: only diagnostics read it (record_margins.h), so a NaN or Inf in it is not reported.
  bool watched = true;
};

enum class InputKind : uint8_t { kState, kParam, kControl, kData, kConfig, kStep };
std::string_view InputKindName(InputKind kind);

struct Input {
  InputKind kind = InputKind::kState;
  std::string name;  // unique among the inputs of its kind
  ValueId value = ValueId::kNone;
  // Every element's value if the caller sends nothing; if unset, the caller must send the input.
  // For `config` it is the number itself, part of the program.
  std::optional<double> default_value;
  std::string description;
  // Lower clears it for inputs that no operation of the lowered program reads; they need not be
  // sent.
  bool used = true;
  // A param may be declared `weights`: all instances share it, and its gradient is summed over
  // instances within each step (docs/numerics.md section 6).
  bool weights = false;
};

// Comparison that decides a site.
enum class Comparison : uint8_t { kLt, kLe, kGt, kGe, kEq, kNe };

struct Op;

// A straight list of operations with arguments and results.
struct Region {
  std::vector<ValueId> args;
  std::vector<Op> ops;
  std::vector<ValueId> yields;
};

// The purpose of a test (name_tests.h); the last four may be declared.
enum class TestKind : uint8_t {
  kFromFlow,  // not declared; data flow says it
  kTermination,
  kEvent,
  kWeight,
  kGuard,
  kAcceptance,
  kMembership,
  kHalt,
};
std::string_view TestKindName(TestKind kind);                     // of kFromFlow: empty
std::optional<TestKind> TestKindFromName(std::string_view name);  // of those that may be declared

// When a loop checks its cap (docs/numerics.md section 9).
enum class CapOrder : uint8_t {
  kTestFirst,  // the test is evaluated once more after the last correction
  kCapFirst,   // at the cap nothing is evaluated again
};

// The effect of an index outside: the nearest place, a number instead, or nowhere.
enum class Bounds : uint8_t { kNone, kClip, kFill, kDrop };
// How an update joins what is there.
enum class Combine : uint8_t { kNone, kSet, kAdd, kMul, kMin, kMax };

// Attributes. An operation's entry (sim/op) lists those that it uses.
struct Attributes {
  // literal: one number (splat) or one per element; pad, take, gather: `fill`, none for 0
  std::vector<double> literal;
  std::vector<int64_t> axes;   // reductions: ascending axes; cumsum: one; concat: one
  std::vector<int64_t> start;  // slice, pad: per axis; take: `indices`, flat, -1 for none
  Shape shape;                 // broadcast, reshape: the result's shape
  // broadcast: axis of the result for each axis of the operand; transpose: the axes in their new
  // order; slice: `stride`, pad: `interior`, per axis, none for 1 and 0
  std::vector<int64_t> dims;
  std::string site;                           // while, event, choice: the site's name
  Comparison comparison = Comparison::kLt;    // while (stop test), event
  CapOrder cap_order = CapOrder::kTestFirst;  // while
  bool predicate = false;                     // while: the test yields a bool, stop
  bool has_entry = false;  // while: third yield of the test region is the entry threshold
  // cond, while, while_vjp: the first of the carried values that keep their formats; 0: none (loop.h)
  int32_t kept_from = 0;
  int64_t max_iter = 0;  // while: cap >= 1; for: trip count >= 0
  int64_t elements = 0;  // while: 0 per instance, n >= 1 per element of the leading axis
  int32_t carried = 0;   // while, for and their vjp: number of carried values
  int32_t scanned = 0;   // for: number of operands that it takes element by element
  TestKind kind = TestKind::kFromFlow;  // event, comparisons: what is declared of the test
  std::optional<Format> format;         // cast: explicit target format
  std::optional<Overflow> overflow;     // cast: explicit overflow mode, else the role's
  // cast: explicit, else the role's; matmul: of its operands to tf32, none: they stay
  std::optional<CastRounding> rounding;
  bool reverse = false;              // cumsum, for: from the last element down
  Bounds bounds = Bounds::kNone;     // gather: clip or fill; scatter: clip or drop
  Combine combine = Combine::kNone;  // scatter
  bool upper = false;                // triangular_solve: the upper triangle
  bool transposed = false;           // triangular_solve, lu_solve
  bool unit = false;                 // triangular_solve: ones on the diagonal
  bool error = false;                // halt: its instance is one that failed
  bool ordered = false;              // matmul: adds its products in `order`, else by fma
  // Fields of one size stand together: a program holds millions of bytes of these.
  Format accumulator = Format::kF32;  // sum, cumsum: filled in by AssignPrecision, as is `order`
  int32_t draw = 0;                   // uniform, normal, stochastic casts: its number (draws.h)
  // tape: the primal value that it reads; *_vjp: the first result of the loop
  ValueId primal = ValueId::kNone;
  SumOrder order = Order::kPairwise;
  int32_t input = -1;  // accumulate: index into Program::inputs
  // Adjoint programs: the operation is executed where this mask holds (kNone: everywhere).
  ValueId where = ValueId::kNone;
  int64_t last = 0;  // while_vjp: how many of its last iterations; 0: all
};

struct Op {
  OpCode code = OpCode::kLiteral;
  Role role = Role::kDynamics;
  std::string
      site;  // the site on whose behalf this is computed (policy overrides by site); may be empty
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attributes attributes;
  std::vector<Region> regions;
  std::string label;  // source label shown in text and certificates
};

// A value of `step` that leaves it: an observable of the trajectory, or what a cost reads.
struct Export {
  std::string name;
  ValueId value = ValueId::kNone;
  bool observable = true;
  // A pass tells it of a step, also of the one in which policy `stop` ends an instance.
  bool of_every_step = false;
};

// An objective: costs are summed over steps ascending from +0 in role `objective`, terminal last.
struct Objective {
  std::string name;
  // Stage cost: reads inputs (z[t], u[t], data at t) and exported values of step t. No args; one
  // scalar yield. Empty yields: there is none.
  Region stage;
  // Terminal cost: args are the states of z[T] in the order of the state inputs, followed by the
  // exports of the last step in their order. One scalar yield. Empty yields: there is none.
  Region terminal;
  bool HasStage() const { return !stage.yields.empty(); }
  bool HasTerminal() const { return !terminal.yields.empty(); }
};

// A cast that draws: its operands behind the first are the key of the instance and the step.
inline bool IsStochastic(const Op& op) {
  return op.code == OpCode::kCast && op.attributes.rounding == CastRounding::kStochastic;
}

// An operation whose result counts as a decision of the site that it names.
inline bool IsTest(const Op& op) { return op.code == OpCode::kEvent || op.code == OpCode::kChoice; }

// The comparisons of reals that are tests with sites of their own (name_tests.h).
enum class TestLevel : uint8_t {
  kDeclared,   // none: loops and events alone are sites, and what else compares decides nothing
  kLoops,      // none, although they may decide
  kDecisions,  // all but guards
  kAll,
};
std::string_view TestLevelName(TestLevel level);  // of kDeclared: empty

// The program of a world, z[t+1] = step(z[t], u[t]; theta).
struct Program {
  std::string name;
  std::vector<Value> values;
  std::vector<Input> inputs;  // states first, in the order in which regions take and yield them
  Region initial;             // optional (yields empty: none): z[0] from the states sent; no args
  Region step;                // no args; yields the next state in the order of the state inputs
  std::vector<Export> exports;
  std::vector<Objective> objectives;
  TestLevel level = TestLevel::kDeclared;
  bool HasInitial() const { return !initial.yields.empty(); }

  const Value& operator[](ValueId id) const { return values[Index(id)]; }
  Value& operator[](ValueId id) { return values[Index(id)]; }
  ValueId AddValue(Type type, std::string value_name = "");
  // Whether it is a value at all, and of type real.
  bool IsReal(ValueId id) const {
    return id != ValueId::kNone && (*this)[id].type.element == ElementType::kReal;
  }
  const Input* FindInput(InputKind kind, std::string_view input_name) const;
  std::vector<int32_t> InputsOf(InputKind kind) const;  // indices, ascending
  const Objective* FindObjective(std::string_view objective_name) const;
};

enum class SiteKind : uint8_t { kTermination, kEvent };

// A named place where control flow is decided, in text order.
struct Site {
  std::string name;
  SiteKind kind = SiteKind::kTermination;
  // How many decisions one execution takes per instance: elements of the event, or of the mapped
  // axes around and at the loop; 1 where the instance decides as one.
  int64_t elements = 1;
  int64_t max_iter = 0;                      // termination: the cap
  int32_t number = 0;                        // among the sites of its kind, in text order
  TestKind test_kind = TestKind::kFromFlow;  // of an event, in programs with a level (name_tests.h)
  bool chooses = false;                      // an event whose values are integers: a choice
};
// The number of a site in signatures: the hash of "name"; for occurrence k, "name#k", s(hash ^ k).
uint64_t HashOfSite(std::string_view name);
// "name" of both.
std::string_view BaseOfSite(std::string_view name);
// Reports its visits to `budget` (pass_budget.h).
class PassBudget;
std::vector<Site> SitesOf(const Program& program, PassBudget* budget = nullptr);
size_t CountOf(const std::vector<Site>& sites, SiteKind kind);

// How many of the states are real.
size_t RealStates(const Program& program);

}  // namespace simgrad::sim
