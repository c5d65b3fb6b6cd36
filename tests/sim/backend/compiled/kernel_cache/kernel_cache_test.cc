// Which kernels are made, shared, found again and dropped: in counts.
#include "sim/backend/compiled/kernels/kernel_cache.h"

#include <gtest/gtest.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/TargetParser/X86TargetParser.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/plan/make_plan.h"
#include "sim/program/builder.h"
#include "tests/sim/backend/purse.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const NumericalProgram> Lowered(Builder& b) {
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto lowered = Lower(*world, tests::PolicyOf({}), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return std::make_shared<const NumericalProgram>(*std::move(lowered));
}

// x' = x * factor + 1, `operations` times a step.
std::shared_ptr<const NumericalProgram> LineProgram(double factor, int operations = 1) {
  Builder b("line");
  Var x = b.State("x", {});
  for (int i = 0; i < operations; ++i) x = x * b.Literal(factor) + b.Literal(1.0);
  b.SetNext({x});
  return Lowered(b);
}

// x' = sin(sin(...x)), of 1024 elements.
std::shared_ptr<const NumericalProgram> SineProgram(int sines) {
  Builder b("sines");
  Var x = b.State("x", {1024});
  for (int i = 0; i < sines; ++i) x = b.Do(OpCode::kSin, {x});
  b.SetNext({x});
  return Lowered(b);
}

KernelRequest RequestOf(const std::shared_ptr<const NumericalProgram>& program) {
  KernelRequest request;
  request.plan = std::make_shared<const plan::Plan>(plan::MakePlan(*program, {}));
  request.writer.inputs.resize(program->program.inputs.size());
  request.key = KeyOf(*request.plan, request.part, request.writer, request.options);
  return request;
}

