// What the planter plants and the witness knows, against the table of operations: an operation that
// is new there and has no rule here is named.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/op/op_info.h"
#include "tests/sim/nonfinite/planted.h"
#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {
namespace {

using sim::Birth;
using sim::Derivative;
using sim::NonFiniteClass;
using sim::OpInfo;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Bears a non-finite value, and cannot be planted: why.
const std::map<std::string, std::string>& NotPlanted() {
  static const auto* const kReasons = new std::map<std::string, std::string>{
      {"cholesky_pivots", "it stands in lowered programs, behind the factor, which bears it first"},
      {"literal", "beyond its format it is born in every instance, not in one"},
      {"lu_pivots", "it stands in lowered programs, and what it gives the factors hold"},
      {"lu_solve", "its substitutions are those of triangular_solve"},
      {"softplus", "of the largest number it is that number, so no finite number overflows"},
  };
  return *kReasons;
}

std::map<std::string, std::set<NonFiniteClass>> PlantedClasses() {
  std::map<std::string, std::set<NonFiniteClass>> classes;
  for (const auto& failures : {ForwardFailures(), AdjointFailures()}) {
    for (const Failure& failure : failures) {
      classes[failure.operation].insert(failure.non_finite_class);
    }
  }
  return classes;
}

TEST(Planter, PlantsInEveryOperationThatCanBearANonFiniteValue) {
  const auto classes = PlantedClasses();
  sim::EachOp([&](sim::OpCode, const OpInfo& info) {
    const std::string name(info.name);
    const bool planted = classes.count(name) != 0;
    EXPECT_EQ(planted, info.can_create() && NotPlanted().count(name) == 0) << name;
  });
  for (const auto& [name, reason] : NotPlanted()) {
    EXPECT_TRUE(InfoOf(*sim::OpFromName(name)).can_create()) << name << ": " << reason;
  }
}

TEST(Planter, ExpectsTheClassesThatTheTableAllows) {
  for (const auto& [name, classes] : PlantedClasses()) {
    const Birth birth = InfoOf(*sim::OpFromName(name)).birth;
    for (const NonFiniteClass each : classes) {
      EXPECT_EQ(each == NonFiniteClass::kConversion, birth == Birth::kConversion) << name;
      if (birth != Birth::kAccumulation) continue;
      EXPECT_EQ(each, NonFiniteClass::kOverflow) << name;
    }
  }
}

// Numbers to a number: what a composite is made of stands in the table too.
bool IsOfNumbers(const OpInfo& info) {
  return info.op_class == sim::OpClass::kElementwise && info.expand == nullptr;
}

TEST(Witness, ComputesEveryOperationOfNumbers) {
  sim::EachOp([](sim::OpCode, const OpInfo& info) {
    if (!IsOfNumbers(info)) return;
    EXPECT_TRUE(Computes(std::string(info.name))) << info.name;
  });
}

TEST(Witness, ReversesEveryOperationOfNumbersThatHasADerivativeAndBlocksTheOthers) {
  sim::EachOp([](sim::OpCode, const OpInfo& info) {
    if (!IsOfNumbers(info)) return;
    const std::string name(info.name);
    EXPECT_EQ(Witness::Reverses(name), info.derivative == Derivative::kRule) << name;
    EXPECT_EQ(Witness::Blocks(name), info.derivative == Derivative::kNone) << name;
  });
}

// An operation of another family that stands in recipes: its word there, and why the witness has no
// rule for its cotangent though the table has one; empty: it has.
struct OfRecipes {
  std::string word;
  std::string no_rule;
};

const std::map<std::string, OfRecipes>& OtherFamilies() {
  const std::string no_cotangent = "it is planted on the trigger, which has no gradient";
  static const auto* const kOthers = new std::map<std::string, OfRecipes>{
      {"broadcast", {"broadcast", ""}},
      {"cast", {"cast", ""}},
      {"cholesky", {"cholesky", no_cotangent}},
      {"convert", {"real", ""}},
      {"cumsum", {"cumsum", no_cotangent}},
      {"event", {"event", ""}},
      {"literal", {"literal", ""}},
      {"lu", {"lu", no_cotangent}},
      {"matmul", {"matmul", no_cotangent}},
      {"norm2", {"norm2", no_cotangent}},
      {"prod", {"product of all", ""}},
      {"scatter", {"scatter", no_cotangent}},
      {"select", {"select", ""}},
      {"slice", {"slice", ""}},
      {"sum", {"total", ""}},
      {"triangular_solve", {"triangular_solve", no_cotangent}},
  };
  return *kOthers;
}

TEST(Witness, ReversesOtherFamiliesWhereTheTableHasARuleAndBlocksTheOthers) {
  for (const auto& [name, of] : OtherFamilies()) {
    const Derivative derivative = InfoOf(*sim::OpFromName(name)).derivative;
    const bool has_rule = derivative == Derivative::kRule;
    EXPECT_TRUE(has_rule || of.no_rule.empty()) << name;
    EXPECT_EQ(Witness::Reverses(of.word), has_rule && of.no_rule.empty()) << name;
    EXPECT_EQ(Witness::Blocks(of.word), derivative == Derivative::kNone) << name;
  }
}

TEST(Witness, KnowsEveryFamilyThatIsPlantedForward) {
  for (const Failure& failure : ForwardFailures()) {
    const OpInfo& info = InfoOf(*sim::OpFromName(failure.operation));
    EXPECT_TRUE(IsOfNumbers(info) || OtherFamilies().count(failure.operation) != 0)
        << failure.operation;
  }
}

// Of finite operands; the table says which of them are a division by zero.
TEST(Witness, NamesTheClassesThatTheTableGivesToWhatIsPlanted) {
  for (const auto& [name, classes] : PlantedClasses()) {
    const OpInfo& info = InfoOf(*sim::OpFromName(name));
    const bool converts = info.birth == Birth::kConversion;
    const bool adds_up = info.birth == Birth::kAccumulation;
    for (const double a : {-1.0, -0.0, 0.0, 0.5, 1.0}) {
      for (const double b : {-1.0, -0.0, 0.0, 0.5, 1.0}) {
        const std::vector<double> operands = {a, b, 1.0};
        const bool divides = info.divides_by_zero != nullptr && info.divides_by_zero(operands);
        EXPECT_EQ(ClassOf(name, operands, -kInfinity), converts  ? NonFiniteClass::kConversion
                                                       : divides ? NonFiniteClass::kDivideByZero
                                                                 : NonFiniteClass::kOverflow)
            << name << " of " << a << " and " << b;
        EXPECT_EQ(ClassOf(name, operands, kNaN), converts  ? NonFiniteClass::kConversion
                                                 : adds_up ? NonFiniteClass::kOverflow
                                                           : NonFiniteClass::kInvalid)
            << name << " of " << a << " and " << b;
        EXPECT_EQ(ClassOf(name, {a, kInfinity, b}, kNaN), NonFiniteClass::kInput) << name;
      }
    }
  }
}

// Whether the table says that operand k, where it is not finite, makes the result so. Operations of
// numbers tell by the operand alone.
bool Carries(const OpInfo& info, size_t k) {
  static const sim::Program program;
  static const sim::Op op;
  if (info.carries == nullptr) return info.propagates;
  return info.carries({program, op, k, precision::Overflow::kIeee, sim::ValueId::kNone});
}

const std::vector<double>& NotFinite() {
  static const std::vector<double> kNumbers = {kInfinity, -kInfinity, kNaN};
  return kNumbers;
}

const std::vector<double>& Numbers() {
  static const std::vector<double> kNumbers = {-2.5, -0.0,      0.0,        0.5, 1.0,
                                               3.0,  kInfinity, -kInfinity, kNaN};
  return kNumbers;
}

TEST(Witness, FindsNothingFiniteBehindWhatTheTableSaysIsCarried) {
  int carried = 0;
  sim::EachOp([&](sim::OpCode, const OpInfo& info) {
    if (!IsOfNumbers(info)) return;
    const std::string name(info.name);
    const size_t count = static_cast<size_t>(info.operands.least);
    for (size_t k = 0; k < count; ++k) {
      if (!Carries(info, k)) continue;
      ++carried;
      for (const double bad : NotFinite()) {
        for (const double x : Numbers()) {
          for (const double y : Numbers()) {
            std::vector<double> in = {x, y, x};
            in.resize(count);
            in[k] = bad;
            for (const Format format : {Format::kF64, Format::kF32, Format::kF16}) {
              EXPECT_FALSE(std::isfinite(Compute(name, format, in)))
                  << name << ", operand " << k << " " << bad << ", others " << x << " and " << y;
            }
          }
        }
      }
    }
  });
  EXPECT_GT(carried, 20);
}

TEST(Witness, FindsNothingFiniteInSumsAndProductsThatTheTableSaysCarry) {
  for (const char* const name : {"sum", "prod", "cumsum", "exclusive_prod", "cast"}) {
    const OpInfo& info = InfoOf(*sim::OpFromName(name));
    const bool all = name != std::string("exclusive_prod");  // whose first result reads nothing
    EXPECT_EQ(Carries(info, 0), all) << name;
  }
  for (const double bad : NotFinite()) {
    for (const double other : Numbers()) {
      for (const Order order : {Order::kPairwise, Order::kSequential, Order::kReversed}) {
        EXPECT_FALSE(std::isfinite(SumOf({other, bad, 0.0}, order, Format::kF32, Format::kF32)));
      }
      EXPECT_FALSE(std::isfinite(ProductOf({other, bad, 0.0}, Format::kF32)));
    }
    for (int i = 0; i < precision::kFormatCount; ++i) {
      EXPECT_FALSE(std::isfinite(Nearest(static_cast<Format>(i), bad)));
    }
  }
}

TEST(Witness, ComputesWhatThePlantsOfTheTableDoNotReach) {
  EXPECT_EQ(Compute("round", Format::kF64, {2.5}), 2.0);
  EXPECT_EQ(Compute("round", Format::kF64, {-3.5}), -4.0);
  EXPECT_EQ(Compute("softplus", Format::kF32, {0.0}), static_cast<double>(0x1.62e43p-1f));
}

}  // namespace
}  // namespace simgrad::nonfinite
