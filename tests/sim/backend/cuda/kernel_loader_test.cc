// A first result soon, the best kernel afterwards: what is compiled, when, and how often.
#include "sim/backend/cuda/compiler/kernel_loader.h"

#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/backend/purse.h"

namespace simgrad::sim::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMuch = int64_t{1} << 20;

struct ImageModule : Module {
  explicit ImageModule(std::string of)
      : Module(static_cast<int64_t>(of.size())), image(std::move(of)) {}
  std::string image;
};

// A compiler whose images say what they are of; the best ones wait until they may be finished.
class Compiler {
 public:
  KernelTools Tools() {
    KernelTools tools;
    tools.best_options = "best";
    tools.least_options = "least";
    tools.compile = [this](const std::string& text, Optimisation optimisation) {
      return Compile(text, optimisation);
    };
    tools.load = [](const std::string& image) -> ModuleCache::Loaded {
      return std::make_shared<const ImageModule>(image);
    };
    return tools;
  }
  void LetBestFinish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    may_finish_ = true;
    changed_.notify_all();
  }
  void WaitFor(const std::string& image) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return compiled_[image] > 0; });
  }
  std::map<std::string, int> compiled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return compiled_;
  }

 private:
  absl::StatusOr<std::string> Compile(const std::string& text, Optimisation optimisation) {
    if (text == "wrong") return absl::InternalError("a syntax error");
    const bool best = optimisation == Optimisation::kBest;
    std::unique_lock<std::mutex> lock(mutex_);
    if (best) changed_.wait(lock, [this] { return may_finish_; });
    const std::string image = text + (best ? ", best" : ", least");
    ++compiled_[image];
    changed_.notify_all();
    if (best && text == "stubborn") return absl::InternalError("ptxas died");
    return image;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool may_finish_ = false;
  std::map<std::string, int> compiled_;
};

std::string ImageOf(const ModuleCache::Loaded& loaded) {
  if (!loaded.ok()) return std::string(loaded.status().message());
  return static_cast<const ImageModule&>(**loaded).image;
}

class KernelLoaderTest : public testing::Test {
 protected:
  KernelLoaderTest() {
    std::string name = (fs::temp_directory_path() / "kernel-loader-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~KernelLoaderTest() override { fs::remove_all(folder_); }

  Compiler compiler_;
  std::string folder_;
};

TEST_F(KernelLoaderTest, WhoIsInAHurryGetsTheLeastUntilTheBestIsThere) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, least");
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, least");
  compiler_.LetBestFinish();
  compiler_.WaitFor("text, best");
  // Waits for what the loader's own thread has begun.
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kBest)), "text, best");
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, best");
  EXPECT_EQ(compiler_.compiled(),
            (std::map<std::string, int>{{"text, best", 1}, {"text, least", 1}}));
  DeviceUse use;
  loader.AddTo(use);
  EXPECT_EQ(use.compiled, 2u);
  EXPECT_EQ(use.loaded_from_memory, 3u);
}

TEST_F(KernelLoaderTest, WhoWantsTheBestWaitsForItAndNothingElseIsCompiled) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  compiler_.LetBestFinish();
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kBest)), "text, best");
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, best");
  EXPECT_EQ(compiler_.compiled(), (std::map<std::string, int>{{"text, best", 1}}));
}

TEST_F(KernelLoaderTest, AllWhoAreInAHurryAtOnceShareOneCompilation) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&] { EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, least"); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler_.compiled(), (std::map<std::string, int>{{"text, least", 1}}));
  compiler_.LetBestFinish();
}

TEST_F(KernelLoaderTest, TheBestIsMadeOnceHoweverOftenItIsAskedFor) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, least");
  }
  compiler_.LetBestFinish();
  compiler_.WaitFor("text, best");
  // Comes behind whatever the first one left in the queue.
  EXPECT_EQ(ImageOf(loader.Load("other", KernelChoice::kSoonest)), "other, least");
  compiler_.WaitFor("other, best");
  EXPECT_EQ(compiler_.compiled().at("text, best"), 1);
}

TEST_F(KernelLoaderTest, WhatCannotBeImprovedIsTriedOnce) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  compiler_.LetBestFinish();
  for (const std::string other : {"one", "two", "three"}) {
    EXPECT_EQ(ImageOf(loader.Load("stubborn", KernelChoice::kSoonest)), "stubborn, least");
    // Comes behind it.
    EXPECT_EQ(ImageOf(loader.Load(other, KernelChoice::kSoonest)), other + ", least");
    compiler_.WaitFor(other + ", best");
  }
  EXPECT_EQ(compiler_.compiled().at("stubborn, best"), 1);
}

TEST_F(KernelLoaderTest, WhatTakesTooLongToImproveIsCompiledForThoseAloneWhoWaitForIt) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  compiler_.LetBestFinish();
  const std::string text(6'000'000, 'x');
  EXPECT_EQ(ImageOf(loader.Load(text, KernelChoice::kSoonest)), text + ", least");
  EXPECT_EQ(ImageOf(loader.Load("other", KernelChoice::kSoonest)), "other, least");
  compiler_.WaitFor("other, best");  // comes behind
  EXPECT_EQ(compiler_.compiled().count(text + ", best"), 0u);
  EXPECT_EQ(ImageOf(loader.Load(text, KernelChoice::kBest)), text + ", best");
}

