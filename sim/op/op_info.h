// The table of operations: one entry (OpInfo) holds everything that is known of an operation.
//
// An entry is a constant `op::kName` in a file of this folder; operations.inc lists them. Verifier,
// printer, differentiation, the reference executor, the messages, docs/programs.md, the Python
// builder and the tests read the table; docs/adding-an-operation.md says how to add to it. An entry
// that lacks what its kind needs does not compile; a listed operation without an entry does not
// link.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/op/arithmetic_counter.h"
#include "sim/op/array.h"
#include "sim/op/attribute.h"
#include "sim/op/opcode.h"
#include "sim/program/program.h"
#include "sim/work_meter.h"

namespace simgrad::sim {

struct NumericalProgram;
class VjpRule;
class ExpansionWriter;
class Lowering;

// Families of operations.
enum class OpClass : uint8_t {
  kElementwise,  // equal shapes; the result has the operands' type
  kCompare,      // equal types; the result is a bool of that shape
  kPredicate,    // of one real, without a threshold: a bool of its shape
  kLogic,        // bools, and bits of integers; the result has the operands' type
  kChoice,       // select
  kShape,
  kReduction,
  kIndexing,  // at places that are computed
  kLinear,    // linear algebra
  kPrecision,
  kConstant,  // literals and draws
  kControl,
  kAdjoint,
};

// The operands by name: "a, b". "a, b?": the last may be left out; "a, ...": any number more.
struct Operands {
  constexpr Operands(const char* text) : names(text) {  // NOLINT: entries read better without it
    least = names.empty() ? 0 : 1;
    for (char c : names) least += c == ',' ? 1 : 0;
    most = least;
    if (names.ends_with('?')) --least;
    if (names.ends_with("...")) {
      --least;
      most = -1;
    }
  }
  std::string_view names;
  int least = 0;
  int most = 0;  // -1: any number
  constexpr bool IsFixed() const { return least == most; }
};

// The element type of the result.
enum class Result : uint8_t {
  kOperand,  // that of the last operand
  kBool,
  kI32,
  kDeclared,  // what the program says it is
};

// Asks whether a non-finite element of one operand always makes the result non-finite.
struct Carriage {
  const Program& program;
  const Op& op;
  size_t operand;
  Overflow overflow;  // in force
  ValueId where;      // of what gives the operand
};

// How finite operands can give a non-finite result, as a birth certificate names it.
enum class Birth : uint8_t {
  kNever,         // finite operands give finite results
  kArithmetic,    // NaN: invalid; infinite: a division by zero, or overflow
  kAccumulation,  // overflow, also where the result is NaN
  kConversion,
};

// The presence of an operand's cotangent, given that the result's is present.
enum class Passage : uint8_t {
  kNone,    // nowhere: no cotangent passes
  kSame,    // never, always or masked as the result's
  kMasked,  // behind a mask
};

// How an operation is differentiated; derived by Complete.
enum class Derivative : uint8_t {
  kRule,     // by `vjp`
  kNone,     // piecewise constant, or cut: no cotangent passes
  kLoop,     // by loop_vjp.h
  kAdjoint,  // stands in adjoint programs only, which are not differentiated
};

// The decisions of reals inside an operation; program/choices.h writes the test of each.
enum class Chooses : uint8_t {
  kNothing,
  kPlaces,   // along the one axis of `axes`: which elements lead
  kPivots,   // of a matrix: rows, or whether it has a factor
  kInteger,  // of a real: which integer or bool it gives
};

// How the scale of a compared value follows from the operation that made it
// (program/compared_scale.h).
enum class ScaleRule : uint8_t {
  kOwn,       // its magnitude alone counts
  kSum,       // of add and sub: the magnitudes of the operands
  kFusedSum,  // of fma
  kProduct,
  kQuotient,
  kRoot,
  kChoice,  // of select
  kSame,    // the scale of its operand
};

// The range from which random tests draw an operand: derivatives exist, results stay moderate.
enum class Domain : uint8_t {
  kAll,
  kPositive,
  kBounded,
  kInside,  // of (-1, 1), away from its ends
};

using Arrays = std::span<const Array* const>;
using Types = absl::StatusOr<std::vector<Type>>;

// One operation of the reference executor.
struct Evaluation {
  const NumericalProgram& numerical;
  const Program& program;
  const Op& op;
  Arrays operands;
  WorkMeter& meter;
  ArithmeticCounter* arithmetic = nullptr;  // null: not counted
  // The work that follows is for element `element` of the result.
  void Begin(size_t element) const {
    if (arithmetic != nullptr) arithmetic->Begin(element);
  }
  const Value& result() const { return program[op.results[0]]; }
};

// A function that an entry may leave out. (A flag says whether it is given: under the sanitizers,
// GCC 12 cannot compare the address of a function with null at compile time.)
template <class Signature>
class Rule;
template <class R, class... A>
class Rule<R(A...)> {
 public:
  constexpr Rule() = default;
  template <std::convertible_to<R (*)(A...)> F>
  constexpr Rule(F function) : function_(function), is_given_(true) {}  // NOLINT: reads better
  R operator()(A... arguments) const { return function_(std::forward<A>(arguments)...); }
  constexpr bool operator==(std::nullptr_t) const { return !is_given_; }

 private:
  R (*function_)(A...) = nullptr;
  bool is_given_ = false;
};

struct OpInfo {
  std::string_view name;
  std::string_view doc;  // one sentence: docs/programs.md and the Python builder
  OpClass op_class = OpClass::kElementwise;
  Operands operands;
  AttributeSet attributes = {};
  bool in_worlds = true;  // false: in adjoint programs only
  Result result = Result::kOperand;

