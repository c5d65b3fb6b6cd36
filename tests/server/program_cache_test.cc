// What the cache of programs keeps of large ones: each once, under a digest, and as many bytes as
// it says.
#include "server/conversion/program_cache.h"

#include <gtest/gtest.h>

#include <string>

#include "server/conversion/program_to_proto.h"
#include "sim/program/held_bytes.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::server::conversion {
namespace {

v1::World Large(int64_t operations) {
  v1::World world;
  *world.mutable_program() = ProgramToProto(sim::large::LargeProgram(operations));
  return world;
}

sim::AdjointSpec EveryInput(const sim::Program& program) {
  sim::AdjointSpec spec;
  spec.objective = "cost";
  spec.final_state.resize(program.InputsOf(sim::InputKind::kState).size());
  spec.trajectory_state.resize(spec.final_state.size());
  for (const sim::Input& input : program.inputs) {
    spec.wanted.push_back(sim::IsDifferentiable(program, input));
  }
  return spec;
}

class ProgramCacheTest : public testing::Test {
 protected:
  std::shared_ptr<const CachedProgram> Gradient(const v1::World& message, ProgramCache& cache,
                                                const std::string& preset = "f32",
                                                const CompileControl& control = {}) {
    const auto world = cache.World(message, "world");
    EXPECT_TRUE(world.ok()) << world.status();
    v1::Policy policy;
    policy.set_preset(preset);
    const auto program =
        cache.Lower(*world, policy, "cost", EveryInput((*world)->program), "spec", control);
    EXPECT_TRUE(program.ok()) << program.status();
    return *program;
  }

  int hits_ = 0;
  const std::function<void(ProgramCache::Lookup)> count_ = [this](ProgramCache::Lookup lookup) {
    hits_ += lookup == ProgramCache::Lookup::kHit ? 1 : 0;
  };
};

TEST_F(ProgramCacheTest, ALargeProgramIsKeptOnceAndItsTextIsNotKeptTwice) {
  for (const int64_t size : {5'000, 20'000}) {
    ProgramCache cache({}, count_);
    const v1::World world = Large(size);
    const auto first = Gradient(world, cache);
    const auto again = Gradient(world, cache);
    EXPECT_EQ(first, again);
    EXPECT_EQ(cache.worlds().entries, 1);
    EXPECT_EQ(cache.programs().entries, 1);
    EXPECT_LT(first->info.size(), first->program->text.size() / 20);
    EXPECT_EQ(first->world->key.size(), 64u);  // of a message of megabytes
    EXPECT_EQ(cache.programs().bytes,
              sim::HeldBytes(*first->program) + static_cast<int64_t>(first->info.capacity()));
    EXPECT_EQ(cache.worlds().bytes, sim::HeldBytes(first->world->program));
    // Measured: 2,840 and 860.
    EXPECT_LE(cache.programs().bytes, 3'400 * size);
    EXPECT_LE(cache.worlds().bytes, 1'000 * size);
  }
  EXPECT_EQ(hits_, 2);
}

// The second call misses while the first is lowering. What later levels keep is kept by object.
TEST_F(ProgramCacheTest, CallsThatMissAtOnceGetOneObject) {
  ProgramCache cache({}, count_);
  const v1::World world = Large(5'000);
  std::shared_ptr<const CachedProgram> second;
  CompileControl control;
  control.stop = [&] {
    if (second == nullptr) second = Gradient(world, cache);
    return false;
  };
  const auto first = Gradient(world, cache, "f32", control);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(first, second);
  EXPECT_EQ(hits_, 0);
  EXPECT_EQ(cache.programs().entries, 1);
}

// A program that a call uses gives no memory back, and would have to be made again.
TEST_F(ProgramCacheTest, ReliefDropsOnlyWhatNoCallUses) {
  ProgramCache cache({}, count_);
  auto used = Gradient(Large(200), cache);
  Gradient(Large(200), cache, "f64");
  ASSERT_EQ(cache.programs().entries, 2);
  EXPECT_GT(cache.Relieve(1), 0);
  EXPECT_EQ(cache.programs().entries, 1);
  EXPECT_EQ(Gradient(Large(200), cache), used);
  while (cache.Relieve(1) > 0) {
  }
  EXPECT_EQ(cache.programs().entries, 1);
  EXPECT_EQ(cache.worlds().entries, 1);  // the program's
  used.reset();
  EXPECT_GT(cache.Relieve(1), 0);
  EXPECT_EQ(cache.programs().entries, 0);
  EXPECT_EQ(cache.worlds().entries, 0);
}

// Less than seven of them hold: the oldest go, and none that is in use is harmed.
TEST_F(ProgramCacheTest, NeverHoldsMoreThanItsBytes) {
  ProgramCacheOptions options;
  options.max_bytes = int64_t{100} << 20;
  ProgramCache cache(options, count_);
  const v1::World world = Large(5'000);
  for (const char* preset : {"f64", "f32", "bf16_unsafe", "f16_unsafe", "bf16_safe", "f16_safe",
                             "fp8_storage", "f64", "fp8_storage"}) {
    const auto program = Gradient(world, cache, preset);
    EXPECT_EQ(program->program->text.rfind("world large", 0), 0u)
        << program->program->text.substr(0, 40);
    EXPECT_LE(cache.programs().bytes, options.max_bytes - options.max_bytes / 4);
  }
  EXPECT_LT(cache.programs().entries, 7);
  EXPECT_GE(cache.programs().entries, 3);
  EXPECT_EQ(hits_, 1);  // the last one; the first of seven had gone
}

}  // namespace
}  // namespace simgrad::server::conversion