TEST_F(KernelLoaderTest, WhatFindsNoRoomToBeImprovedIsImprovedWhenItIsUsedAgain) {
  constexpr int kTexts = 40;  // more than wait at once
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  const auto ask = [&](int i) {
    return ImageOf(loader.Load("text " + std::to_string(i), KernelChoice::kSoonest));
  };
  for (int i = 0; i < kTexts; ++i) EXPECT_EQ(ask(i), "text " + std::to_string(i) + ", least");
  compiler_.LetBestFinish();
  compiler_.WaitFor("text 20, best");  // at least what stood before it has left the queue
  const std::string last = "text " + std::to_string(kTexts - 1);
  EXPECT_EQ(compiler_.compiled()[last + ", best"], 0);
  EXPECT_EQ(ask(kTexts - 1), last + ", least");
  compiler_.WaitFor(last + ", best");
}

TEST_F(KernelLoaderTest, TheFolderHoldsTheBestAndIsAskedBeforeTheCompiler) {
  compiler_.LetBestFinish();
  EXPECT_EQ(
      ImageOf(KernelLoader(compiler_.Tools(), folder_, kMuch).Load("text", KernelChoice::kBest)),
      "text, best");
  Compiler none;
  KernelLoader loader(none.Tools(), folder_, kMuch);
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, best");
  EXPECT_TRUE(none.compiled().empty());
  DeviceUse use;
  loader.AddTo(use);
  EXPECT_EQ(use.loaded_from_disk, 1u);
}

TEST_F(KernelLoaderTest, AnImageThatDoesNotLoadIsCompiledAnew) {
  compiler_.LetBestFinish();
  KernelLoader(compiler_.Tools(), folder_, kMuch)
      .Load("text", KernelChoice::kBest)
      .status()
      .IgnoreError();
  KernelTools picky = compiler_.Tools();
  picky.load = [load = picky.load, first = true](const std::string& image) mutable {
    return std::exchange(first, false) ? absl::InternalError("of another driver") : load(image);
  };
  KernelLoader loader(std::move(picky), folder_, kMuch);
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kBest)), "text, best");
  EXPECT_EQ(compiler_.compiled().at("text, best"), 2);
}

TEST_F(KernelLoaderTest, WithoutAQuickCompilationEveryoneGetsTheBest) {
  compiler_.LetBestFinish();
  KernelTools tools = compiler_.Tools();
  tools.least_options.clear();
  KernelLoader loader(std::move(tools), "", kMuch);
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kSoonest)), "text, best");
}

TEST_F(KernelLoaderTest, AFailureIsToldToWhoAsked) {
  KernelLoader loader(compiler_.Tools(), "", kMuch);
  for (const KernelChoice choice : {KernelChoice::kBest, KernelChoice::kSoonest}) {
    EXPECT_EQ(ImageOf(loader.Load("wrong", choice)), "a syntax error");
  }
}

TEST_F(KernelLoaderTest, WithoutMemoryNothingIsCompiledUntilThereIsSome) {
  compiler_.LetBestFinish();
  const auto purse = std::make_shared<tests::Purse>();
  KernelTools tools = compiler_.Tools();
  tools.watch = purse;
  KernelLoader loader(std::move(tools), "", kMuch);
  purse->compile_bytes = 0;
  const auto refused = loader.Load("text", KernelChoice::kBest);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_TRUE(compiler_.compiled().empty());
  purse->compile_bytes = NvrtcBytes(4);
  EXPECT_EQ(ImageOf(loader.Load("text", KernelChoice::kBest)), "text, best");
  EXPECT_EQ(purse->held, 10);  // of the image alone
}

// Holds best kernels back until they are permitted, and counts how many were begun.
class HeldBack {
 public:
  KernelTools Tools(Compiler& compiler) {
    KernelTools tools = compiler.Tools();
    tools.compile = [this](const std::string& text, Optimisation optimisation) {
      if (optimisation == Optimisation::kBest) Hold();
      return absl::StatusOr<std::string>(text);
    };
    return tools;
  }
  void WaitForFirst() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return begun_ > 0; });
  }
  void PermitAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    permitted_ = true;
    changed_.notify_all();
  }
  int begun() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return begun_;
  }

 private:
  void Hold() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return permitted_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0;
  bool permitted_ = false;
};

TEST_F(KernelLoaderTest, ALoaderThatEndsLeavesWhatWaitsToBeImproved) {
  constexpr int kTexts = 30;
  HeldBack slow;
  auto loader = std::make_unique<KernelLoader>(slow.Tools(compiler_), "", kMuch);
  for (int i = 0; i < kTexts; ++i) {
    ASSERT_TRUE(loader->Load("text " + std::to_string(i), KernelChoice::kSoonest).ok());
  }
  slow.WaitForFirst();
  loader->StopImproving();
  slow.PermitAll();
  loader.reset();
  EXPECT_EQ(slow.begun(), 1);
}

}  // namespace
}  // namespace simgrad::sim::cuda