  // Types of the results for operands and attributes; errors name a field of the operation. Null:
  // ElementwiseTypes, or an operation with regions.
  Rule<Types(const Program& program, const Op& op)> types = {};

  // Element-operations of one execution, for limits and admission. Left out: the elements of the
  // largest operand or result.
  Rule<int64_t(const Program& program, const Op& op)> work = {};

  // Non-finite values (sim/program/detect.h and the birth certificates).
  Birth birth = Birth::kNever;
  bool propagates = false;                            // the same of every operand
  Rule<bool(const Carriage& carriage)> carries = {};  // where it depends; else `propagates`
  Rule<bool(std::span<const double> operands)> divides_by_zero = {};

  // The operands that a birth certificate shows for an element of the result; default: those at it.
  Rule<std::vector<double>(const Program& program, const Op& op, Arrays operands,
                           const Array& result, size_t element)>
      made_of = {};

  // Elementwise: a result that is zero or subnormal does not fit its format if its first two operands
  // are neither zero nor infinite.
  bool underflows = false;

  Chooses chooses = Chooses::kNothing;
  ScaleRule scale = ScaleRule::kOwn;

  Derivative derivative = Derivative::kNone;
  Rule<Passage(const Program& program, const Op& op, size_t operand)> passage = {};  // else kSame
  Rule<void(VjpRule& rule)> vjp = {};
  bool smooth = true;  // has no jumps, cuts or roundings
  Domain domains[3] = {Domain::kAll, Domain::kAll, Domain::kAll};

  // Composites only: rewrites the operation into others. Lowering does that first, so a composite
  // needs neither a derivative nor an evaluation.
  Rule<void(ExpansionWriter& writer)> expand = {};

  // The result from the operands, literally; every NaN is canonical. Elementwise operations give a
  // number, on integers in two's complement before it wraps to the width of the type; others an
  // array. None: the reference executor runs it among the regions.
  Rule<double(Format format, double a, double b, double c)> on_reals = {};
  Rule<int64_t(int64_t a, int64_t b)> on_integers = {};
  Rule<Array(const Evaluation& e)> evaluate = {};

  // As loops over elements, for executors that compile (lowering.h). Left out: the default of its
  // family; shape, indexing and linear operations have none.
  Rule<void(Lowering& lowering)> lower = {};

  constexpr bool can_create() const { return birth != Birth::kNever; }
};

// The operands' common type: of reals, and of integers where the operation has them.
Types ElementwiseTypes(const Program& program, const Op& op);

// Fills in the fields of an entry that follow from others. An entry that lacks what its kind needs
// does not compile.
consteval OpInfo Complete(OpInfo info) {
  const bool elementwise = info.op_class == OpClass::kElementwise;
  const bool runs_among_regions =
      info.op_class == OpClass::kControl || info.op_class == OpClass::kAdjoint;
  if (elementwise && info.types == nullptr) info.types = ElementwiseTypes;
  if (info.vjp != nullptr) info.derivative = Derivative::kRule;
  if (info.op_class == OpClass::kAdjoint) info.derivative = Derivative::kAdjoint;
  if (info.op_class == OpClass::kControl && info.types == nullptr) {
    info.derivative = Derivative::kLoop;
  }
  if (info.name.empty() || info.doc.empty()) throw "an operation has a name and a sentence";
  if (info.types == nullptr && !runs_among_regions) throw "an operation has a rule for its type";
  const bool evaluates = info.on_reals != nullptr || info.evaluate != nullptr;
  if (info.expand != nullptr) {
    if (info.vjp != nullptr || evaluates) throw "a composite is expanded, and needs nothing else";
    return info;
  }
  if (elementwise != (info.on_reals != nullptr)) throw "an elementwise operation gives a number";
  if (!evaluates && !runs_among_regions) throw "an operation has an evaluation";
  if (elementwise && info.smooth && info.vjp == nullptr) throw "a smooth operation has a vjp";
  const bool has_default_plan = info.op_class != OpClass::kShape &&
                                info.op_class != OpClass::kIndexing &&
                                info.op_class != OpClass::kLinear;
  if (!has_default_plan && info.lower == nullptr) throw "its family has no default: it has `lower`";
  return info;
}

const OpInfo& InfoOf(OpCode code);
std::optional<OpCode> OpFromName(std::string_view name);

// Ends the process, because an executor met an operation that it has no rule for. The equality
// tests draw every operation of the table, so none is met in service.
[[noreturn]] void HasNoRule(OpCode code, std::string_view executor);

// In the order of the table.
template <class F>
void EachOp(const F& f) {
  for (int i = 0; i < kOpCodeCount; ++i) f(static_cast<OpCode>(i), InfoOf(static_cast<OpCode>(i)));
}

namespace op {
#define SIMGRAD_OPERATION(Name) extern const OpInfo k##Name;
#include "sim/op/operations.inc"
#undef SIMGRAD_OPERATION
}  // namespace op

// Types of the results that `op` must have for its operands and attributes. Does not look at
// op.results, except that literal, convert and tape take their type from it. Errors:
// INVALID_ARGUMENT with a field inside the operation. Not for operations with regions.
Types ResultTypes(const Program& program, const Op& op);

// Evaluates an operation that reads only its operands.
Array Evaluate(const Evaluation& e);

}  // namespace simgrad::sim
