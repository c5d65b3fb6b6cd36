// The kernel that a run waits for: the best one where compiling it is short beside the run.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::cuda {
namespace {

// Notes what it is asked to load, and loads nothing.
class Asked : public Device {
 public:
  const DeviceLimits& limits() const override { return limits_; }
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream() override { return None(); }
  absl::StatusOr<std::unique_ptr<Event>> MakeEvent() override { return None(); }
  absl::StatusOr<std::shared_ptr<const Module>> Load(const GeneratedSource& source,
                                                     KernelChoice choice) override {
    text_bytes = static_cast<int64_t>(source.text.size());
    chosen = choice;
    return None();
  }
  absl::StatusOr<int64_t> ResidentBlocks(const Module&, const std::string&, int, int64_t) override {
    return None();
  }
  int64_t text_bytes = 0;
  KernelChoice chosen = KernelChoice::kBest;

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t, MemoryKind) override { return None(); }
  void Free(void*, MemoryKind) override {}

 private:
  static absl::Status None() { return absl::UnavailableError("no device"); }
  DeviceLimits limits_;
};

double OperationsOf(const NumericalProgram& program) {
  double operations = 0;
  for (const Value& value : program.program.values) {
    operations += static_cast<double>(ElementCount(value.type.shape));
  }
  return operations;
}

// What a gradient of about so many operations on elements gets.
KernelChoice ChosenFor(const Program& world, double operations, int64_t& text_bytes) {
  auto lowered =
      tests::LowerForGradient(world, tests::PolicyOf({.preset = "f32"}), world.objectives[0].name);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  const auto steps = static_cast<int64_t>(operations / OperationsOf(*lowered));
  Work work = tests::WorkOf(*std::move(lowered), 1, steps);
  const Program& program = work.batch.program->program;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    if (!input.used || input.default_value) continue;
    work.batch.inputs[i].tensor = Tensor::Zeros(DType::kF64, program[input.value].type.shape);
  }
  work.options.recording = Recording::kSummary;
  const auto device = std::make_shared<Asked>();
  const auto run = MakeCudaExecutor(device)->Create(work.batch, work.options);
  EXPECT_EQ(run.status().message(), "no device");
  text_bytes = device->text_bytes;
  return device->chosen;
}

TEST(KernelChoice, ARunThatIsShortBesideCompilingGetsTheKernelThatIsThereSoonest) {
  int64_t bytes = 0;
  const auto small = BuildWorld("bouncing_ball", {});
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(ChosenFor(*small, 1e9, bytes), KernelChoice::kSoonest);
  EXPECT_EQ(ChosenFor(*small, 1e10, bytes), KernelChoice::kBest);
  EXPECT_LT(bytes, 100'000);
  const Program large = large::LargeProgram(5000);
  EXPECT_EQ(ChosenFor(large, 1e10, bytes), KernelChoice::kSoonest);
  EXPECT_EQ(ChosenFor(large, 1e12, bytes), KernelChoice::kBest);
  EXPECT_GT(bytes, 2'000'000);
}

}  // namespace
}  // namespace simgrad::sim::cuda
