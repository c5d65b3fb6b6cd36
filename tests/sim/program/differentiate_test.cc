// Gradients of random f64 programs against central differences.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/op/op_info.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/linear_coverage.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/planted_faults.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim {
namespace {

using equality::Case;
using equality::Observe;
using equality::Observed;
using equality::Random;

// What is differentiated, summed over all instances, with the path that was taken.
struct Evaluated {
  double value = 0.0;
  uint64_t path = 0;
  bool ok = true;
};

// cotangent * value over entries [instance][entries][count], `from` holding one entry less where
// z[0] stands apart.
double Inner(const std::vector<double>& cotangent, const Tensor& from, int64_t rows,
             int64_t skipped) {
  double sum = 0.0;
  if (cotangent.empty()) return sum;
  const int64_t given = static_cast<int64_t>(cotangent.size()) / rows;
  const int64_t held = from.count() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < held; ++i) {
      sum += cotangent[static_cast<size_t>(row * given + skipped + i)] * from.Get(row * held + i);
    }
  }
  return sum;
}

// The inner products of what was run with the cotangents that the caller sends.
double SentProducts(const Batch& batch, const Observed& seen) {
  const int64_t n = batch.instances;
  double sum = 0.0;
  for (size_t k = 0; k < seen.result.final_states.size(); ++k) {
    sum += Inner(batch.cotangents.final_state[k], seen.result.final_states[k], n, 0);
    const std::vector<double>& along = batch.cotangents.trajectory_state[k];
    sum += Inner(along, seen.first_states[k], n, 0);
    sum += Inner(along, seen.states[k], n, seen.first_states[k].count() / n);
  }
  for (size_t k = 0; k < batch.cotangents.trajectory_export.size(); ++k) {
    sum += Inner(batch.cotangents.trajectory_export[k], seen.exports[k], n, 0);
  }
  return sum;
}

Evaluated Evaluate(const Work& work, size_t input, const std::vector<double>& direction, double h) {
  Work moved = work;
  moved.gradient.reset();
  Tensor& tensor = moved.batch.inputs[input].tensor;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    tensor.Set(i, tensor.Get(i) + h * direction[static_cast<size_t>(i)]);
  }
  const auto seen = Observe(MakeReferenceExecutor(), moved);
  EXPECT_TRUE(seen.ok()) << seen.status();
  Evaluated result;
  for (double value : seen->result.values) result.value += value;
  result.value += SentProducts(work.batch, *seen);
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
  std::string wrong;                 // the last wrong one
  std::map<OpCode, int> operations;  // in how many checked programs
  equality::LinearCoverage linear;
};

void CollectOps(const Region& region, std::set<OpCode>& codes) {
  for (const Op& op : region.ops) {
    codes.insert(op.code);
    for (const Region& inside : op.regions) CollectOps(inside, codes);
  }
}

// Compares every slope; how many are wrong.
int CheckCase(const Case& made, const Observed& seen, Tally& tally) {
  int wrong = 0;
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
    const double tolerance =
        expected.error + 1e-6 * std::abs(expected.slope) + 1e-8 * (1.0 + expected.value);
    if (std::abs(along - expected.slope) <= tolerance) continue;
    ++wrong;
    tally.wrong =
        absl::StrCat("seed ", made.seed, ", input ", made.world.inputs[input].name, ": ", along,
                     " against ", expected.slope, "\n", made.work.batch.program->text);
  }
  if (!checked) return wrong;
  std::set<OpCode> codes;
  CollectOps(made.work.batch.program->program.step, codes);
  for (OpCode code : codes) ++tally.operations[code];
  tally.linear.Add(*made.work.batch.program);
  return wrong;
}

// Whether any of the cases shows that the adjoint of this executor is wrong.
bool ShowsWrongAdjoint(const equality::PlantedFault& fault) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const absl::StatusOr<Case> made = equality::MakeCase(seed, {.smooth = true});
    if (!made.ok()) return false;
    const auto faulty = fault.plant(MakeReferenceExecutor(), made->work.batch);
    if (faulty == nullptr) continue;
    const absl::StatusOr<Observed> seen = Observe(faulty, made->work);
    Tally tally;
    if (seen.ok() && CheckCase(*made, *seen, tally) > 0) return true;
  }
  return false;
}

TEST(DifferentiateTest, CentralDifferencesSeeAWrongAdjoint) {
  int seen = 0;
  for (const equality::PlantedFault& fault : equality::PlantedFaults()) {
    const bool of_adjoint = fault.name == "merge adds to an absent cotangent" ||
                            fault.name == "accumulate ignores its mask";
    if (of_adjoint && ShowsWrongAdjoint(fault)) ++seen;
  }
  EXPECT_EQ(seen, 2);
}

// Sanitizers see a sample, too few for the minima.
constexpr uint64_t kRandomPrograms = kSanitized ? 20 : 400;

TEST(DifferentiateTest, GradientsOfRandomProgramsAgreeWithCentralDifferences) {
  Tally tally;
  for (uint64_t seed = 1; seed <= kRandomPrograms && !HasFailure(); ++seed) {
    const absl::StatusOr<Case> made = equality::MakeCase(seed, {.smooth = true});
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    const absl::StatusOr<Observed> seen = Observe(MakeReferenceExecutor(), made->work);
    ASSERT_TRUE(seen.ok()) << "seed " << seed << ": " << seen.status();
    EXPECT_EQ(CheckCase(*made, *seen, tally), 0) << tally.wrong;
  }
  std::cout << tally.checked << " slopes compared, " << tally.skipped << " at a kink\n";
  if (kRandomPrograms < 400) return;
  EXPECT_GT(tally.checked, 1000);
  EXPECT_LT(tally.skipped, tally.checked / 10);
  EachOp([&](OpCode code, const OpInfo& info) {
    const bool has = info.derivative == Derivative::kRule || info.derivative == Derivative::kLoop;
    if (!has || !info.in_worlds || !info.smooth || info.expand != nullptr) return;
    EXPECT_GE(tally.operations[code], 10) << info.name;
  });
  EXPECT_GE(tally.linear.batched_cholesky_vjp, 5);
  EXPECT_GE(tally.linear.batched_triangular_vjp, 5);
  EXPECT_GE(tally.linear.tall_lu, 5);
  EXPECT_GE(tally.linear.wide_lu, 5);
}

}  // namespace
}  // namespace simgrad::sim
