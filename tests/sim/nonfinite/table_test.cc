// What the planter plants and the witness knows, against the table of operations: an operation that
// is new there and has no rule here is named.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "sim/op/op_info.h"
#include "tests/sim/nonfinite/planted.h"

namespace simgrad::nonfinite {
namespace {

using sim::Birth;
using sim::Derivative;
using sim::NonFiniteClass;
using sim::OpInfo;

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

TEST(Witness, ComputesWhatThePlantsOfTheTableDoNotReach) {
  EXPECT_EQ(Compute("round", Format::kF64, {2.5}), 2.0);
  EXPECT_EQ(Compute("round", Format::kF64, {-3.5}), -4.0);
  EXPECT_EQ(Compute("softplus", Format::kF32, {0.0}), static_cast<double>(0x1.62e43p-1f));
}

}  // namespace
}  // namespace simgrad::nonfinite