class KernelCacheTest : public testing::Test {
 protected:
  KernelCacheTest() {
    std::string name = (fs::temp_directory_path() / "compiled-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~KernelCacheTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(KernelCacheTest, ProgramsThatDifferInNumbersShareAKernel) {
  KernelCache cache;
  const auto one = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  const auto other = cache.Get(RequestOf(LineProgram(0.25)), Wanted::kQuick, {});
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(*one, *other);
  EXPECT_NE(RequestOf(LineProgram(0.5)).key, RequestOf(LineProgram(0.5, 2)).key);
  EXPECT_EQ(cache.use().compiled, 1u);
  EXPECT_EQ(cache.use().loaded_from_memory, 1u);
  EXPECT_EQ(cache.use().kernels, 1);
}

TEST_F(KernelCacheTest, TheKeySaysWhatIsRecordedAndForWhichMachine) {
  KernelRequest request = RequestOf(LineProgram(0.5));
  const auto key = [&] {
    return KeyOf(*request.plan, request.part, request.writer, request.options);
  };
  std::vector<std::string> keys = {key()};
  request.writer.looks = true;
  keys.push_back(key());
  request.options.parts = 1;
  keys.push_back(key());
  request.options.isa = BestIsa() == Isa::kSse2 ? Isa::kAvx2 : Isa::kSse2;
  keys.push_back(key());
  request.writer.inputs[0].per_lane = !request.writer.inputs[0].per_lane;
  keys.push_back(key());
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " " << j;
  }
}

TEST_F(KernelCacheTest, RequestsForOneStructureShareOneCompile) {
  std::atomic<int> compiles{0};
  KernelCache cache({.before_compile = [&](Effort) { ++compiles; }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] { EXPECT_TRUE(cache.Get(request, Wanted::kQuick, {}).ok()); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(compiles, 1);
}

// The permissions of the mapping that holds an address; null: those of all mappings.
std::vector<std::string> PermissionsOf(const void* address) {
  std::vector<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, permissions;
    words >> range >> permissions;
    const uintptr_t begin = std::stoull(range, nullptr, 16);
    const uintptr_t end = std::stoull(range.substr(range.find('-') + 1), nullptr, 16);
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (address == nullptr || (begin <= at && at < end)) found.push_back(permissions);
  }
  return found;
}

TEST_F(KernelCacheTest, CodeIsExecutableAndNothingIsAlsoWritable) {
  KernelCache cache({.folder = folder_});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  const auto check = [](const absl::StatusOr<std::shared_ptr<const Kernel>>& kernel) {
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    const auto code = PermissionsOf(reinterpret_cast<const void*>((*kernel)->step));
    EXPECT_EQ(code, std::vector<std::string>{"r-xp"});
    const auto all = PermissionsOf(nullptr);
    EXPECT_GT(all.size(), 10u);
    for (const std::string& permissions : all) {
      EXPECT_FALSE(permissions[1] == 'w' && permissions[2] == 'x') << permissions;
    }
  };
  check(cache.Get(request, Wanted::kBest, {}));
  // As it is found in the folder.
  KernelCache other({.folder = folder_});
  check(other.Get(request, Wanted::kBest, {}));
  EXPECT_EQ(other.use().loaded_from_disk, 1u);
}

TEST_F(KernelCacheTest, BestCodeThatTakesLongIsMadeWhenQuickCodeHasRunForLong) {
  std::atomic<int> best{0};
  KernelCache cache({.folder = folder_, .soon_made = {}, .before_compile = [&](Effort effort) {
                       best += effort == Effort::kBest ? 1 : 0;
                     }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  for (int run = 0; run < 5; ++run) {
    const auto kernel = cache.Get(request, Wanted::kSoonest, {});
    ASSERT_TRUE(kernel.ok());
    EXPECT_EQ((*kernel)->effort, Effort::kQuick);
    EXPECT_GT((*kernel)->compile_time.count(), 0);
    EXPECT_EQ(cache.use().compiled, 1u) << "after " << run << " times what quick code took";
    EXPECT_EQ(best, 0);
    *(*kernel)->run_nanoseconds += (*kernel)->compile_time.count();
  }
  const auto is_best = [&] {
    const auto kernel = cache.Get(request, Wanted::kSoonest, {});
    return kernel.ok() && (*kernel)->effort == Effort::kBest;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_best() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(is_best());
  EXPECT_EQ(best, 1);
  // Found in the folder it is taken at once.
  KernelCache other({.folder = folder_});
  const auto found = other.Get(request, Wanted::kSoonest, {});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)->effort, Effort::kBest);
}

// A busy machine makes a compile wait; which code is made must not depend on that.
TEST_F(KernelCacheTest, TimeInWhichACompileWaitsIsNotPartOfWhatItTook) {
  constexpr std::chrono::seconds kWait{1};
  KernelCache cache({.before_compile = [&](Effort) { std::this_thread::sleep_for(kWait); }});
  const auto kernel = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  ASSERT_TRUE(kernel.ok());
  EXPECT_GT((*kernel)->compile_time.count(), 0);
  EXPECT_LT((*kernel)->compile_time, kWait);
  EXPECT_GE(cache.use().compile_seconds, 1.0);
}

// A gate that compiles wait at, by effort.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void AwaitOne() { Await(1); }
  void Await(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

TEST_F(KernelCacheTest, QuickCodeServesUntilTheBestIsMade) {
  Gate gate;
  KernelCache cache({.soon_made = std::chrono::hours(1), .before_compile = [&](Effort effort) {
                       if (effort == Effort::kBest) gate.Pass();
                     }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  const auto first = cache.Get(request, Wanted::kSoonest, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->effort, Effort::kQuick);
  gate.AwaitOne();
  EXPECT_EQ((*cache.Get(request, Wanted::kSoonest, {}))->effort, Effort::kQuick);
  gate.Open();
  const auto best = cache.Get(request, Wanted::kBest, {});
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ((*best)->effort, Effort::kBest);
  EXPECT_EQ(*cache.Get(request, Wanted::kSoonest, {}), *best);
  EXPECT_EQ(cache.use().compiled, 2u);
}

// Quick code calls a function that best code inlines, in each of its places.
TEST_F(KernelCacheTest, BestCodeOfManyInstructionsIsNotSoonMade) {
  const auto best_after = [](int sines) {
    KernelCache cache({.soon_made = std::chrono::hours(1)});
    KernelRequest request = RequestOf(SineProgram(sines));
    request.options.mapping = Mapping::kElements;
    EXPECT_TRUE(cache.Get(request, Wanted::kSoonest, {}).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    // Where best code follows it is asked for before the quick code is given.
    while (cache.use().pending > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return cache.Find(request.key)->effort == Effort::kBest;
  };
  EXPECT_TRUE(best_after(2));
  EXPECT_FALSE(best_after(256));
}

TEST_F(KernelCacheTest, ACallerLeavesWhileItsCompileGoesOn) {
  Gate gate;
  KernelCache cache({.before_compile = [&](Effort) { gate.Pass(); }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  const auto left = cache.Get(request, Wanted::kQuick, [&] {
    gate.AwaitOne();
    return true;
  });
  EXPECT_EQ(left.status().code(), absl::StatusCode::kCancelled) << left.status();
  gate.Open();
  EXPECT_TRUE(cache.Get(request, Wanted::kQuick, {}).ok());
  EXPECT_EQ(cache.use().compiled, 1u);
}

TEST_F(KernelCacheTest, WhatItsCallersLeaveEndsOnceAndIsMadeTheSecondTime) {
  std::atomic<int> begun{0}, left{0};
  KernelCache cache({.before_compile = [&](Effort) {
    const int mine = ++begun;
    while (left < mine) std::this_thread::yield();
  }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  const auto leave = [&](int time) {
    const auto result = cache.Get(request, Wanted::kQuick, [&] { return begun >= time; });
    EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
    ++left;
  };
  leave(1);
  while (cache.use().left == 0) std::this_thread::yield();
  EXPECT_EQ(cache.use().compiled, 0u);
  EXPECT_EQ(cache.Find(request.key), nullptr);
  leave(2);
  while (cache.Find(request.key) == nullptr) std::this_thread::yield();
  EXPECT_EQ(cache.use().compiled, 1u);
  EXPECT_EQ(cache.use().left, 1u);
  EXPECT_EQ(cache.use().failed, 0u);
}

TEST_F(KernelCacheTest, ACompileEndsWhereverItIsStopped) {
  const KernelRequest request = RequestOf(LineProgram(0.5, 20));
  for (Effort effort : {Effort::kQuick, Effort::kBest}) {
    KernelOptions options = request.options;
    options.effort = effort;
    const auto compile = [&](const WorkMeter::StopCallback& stop) {
      return CompileKernel(*request.plan, request.part, request.writer, options, stop);
    };
    const auto whole = compile({});
    ASSERT_TRUE(whole.ok()) << whole.status();
    int looks = 0;
    for (int last = 0;; ++last) {
      looks = 0;
      const auto object = compile([&] { return looks++ == last; });
      if (object.ok()) {
        EXPECT_EQ(object->bytes, whole->bytes);
        break;
      }
      EXPECT_TRUE(absl::IsCancelled(object.status())) << object.status();
      ASSERT_EQ(looks, last + 1) << "it asks again after it was told to stop";
    }
    EXPECT_GT(looks, 5);
  }
}

TEST_F(KernelCacheTest, WhatNobodyWaitsForAnyMoreDoesNotBegin) {
  Gate gate;
  KernelCache cache({.before_compile = [&](Effort) { gate.Pass(); }});
  std::vector<KernelRequest> requests;
  for (int operations = 1; operations <= 6; ++operations) {
    requests.push_back(RequestOf(LineProgram(0.5, operations)));
  }
  // Both threads are busy.
  const Claim busy[] = {cache.AskForRun(requests[0], Wanted::kQuick),
                        cache.AskForRun(requests[1], Wanted::kQuick)};
  gate.Await(2);
  // A caller that leaves, and a run that ends.
  const auto left = cache.Get(requests[2], Wanted::kQuick, [] { return true; });
  EXPECT_TRUE(absl::IsCancelled(left.status())) << left.status();
  Claim ended = cache.AskForRun(requests[3], Wanted::kQuick);
  // One of two leaves: the other still waits.
  Claim one = cache.AskForRun(requests[4], Wanted::kQuick);
  const Claim other = cache.AskForRun(requests[4], Wanted::kQuick);
  ended = one = nullptr;
  gate.Open();
  // Requests are taken in their order, so those before the last one are through.
  ASSERT_TRUE(cache.Get(requests[4], Wanted::kQuick, {}).ok());
  ASSERT_TRUE(cache.Get(requests[5], Wanted::kQuick, {}).ok());
  EXPECT_EQ(cache.Find(requests[2].key), nullptr);
  EXPECT_EQ(cache.Find(requests[3].key), nullptr);
  EXPECT_EQ(cache.use().failed, 0u);
  // It is made when it is wanted again.
  EXPECT_TRUE(cache.Get(requests[2], Wanted::kQuick, {}).ok());
}

TEST_F(KernelCacheTest, WhatWaitsHoldsNoPlan) {
  Gate gate;
  KernelCache cache({.before_compile = [&](Effort) { gate.Pass(); }});
  const KernelRequest busy[] = {RequestOf(LineProgram(0.5, 1)), RequestOf(LineProgram(0.5, 2))};
  const Claim claims[] = {cache.AskForRun(busy[0], Wanted::kQuick),
                          cache.AskForRun(busy[1], Wanted::kQuick)};
  gate.Await(2);
  KernelRequest request = RequestOf(LineProgram(0.5, 3));
  cache.Ask(request, Wanted::kQuick);
  const std::weak_ptr<const plan::Plan> plan = request.plan;
  request.plan = nullptr;
  EXPECT_TRUE(plan.expired());
  gate.Open();
  ASSERT_TRUE(cache.Get(RequestOf(LineProgram(0.5, 4)), Wanted::kQuick, {}).ok());
  EXPECT_EQ(cache.Find(request.key), nullptr);
  EXPECT_EQ(cache.use().failed, 0u);
}

TEST_F(KernelCacheTest, TheBestCodeIsFoundInTheFolder) {
  const KernelRequest request = RequestOf(LineProgram(0.5));
  {
    KernelCache cache({.folder = folder_.string()});
    ASSERT_TRUE(cache.Get(request, Wanted::kBest, {}).ok());
  }
  KernelCache cache({.folder = folder_.string()});
  const auto found = cache.Get(request, Wanted::kSoonest, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->effort, Effort::kBest);
  EXPECT_EQ(cache.use().compiled, 0u);
  EXPECT_EQ(cache.use().loaded_from_disk, 1u);
}

TEST_F(KernelCacheTest, ADamagedFileIsCountedAndCompiledAnew) {
  const KernelRequest request = RequestOf(LineProgram(0.5));
  {
    KernelCache cache({.folder = folder_.string()});
    ASSERT_TRUE(cache.Get(request, Wanted::kBest, {}).ok());
  }
  const fs::path file = fs::directory_iterator(folder_)->path();
  fs::resize_file(file, fs::file_size(file) - 1);
  KernelCache cache({.folder = folder_.string()});
  EXPECT_TRUE(cache.Get(request, Wanted::kBest, {}).ok());
  EXPECT_EQ(cache.use().refused_files, 1u);
  EXPECT_EQ(cache.use().compiled, 1u);
}

TEST_F(KernelCacheTest, KernelsThatNothingUsesGoAboveTheBound) {
  KernelCache cache({.most_bytes = 1});
  const auto held = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(cache.Get(RequestOf(LineProgram(0.5, 2)), Wanted::kQuick, {}).ok());
  // The thread that compiled one may hold it for a moment more; what comes later drops it.
  int64_t length = 3;
  do {
    ASSERT_TRUE(cache.Get(RequestOf(LineProgram(0.5, length)), Wanted::kQuick, {}).ok());
  } while (cache.use().kernels > 2 && ++length < 50);
  EXPECT_LE(cache.use().kernels, 2);  // the one in use, and at most the last
  EXPECT_NE(cache.Find(RequestOf(LineProgram(0.5)).key), nullptr);
  EXPECT_EQ(cache.Find(RequestOf(LineProgram(0.5, 2)).key), nullptr);
}

TEST_F(KernelCacheTest, AFatalErrorOfTheCompilerFailsThatProgramAlone) {
  std::atomic<bool> fails{true};
  KernelCache cache({.before_compile = [&](Effort) {
    if (fails) llvm::report_fatal_error("planted");
  }});
  const auto lost = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kInternal) << lost.status();
  fails = false;
  EXPECT_TRUE(cache.Get(RequestOf(LineProgram(0.5, 2)), Wanted::kQuick, {}).ok());
  EXPECT_EQ(cache.use().lost_threads, 1u);
  EXPECT_EQ(cache.use().failed, 1u);
}

TEST_F(KernelCacheTest, WithoutThreadsEveryCompileFailsAtOnce) {
  KernelCache cache({.before_compile = [&](Effort) { llvm::report_fatal_error("planted"); }});
  for (int i = 1; i <= KernelCache::kMostLost + 2; ++i) {
    EXPECT_FALSE(cache.Get(RequestOf(LineProgram(0.5, i)), Wanted::kQuick, {}).ok());
  }
  EXPECT_LE(cache.use().lost_threads, static_cast<uint64_t>(KernelCache::kMostLost) + 1);
}

TEST_F(KernelCacheTest, AnExceptionIsAnError) {
  KernelCache cache({.before_compile = [&](Effort) { throw std::bad_alloc(); }});
  const auto failed = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal) << failed.status();
}

// ---- whose memory it is ----

TEST_F(KernelCacheTest, WithoutMemoryTheBestWaitsForTheNextRequest) {
  const auto purse = std::make_shared<tests::Purse>();
  KernelCache cache({.watch = purse});
  purse->compile_bytes = 1000;
  const auto none = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kBest, {});
  EXPECT_TRUE(absl::IsResourceExhausted(none.status())) << none.status();
  EXPECT_EQ(cache.use().compiled, 0u);
  EXPECT_EQ(purse->held, 0);
  // Of the memory of those who wait.
  const KernelRequest request = RequestOf(LineProgram(0.5));
  EXPECT_TRUE(cache.Get(request, Wanted::kSoonest, {}).ok());
  // The best, which was asked for behind it, is refused too, before there is memory.
  while (cache.use().pending != 0) std::this_thread::yield();
  EXPECT_EQ(cache.use().failed, 2u);
  purse->compile_bytes = int64_t{1} << 40;
  EXPECT_TRUE(cache.Get(request, Wanted::kBest, {}).ok());
  EXPECT_EQ(purse->compiled[0], 1);
  EXPECT_EQ(purse->compiled[1], 1);
}

TEST_F(KernelCacheTest, ACompileThatItsCallersLeftHasMemoryOfItsOwn) {
  Gate gate;
  const auto purse = std::make_shared<tests::Purse>();
  purse->cache_bytes = 0;
  KernelCache cache({.watch = purse, .before_compile = [&](Effort) { gate.Pass(); }});
  const KernelRequest request = RequestOf(LineProgram(0.5));
  const auto left = cache.Get(request, Wanted::kQuick, [&] {
    gate.AwaitOne();
    EXPECT_EQ(purse->held, 0);  // it is part of the caller's
    return true;
  });
  EXPECT_TRUE(absl::IsCancelled(left.status())) << left.status();
  EXPECT_EQ(purse->held, CompileBytes(*request.plan, request.part));
  gate.Open();
  while (purse->held != 0) std::this_thread::yield();
}

TEST_F(KernelCacheTest, WhatThereIsNoMemoryForIsNotKept) {
  const auto purse = std::make_shared<tests::Purse>();
  purse->cache_bytes = 0;
  KernelCache cache({.watch = purse});
  for (uint64_t time = 1; time <= 2; ++time) {
    EXPECT_TRUE(cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {}).ok());
    EXPECT_EQ(cache.use().compiled, time);
    EXPECT_EQ(cache.use().kernels, 0);
  }
}

TEST_F(KernelCacheTest, GivesUpWhatNothingUses) {
  const auto purse = std::make_shared<tests::Purse>();
  KernelCache cache({.watch = purse});
  const auto held = cache.Get(RequestOf(LineProgram(0.5)), Wanted::kQuick, {});
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(cache.Get(RequestOf(LineProgram(0.5, 2)), Wanted::kQuick, {}).ok());
  const int64_t all = cache.use().bytes;
  int64_t freed = 0;
  // The thread that compiled it may hold it, and the compile's memory, for a moment more.
  while (freed == 0) freed = cache.Relieve(all);
  EXPECT_EQ(cache.use().kernels, 1);
  EXPECT_EQ(cache.use().bytes, all - freed);
  while (purse->held != all - freed) std::this_thread::yield();
  EXPECT_NE(cache.Find(RequestOf(LineProgram(0.5)).key), nullptr);
}

// ---- which executor serves ----

Work LineWork(const std::shared_ptr<const NumericalProgram>& program, int64_t instances,
              int64_t steps) {
  Work work = tests::WorkOf(*program, instances, steps);
  work.batch.program = program;
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.5}, {}));
  return work;
}

TEST(ServedBy, PlansAreHeldOfTheMemoryAndGivenUp) {
  const auto purse = std::make_shared<tests::Purse>();
  CompiledOptions options;
  options.kernels.watch = purse;
  const auto executor = MakeCompiledExecutor(options);
  const Work work = LineWork(LineProgram(0.5), 1024, 1024);
  ASSERT_TRUE(executor->NeedOf(work.batch, work.options, {}).ok());
  const int64_t bytes = executor->use().plan_bytes;
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(purse->held, bytes);
  EXPECT_EQ(executor->Relieve(1), bytes);
  EXPECT_EQ(purse->held, 0);
  EXPECT_EQ(executor->use().plans, 0);
}

TEST(ServedBy, LittleWorkIsCompiledWhenItComesBack) {
  CompiledOptions options;
  const auto executor = MakeCompiledExecutor(options);
  const auto program = LineProgram(0.5);
  const Work work = LineWork(program, 4, 8);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  EXPECT_EQ(executor->use().plans, 0);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 2u);
  EXPECT_EQ(executor->use().plans, 1);
  // The second one asked for it.
  while (executor->use().compiler.compiled == 0) std::this_thread::yield();
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().runs_compiled, 1u);
}

// A function that takes too much stack is not run, whoever asks for it next, and is compiled once.
TEST(ServedBy, AProgramWhoseCodeIsTooDeepIsRunByTheReference) {
  CompiledOptions options;
  options.most_frame_bytes = 8;
  const auto executor = MakeCompiledExecutor(options);
  const auto deep = LineProgram(0.5);
  const Work work = LineWork(deep, 1024, 1024);
  for (uint64_t run = 1; run <= 2; ++run) {
    const auto made = executor->Create(work.batch, work.options);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(executor->use().runs_by_reference, run);
  }
  EXPECT_EQ(executor->use().runs_compiled, 0u);
  EXPECT_EQ(executor->use().compiler.failed, 0u);
  const auto need = executor->NeedOf(work.batch, work.options, {});
  ASSERT_TRUE(need.ok());
  EXPECT_FALSE(need->has_value());  // as of a program that is too large to compile
}

TEST(ServedBy, LittleWorkThatNeverComesBackIsNeverCompiled) {
  int compiles = 0;
  CompiledOptions options;
  options.kernels.before_compile = [&](Effort) { ++compiles; };
  {
    const auto executor = MakeCompiledExecutor(options);
    for (int i = 1; i <= 8; ++i) {
      const Work work = LineWork(LineProgram(0.5, i), 4, 8);
      ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
    }
    EXPECT_EQ(executor->use().runs_by_reference, 8u);
    EXPECT_EQ(executor->use().plans, 0);
  }
  EXPECT_EQ(compiles, 0);
}

TEST(ServedBy, APlanThatAdmissionMadeIsUsedAndSaysTheSame) {
  CompiledOptions options;
  const auto executor = MakeCompiledExecutor(options);
  const Work work = LineWork(LineProgram(0.5), 1024, 1024);
  ASSERT_TRUE(executor->NeedOf(work.batch, work.options, {}).ok());
  EXPECT_EQ(executor->use().plans, 1);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().plans, 1);
  EXPECT_EQ(executor->use().runs_compiled, 1u);
}

TEST(ServedBy, LittleWorkThatComesFirstIsAdmittedWithoutAPlan) {
  CompiledOptions options;
  const auto executor = MakeCompiledExecutor(options);
  const Work work = LineWork(LineProgram(0.5, 100), 4, 8);
  const auto first = executor->NeedOf(work.batch, work.options, {});
  ASSERT_TRUE(first.ok() && first->has_value());
  // 200 operations of 4 instances in 8 steps, of which the reference keeps every number; a state of one
  // number.
  EXPECT_GE((*first)->run, 200 * 4 * 8 * 8);
  EXPECT_GE((*first)->saved, 4 * 8);
  EXPECT_EQ(executor->use().plans, 0);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().plans, 0);
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  // When it comes back it is planned, and compiled: that is admitted too.
  const auto second = executor->NeedOf(work.batch, work.options, {});
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_GT((*second)->run, (*first)->run);
  EXPECT_EQ(executor->use().plans, 1);
}

// A state that the step leaves alone is no work, and memory all the same.
TEST(ServedBy, LittleWorkOfLargeStatesIsAdmittedByItsPlan) {
  constexpr int64_t kNumbers = 250'000;
  Builder b("large");
  const Var x = b.State("x", {kNumbers});
  const Var s = b.State("s", {});
  b.SetNext({x, s + b.Literal(1.0)});
  const auto program = Lowered(b);
  Work work = tests::WorkOf(*program, 10, 20);
  work.batch.program = program;
  tests::Bind(work, InputKind::kState, "x",
              tests::Shared(std::vector<double>(kNumbers, 0.5), {kNumbers}));
  tests::Bind(work, InputKind::kState, "s", tests::Shared({0.5}, {}));
  const auto executor = MakeCompiledExecutor(CompiledOptions{});
  const auto need = executor->NeedOf(work.batch, work.options, {});
  ASSERT_TRUE(need.ok() && need->has_value()) << need.status();
  EXPECT_EQ(executor->use().plans, 1);
  EXPECT_GE((*need)->saved, 10 * kNumbers * 4);
}

// Admission counts what the reference keeps of little work, whichever rule finds that it is little.
TEST(ServedBy, WhatIsLeftToTheReferenceIsAdmittedAsSuch) {
  CompiledOptions options;
  options.little_work = 0;
  options.little_work_per_statement = 4;
  CompiledOptions none = options;
  none.little_work_per_statement = 0;
  const auto program = LineProgram(0.5, 100);
  const auto need = [&](const CompiledOptions& how, int64_t instances, int64_t steps) {
    const Work work = LineWork(program, instances, steps);
    const auto executor = MakeCompiledExecutor(how);
    EXPECT_TRUE(executor->Create(work.batch, work.options).ok());  // so that it comes back
    const auto found = executor->NeedOf(work.batch, work.options, {});
    EXPECT_TRUE(found.ok() && found->has_value());
    return (*found)->run;
  };
  // A step more is 200 numbers more.
  EXPECT_GE(need(options, 1, 2) - need(options, 1, 1), 200 * 8);
  EXPECT_LT(need(none, 1, 2) - need(none, 1, 1), 200 * 8);
  EXPECT_EQ(need(options, 64, 64), need(none, 64, 64));
  const Work little = LineWork(program, 1, 1), much = LineWork(program, 64, 64);
  const auto executor = MakeCompiledExecutor(options);
  ASSERT_TRUE(executor->Create(little.batch, little.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  ASSERT_TRUE(executor->Create(much.batch, much.options).ok());
  EXPECT_EQ(executor->use().runs_compiled, 1u);
}

TEST(ServedBy, MuchWorkWaitsForQuickCode) {
  const auto executor = MakeCompiledExecutor(CompiledOptions{});
  const Work work = LineWork(LineProgram(0.5), 1024, 1024);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().runs_compiled, 1u);
}

// The reference takes some microseconds and a KiB for an instance, whatever it computes.
TEST(ServedBy, ManyInstancesOfAStepWithoutOperationsAreNotLeftToTheReference) {
  Builder b("still");
  b.SetNext({b.State("x", {})});
  const auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  const auto lowered = Lower(*world, tests::PolicyOf(precision::PolicySpec{}), "", std::nullopt);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const auto program = std::make_shared<const NumericalProgram>(*lowered);
  const auto executor = MakeCompiledExecutor(CompiledOptions{});
  const Work few = LineWork(program, 16, 2), many = LineWork(program, 1 << 17, 2);
  ASSERT_TRUE(executor->Create(few.batch, few.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  ASSERT_TRUE(executor->Create(many.batch, many.options).ok());
  EXPECT_EQ(executor->use().runs_compiled, 1u);
}

TEST(ServedBy, FewStepsOfALongProgramDoNotWaitForItsCode) {
  CompiledOptions options;
  const auto program = LineProgram(0.5, 4000);  // 8,000 statements
  const Work few = LineWork(program, 1, 47), many = LineWork(program, 1, 127);
  const auto executor = MakeCompiledExecutor(options);
  ASSERT_TRUE(executor->Create(few.batch, few.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  ASSERT_TRUE(executor->Create(many.batch, many.options).ok());
  EXPECT_EQ(executor->use().runs_compiled, 1u);
  options.little_work_per_statement = 0;
  const auto strict = MakeCompiledExecutor(options);
  ASSERT_TRUE(strict->Create(few.batch, few.options).ok());
  EXPECT_EQ(strict->use().runs_compiled, 1u);
}

TEST(ServedBy, AFunctionOfTooManyStatementsIsLeftToTheReference) {
  CompiledOptions options;
  options.most_statements = 8;
  const auto executor = MakeCompiledExecutor(options);
  const Work work = LineWork(LineProgram(0.5, 16), 1024, 1024);
  ASSERT_TRUE(executor->Create(work.batch, work.options).ok());
  EXPECT_EQ(executor->use().runs_by_reference, 1u);
  EXPECT_EQ(executor->use().compiler.compiled, 0u);
}

// ---- which code a machine can run ----

// LLVM lists no cmov for the Zen processors, which have what every x86-64 has.
std::set<std::string> FeaturesOfCpu(const char* cpu) {
  std::set<std::string> names;
  for (const char* which : {"x86-64", cpu}) {
    llvm::SmallVector<llvm::StringRef, 64> features;
    llvm::X86::getFeaturesForCPU(which, features);
    for (llvm::StringRef feature : features) names.insert(feature.str());
  }
  return names;
}

TEST(BestIsaOf, AsksForWhateverItsCodeMayUse) {
  const std::set<std::string> haswell = FeaturesOfCpu("haswell");
  const std::set<std::string> skylake = FeaturesOfCpu("skylake-avx512");
  EXPECT_EQ(BestIsaOf({}), Isa::kSse2);
  EXPECT_EQ(BestIsaOf(FeaturesOfCpu("x86-64")), Isa::kSse2);
  EXPECT_EQ(BestIsaOf(haswell), Isa::kAvx2);
  EXPECT_EQ(BestIsaOf(skylake), Isa::kAvx512);
  EXPECT_EQ(BestIsaOf(FeaturesOfCpu("znver3")), Isa::kAvx2);
  EXPECT_EQ(BestIsaOf(FeaturesOfCpu("znver4")), Isa::kAvx512);
  const auto without = [](std::set<std::string> features, const char* feature) {
    EXPECT_EQ(features.erase(feature), 1u) << feature;
    return features;
  };
  for (const char* feature : {"avx2", "fma", "bmi", "bmi2", "lzcnt", "movbe", "f16c", "popcnt"}) {
    EXPECT_EQ(BestIsaOf(without(haswell, feature)), Isa::kSse2) << feature;
  }
  for (const char* feature : {"avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"}) {
    EXPECT_EQ(BestIsaOf(without(skylake, feature)), Isa::kAvx2) << feature;
  }
  // Virtual machines hide these; no compiled loop has them.
  for (const char* feature : {"invpcid", "pku", "rdrnd", "xsaves"}) {
    EXPECT_EQ(BestIsaOf(without(skylake, feature)), Isa::kAvx512) << feature;
  }
}

}  // namespace
}  // namespace simgrad::sim::compiled
