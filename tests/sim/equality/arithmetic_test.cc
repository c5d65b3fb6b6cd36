// What rounding did inside operations, on random programs, policies and inputs: instances add up, and
// asking changes nothing.
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "sim/backend/reference/count_arithmetic.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/op/op_info.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/equality/single_row.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = kSanitized ? 10 : 100;

using Rows = std::vector<OperationArithmetic>;
using Key = std::tuple<Role, std::string, std::string, std::string>;
using Counts = std::map<Key, ArithmeticCounts>;

void AddTo(Counts& sums, const Rows& rows) {
  for (const OperationArithmetic& row : rows) {
    sums[{row.role, row.operation, row.label, row.site}].Merge(row.counts);
  }
}

Counts CountsOf(const Rows& rows) {
  Counts counts;
  AddTo(counts, rows);
  return counts;
}

Arithmetic CountOf(const Work& work) {
  const auto counted =
      CountArithmetic(work.batch, {.instances = work.batch.instances,
                                   .stride = work.options.stride,
                                   .adjoint = work.gradient.has_value(),
                                   .seed_scale = work.batch.program->policy.loss_scale});
  EXPECT_TRUE(counted.ok()) << counted.status();
  return counted.value_or(Arithmetic{});
}

// Roles stand first, and are the sums of their operations.
void ExpectWhole(const Rows& rows) {
  Counts roles, sums;
  for (const OperationArithmetic& row : rows) {
    EXPECT_LE(row.counts.absorbed, row.counts.additions);
    if (row.operation.empty()) {
      EXPECT_TRUE(sums.empty());
      EXPECT_GT(row.counts.results, 0u);
      roles[{row.role, "", "", ""}] = row.counts;
    } else {
      sums[{row.role, "", "", ""}].Merge(row.counts);
    }
  }
  if (rows.size() - roles.size() < kMostArithmeticRows) {
    EXPECT_TRUE(roles == sums);
  }
}

// What the cases together show.
struct Seen {
  std::set<std::string> operations;
  ArithmeticCounts forward, adjoint;
  uint64_t gradients = 0;

  void Add(const Arithmetic& counted) {
    for (const auto& [rows, sum] :
         {std::pair(&counted.forward, &forward), std::pair(&counted.adjoint, &adjoint)}) {
      for (const OperationArithmetic& row : *rows) {
        if (row.operation.empty()) sum->Merge(row.counts);
        operations.insert(row.operation);
      }
    }
  }
};

TEST(RandomArithmetic, InstancesAddUpAndNothingElseChanges) {
  Seen seen;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    const auto made = MakeCase(seed);
    ASSERT_TRUE(made.ok()) << made.status();
    Work work = made->work;
    work.options.stride = static_cast<int32_t>(1 + seed % 3);
    const Arithmetic all = CountOf(work);
    ExpectWhole(all.forward);
    ExpectWhole(all.adjoint);
    seen.Add(all);
    seen.gradients += work.gradient ? 1 : 0;
    Counts forward, adjoint;
    for (int64_t row = 0; row < work.batch.instances; ++row) {
      const Arithmetic alone = CountOf(AloneWork(work, row));
      AddTo(forward, alone.forward);
      AddTo(adjoint, alone.adjoint);
    }
    EXPECT_TRUE(CountsOf(all.forward) == forward);
    EXPECT_TRUE(CountsOf(all.adjoint) == adjoint);
    if (seed % 4 != 0) continue;
    const auto unasked = Observe(MakeReferenceExecutor(), work);
    work.arithmetic_instances = work.batch.instances;
    const auto asked = Observe(MakeReferenceExecutor(), work);
    ASSERT_TRUE(unasked.ok() && asked.ok()) << unasked.status() << asked.status();
    const auto difference = FirstDifference(*unasked, *asked);
    EXPECT_FALSE(difference) << *difference;
    EXPECT_TRUE(asked->result.arithmetic == all);
    EXPECT_TRUE(unasked->result.arithmetic == Arithmetic{});
  }
  std::set<std::string> missing;
  EachOp([&](OpCode, const OpInfo& info) {
    if (info.op_class != OpClass::kElementwise || info.expand != nullptr) return;
    if (info.on_reals == nullptr || seen.operations.contains(std::string(info.name))) return;
    missing.insert(std::string(info.name));
  });
  for (const char* name : {"sum", "cumsum", "prod", "matmul", "scatter", "cast", "tape", "merge2",
                           "accumulate", "cost", "cholesky", "triangular_solve", "lu", "norm2"}) {
    if (!seen.operations.contains(name)) missing.insert(name);
  }
  std::string names;
  for (const std::string& name : missing) names += name + " ";
  std::cout << "gradients " << seen.gradients << ", not met: " << names << "\n";
  if (kSanitized) return;
  EXPECT_LT(missing.size(), 4u) << names;
  EXPECT_GT(seen.gradients, kCases / 4);
  for (const ArithmeticCounts& counts : {seen.forward, seen.adjoint}) {
    EXPECT_GT(counts.underflows, 0u);
    EXPECT_GT(counts.overflows, 0u);
    EXPECT_GT(counts.absorbed, 0u);
  }
}

}  // namespace
}  // namespace simgrad::sim::equality
