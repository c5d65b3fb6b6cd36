// Objects are found again by what they were compiled from.
#include "sim/backend/compiled/machine/object_store.h"

#include <gtest/gtest.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/kernel_folder.h"
#include "sim/plan/make_plan.h"
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

namespace fs = std::filesystem;

// x' = f(x), of four elements.
plan::Plan PlanOf(OpCode code) {
  Builder b("one");
  b.SetNext({b.Do(code, {b.State("x", {4})})});
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  const auto lowered = Lower(*world, tests::PolicyOf({}), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return plan::MakePlan(*lowered, {});
}

absl::StatusOr<KernelObject> Compiled(OpCode code, const KernelOptions& options,
                                      const WorkMeter::StopCallback& stop = nullptr) {
  WriterOptions writer;
  return CompileKernel(PlanOf(code), Part::kForward, writer, options, stop);
}

class ObjectStoreTest : public testing::Test {
 protected:
  ObjectStoreTest() {
    std::string name = (fs::temp_directory_path() / "objects-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    KeepObjectsIn(folder_.string(), int64_t{1} << 30);
  }
  ~ObjectStoreTest() override {
    KeepObjectsIn("", 0);
    fs::remove_all(folder_);
  }
  int64_t Files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  fs::path folder_;
};

TEST_F(ObjectStoreTest, WhatIsKeptIsTaken) {
  const KernelOptions options = {.effort = Effort::kQuick};
  const auto sine = Compiled(OpCode::kSin, options);
  ASSERT_TRUE(sine.ok()) << sine.status();
  ASSERT_EQ(Files(), 1);
  const std::string key = fs::directory_iterator(folder_)->path().stem().string();
  EXPECT_EQ(KernelFolder(folder_.string()).Find(key), sine->bytes);
  EXPECT_EQ(Compiled(OpCode::kSin, options)->bytes, sine->bytes);
  EXPECT_EQ(Files(), 1);
  // Another's bytes under its key: they are what a compile gives from then on.
  KernelFolder(folder_.string()).Keep(key, "another object");
  EXPECT_EQ(Compiled(OpCode::kSin, options)->bytes, "another object");
  KeepObjectsIn("", 0);
  EXPECT_EQ(Compiled(OpCode::kSin, options)->bytes, sine->bytes);
}

TEST_F(ObjectStoreTest, AnotherCompilerMakesAnotherKey) {
  llvm::LLVMContext context;
  const llvm::Module module("empty", context);
  EXPECT_EQ(ObjectKey(module, "quick", "one"), ObjectKey(module, "quick", "one"));
  EXPECT_NE(ObjectKey(module, "quick", "one"), ObjectKey(module, "quick", "another"));
  EXPECT_NE(ObjectKey(module, "quick", "one"), ObjectKey(module, "best", "one"));
}

TEST_F(ObjectStoreTest, WhatChangesTheObjectChangesTheKey) {
  std::vector<std::function<void(OpCode&, KernelOptions&)>> changes = {
      [](OpCode&, KernelOptions&) {},
      [](OpCode& code, KernelOptions&) { code = OpCode::kCos; },
      [](OpCode&, KernelOptions& options) { options.effort = Effort::kBest; },
      [](OpCode&, KernelOptions& options) { options.mapping = Mapping::kElements; },
      [](OpCode&, KernelOptions& options) { options.parts = 1; },
      [](OpCode&, KernelOptions& options) { options.most_frame_bytes /= 2; }};
  if (IsasOfThisMachine().size() > 1) {
    changes.emplace_back(
        [](OpCode&, KernelOptions& options) { options.isa = IsasOfThisMachine().front(); });
  }
  int64_t files = 0;
  for (const auto& change : changes) {
    OpCode code = OpCode::kSin;
    KernelOptions options = {.effort = Effort::kQuick, .parts = 2};
    change(code, options);
    ASSERT_TRUE(Compiled(code, options).ok());
    EXPECT_EQ(Files(), ++files);
  }
}

TEST_F(ObjectStoreTest, WhatIsNotMadeIsNotKept) {
  EXPECT_TRUE(absl::IsOutOfRange(Compiled(OpCode::kSin, {.most_frame_bytes = 1}).status()));
  int looks = 0;
  const auto stopped = Compiled(OpCode::kSin, {}, [&] { return ++looks > 3; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  EXPECT_EQ(Files(), 0);
}

}  // namespace
}  // namespace simgrad::sim::compiled
