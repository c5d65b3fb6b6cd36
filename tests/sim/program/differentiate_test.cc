// Gradients of random f64 programs against central differences.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim {
namespace {

using equality::Case;
using equality::Observe;
using equality::Observed;
using equality::Random;

// Sum of the values of all instances, with the path that was taken.
struct Evaluated {
  double value = 0.0;
  uint64_t path = 0;
  bool ok = true;
};

Evaluated Evaluate(const Work& work, size_t input, const std::vector<double>& direction,
                   double h) {
  Work moved = work;
  moved.gradient.reset();
  moved.options = {};
  Tensor& tensor = moved.batch.inputs[input].tensor;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    tensor.Set(i, tensor.Get(i) + h * direction[static_cast<size_t>(i)]);
  }
  const auto seen = Observe(MakeReferenceExecutor(), moved);
  EXPECT_TRUE(seen.ok()) << seen.status();
  Evaluated result;
  for (double value : seen->result.values) result.value += value;
  result.path = seen->result.batch_path_signature;
  for (const InstanceHealth& health : seen->result.health) result.ok = result.ok && health.ok;
  return result;
}

// Central differences at h and h / 2 along a direction; no value where the path differs or the two
// disagree, which is what a kink or a jump of the function looks like.
struct Difference {
  bool usable = false;
  double slope = 0.0;  // Richardson: (4 D(h/2) - D(h)) / 3
  double error = 0.0;  // |D(h) - D(h/2)|
  double value = 0.0;
};

Difference DifferenceAlong(const Work& work, size_t input, const std::vector<double>& direction) {
  constexpr double kStep = 1e-5;
  const Evaluated here = Evaluate(work, input, direction, 0.0);
  bool usable = here.ok;
  const auto slope = [&](double h) {
    const Evaluated up = Evaluate(work, input, direction, h);
    const Evaluated down = Evaluate(work, input, direction, -h);
    usable = usable && up.ok && down.ok && up.path == here.path && down.path == here.path;
    return (up.value - down.value) / (2.0 * h);
  };
  const double wide = slope(kStep);
  const double narrow = slope(kStep / 2.0);
  Difference result;
  result.slope = (4.0 * narrow - wide) / 3.0;
  result.error = std::abs(wide - narrow);
  result.value = std::abs(here.value);
  result.usable = usable && result.error <= 1e-5 * (1.0 + std::abs(result.slope) + result.value);
  return result;
}

struct Tally {
  int checked = 0;
  int skipped = 0;
  std::map<OpCode, int> operations;  // in how many checked programs
};

void CollectOps(const Region& region, std::set<OpCode>& codes) {
  for (const Op& op : region.ops) {
    codes.insert(op.code);
    for (const Region& inside : op.regions) CollectOps(inside, codes);
  }
}

void CheckCase(const Case& made, const Observed& seen, Tally& tally) {
  Random random(made.seed);
  bool checked = false;
  for (const InputGradient& gradient : seen.result.gradients) {
    const size_t input = static_cast<size_t>(gradient.input);
    const int64_t count = made.work.batch.inputs[input].tensor.count();
    if (count == 0) continue;
    std::vector<double> direction;
    double along = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      direction.push_back(random.Uniform(-1.0, 1.0));
      along += direction.back() * gradient.gradient.Get(i);
    }
    const Difference expected = DifferenceAlong(made.work, input, direction);
    if (!expected.usable) {
      ++tally.skipped;
      continue;
    }
    ++tally.checked;
    checked = true;
    // Richardson leaves O(h^4) of truncation, far below |D(h) - D(h/2)|, which is 3/4 of that of
    // D(h). Rounding of the value, a few hundred ulps of what is summed, is divided by h = 5e-6 and
    // amplified by (4 + 1) / 3: 1e-14 / 5e-6 * 5 / 3 < 1e-8 of it.
    const double tolerance = expected.error + 1e-6 * std::abs(expected.slope) +
                             1e-8 * (1.0 + expected.value);
    EXPECT_NEAR(along, expected.slope, tolerance)
        << "seed " << made.seed << ", input " << made.world.inputs[input].name << "\n"
        << made.work.batch.program->text;
  }
  if (!checked) return;
  std::set<OpCode> codes;
  CollectOps(made.work.batch.program->program.step, codes);
  for (OpCode code : codes) ++tally.operations[code];
}

TEST(DifferentiateTest, GradientsOfRandomProgramsAgreeWithCentralDifferences) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 400 && !HasFailure(); ++seed) {
    const absl::StatusOr<Case> made = equality::MakeCase(seed, {.smooth = true});
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    const absl::StatusOr<Observed> seen = Observe(MakeReferenceExecutor(), made->work);
    ASSERT_TRUE(seen.ok()) << "seed " << seed << ": " << seen.status();
    CheckCase(*made, *seen, tally);
  }
  std::cout << tally.checked << " slopes compared, " << tally.skipped << " at a kink\n";
  EXPECT_GT(tally.checked, 1000);
  EXPECT_LT(tally.skipped, tally.checked / 10);
  for (OpCode code :
       {OpCode::kAdd,    OpCode::kSub,       OpCode::kMul,        OpCode::kDiv,
        OpCode::kNeg,    OpCode::kAbs,       OpCode::kMin,        OpCode::kMax,
        OpCode::kFma,    OpCode::kSqrt,      OpCode::kMod,        OpCode::kExp,
        OpCode::kLog,    OpCode::kLog1p,     OpCode::kExpm1,      OpCode::kSin,
        OpCode::kCos,    OpCode::kAtan2,     OpCode::kTanh,       OpCode::kSigmoid,
        OpCode::kPow,    OpCode::kSoftplus,  OpCode::kSelect,     OpCode::kBroadcast,
        OpCode::kSlice,  OpCode::kReshape,   OpCode::kConcat,     OpCode::kSum,
        OpCode::kCumsum, OpCode::kReduceMax, OpCode::kReduceMin, OpCode::kWhile,
        OpCode::kFor}) {
    EXPECT_GE(tally.operations[code], 10) << InfoOf(code).name;
  }
}

}  // namespace
}  // namespace simgrad::sim
