// Reductions over the threads of a block give the bits of the reference: all that a world may use
// (`any` belongs to adjoints, which the equality tests run), sizes around the widths of warps and
// blocks, NaN, infinities, zeros of both signs, ties.
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/environment.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using sim::OpCode;

// x stands still; every reduction of it is exported.
absl::StatusOr<sim::Program> Reductions(int64_t elements) {
  sim::Builder b("reductions");
  const sim::Var x = b.State("x", {elements});
  // Of z[t] and not of the state itself: spread over the threads in memory of their own.
  const sim::Var twice = b.Apply(OpCode::kAdd, {x, x});
  for (const auto& [name, code] : {std::pair{"sum", OpCode::kSum},
                                   {"max", OpCode::kReduceMax},
                                   {"min", OpCode::kReduceMin},
                                   {"argmax", OpCode::kArgmax},
                                   {"argmin", OpCode::kArgmin}}) {
    const std::string of = name;
    b.Export(of + "_x", b.Reduce(code, x));
    b.Export(of + "_2x", b.Reduce(code, twice));
  }
  b.SetNext({x});
  return b.Finish();
}

// Mostly ordinary numbers; by `kind` those that make an order or a sign visible.
double NumberOf(std::mt19937_64& random, int64_t kind) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::vector<double>> few = {
      {}, {0.0, -0.0}, {1.0, 1.0, 2.0, 2.0, -0.0}, {inf, -3.0, 1.0}, {inf, -inf}, {nan, 1.0, 5.0}};
  const std::vector<double>& choice = few[static_cast<size_t>(kind) % few.size()];
  if (!choice.empty()) return choice[random() % choice.size()];
  return std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                    static_cast<int>(random() % 60) - 30);
}

sim::Work WorkOn(int64_t elements, precision::Order order) {
  precision::PolicySpec spec;
  precision::RoleOverride change;
  change.order = order;
  spec.roles.push_back({"dynamics", change});
  constexpr int64_t kInstances = 12;
  sim::Work work =
      WorkOf(*LowerForGradient(*Reductions(elements), PolicyOf(spec), ""), kInstances, 1);
  std::mt19937_64 random(static_cast<uint64_t>(elements) + 1);
  sim::Tensor x = sim::Tensor::Zeros(sim::DType::kF32, {kInstances, elements});
  for (int64_t i = 0; i < kInstances * elements; ++i) {
    x.Set(i, NumberOf(random, i / elements));
  }
  Bind(work, sim::InputKind::kState, "x", {x, true, false});
  for (size_t k = 0; k < work.batch.program->program.exports.size(); ++k) {
    work.options.record_exports.push_back(static_cast<int32_t>(k));
  }
  return work;
}

std::vector<int64_t> Sizes() {
  if (IsLong()) return {1, 2, 31, 33, 1000, 4096};
  return {2, 33, 1000};
}

TEST(BlockReductionTest, EveryReductionGivesTheBitsOfTheReferenceInEveryOrder) {
  for (int order = 0; order < precision::kOrderCount; ++order) {
    for (const int64_t elements : Sizes()) {
      const sim::Work work = WorkOn(elements, static_cast<precision::Order>(order));
      const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
      ASSERT_TRUE(expected.ok()) << expected.status();
      for (const int block : {1, 32, 96, 256}) {
        const auto device = MakeHostShimDevice({.seed = static_cast<uint64_t>(block)});
        const auto actual = sim::equality::Observe(
            std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
                device, {.mapping = sim::cuda::Mapping::kBlockPerInstance, .block = block})),
            work);
        ASSERT_TRUE(actual.ok()) << actual.status();
        EXPECT_EQ(sim::equality::FirstDifference(*expected, *actual).value_or(""), "")
            << precision::OrderName(static_cast<precision::Order>(order)) << ", " << elements
            << " elements, blocks of " << block;
      }
    }
  }
}

// How often the threads of a block walk over 1000 elements one by one, all of them alike.
int WalksIn(precision::Order order) {
  const auto source = sim::cuda::Generate(*WorkOn(1000, order).batch.program,
                                          {sim::cuda::Mapping::kBlockPerInstance, {}});
  EXPECT_TRUE(source.ok()) << source.status();
  const std::string walk = " < 1000; ++";
  int walks = 0;
  for (size_t at = source->text.find(walk); at != std::string::npos;
       at = source->text.find(walk, at + 1)) {
    ++walks;
  }
  return walks;
}

TEST(BlockReductionTest, OnlyASumInOrderIsNotSharedOut) {
  const int others = WalksIn(precision::Order::kPairwise);
  for (int k = 0; k < precision::kOrderCount; ++k) {
    const auto order = static_cast<precision::Order>(k);
    const bool shared = order == precision::Order::kPairwise || order == precision::Order::kExact;
    EXPECT_EQ(WalksIn(order) == others, shared) << precision::OrderName(order);
  }
}

}  // namespace
}  // namespace simgrad::tests
