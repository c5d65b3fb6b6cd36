#include "sim/backend/cuda/compiler/kernel_loader.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {
namespace {

// A minute or two of compiling.
constexpr size_t kMostToImprove = 32;
// A longer compilation is not begun for later runs: it would hold up that of other texts, and keep a
// processor from the requests.
constexpr double kLongestImproving = 120.0;  // seconds
// Keys of texts that cannot be improved: 64 KiB.
constexpr size_t kMostHopeless = 1024;

// The digest of the names and texts of all embedded headers.
const std::string& HeadersDigest() {
  static const auto* const digest = [] {
    std::string all;
    for (const EmbeddedHeader& header : EmbeddedHeaders()) {
      all += KernelKey({header.name, header.text});
    }
    return new std::string(KernelKey({all}));
  }();
  return *digest;
}

}  // namespace

KernelLoader::KernelLoader(KernelTools tools, std::string folder, int64_t most_bytes)
    : tools_(std::move(tools)),
      folder_(std::move(folder), kMostKernelBytes, tools_.watch),
      modules_(most_bytes, tools_.watch) {
  if (tools_.least_options.empty()) return;
  improver_ = std::jthread([this](std::stop_token stop) { Improve(std::move(stop)); });
}

KernelLoader::~KernelLoader() = default;  // the thread ends first: it is the last member

ModuleCache::Loaded KernelLoader::Load(const std::string& text, KernelChoice choice) {
  const Text best = {text, KernelKey({text, tools_.best_options, HeadersDigest()})};
  if (choice == KernelChoice::kBest || tools_.least_options.empty()) return LoadBest(best);
  if (const auto ready = modules_.Find(best.key)) {
    Count(&DeviceUse::loaded_from_memory);
    return ready;
  }
  if (folder_.Find(best.key)) return LoadBest(best);
  return LoadLeast(best);
}

KernelLoader::Loaded KernelLoader::LoadBest(const Text& text) {
  ModuleCache::Answer answer = modules_.Get(text.key, [&] { return MakeBest(text); });
  if (!answer.made) Count(&DeviceUse::loaded_from_memory);
  return std::move(answer.module);
}

KernelLoader::Loaded KernelLoader::MakeBest(const Text& text) {
  if (const std::optional<std::string> image = folder_.Find(text.key)) {
    Loaded loaded = tools_.load(*image);
    if (loaded.ok()) Count(&DeviceUse::loaded_from_disk);
    // Only a device that is gone is a reason not to compile it anew.
    if (loaded.ok() || IsDeviceLost(loaded.status())) return loaded;
  }
  std::string image;
  Loaded loaded = Compile(text.text, Optimisation::kBest, &image);
  if (loaded.ok()) folder_.Keep(text.key, image);
  return loaded;
}

KernelLoader::Loaded KernelLoader::LoadLeast(const Text& text) {
  const std::string key = KernelKey({text.text, tools_.least_options, HeadersDigest()});
  std::string image;
  ModuleCache::Answer answer =
      modules_.Get(key, [&] { return Compile(text.text, Optimisation::kLeast, &image); });
  if (!answer.made) Count(&DeviceUse::loaded_from_memory);
  if (answer.module.ok()) AskForBest(text);
  return std::move(answer.module);
}

void KernelLoader::AskForBest(const Text& text) {
  if (BestCompileSeconds(static_cast<int64_t>(text.text.size())) > kLongestImproving) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool waits = std::any_of(to_improve_.begin(), to_improve_.end(),
                                 [&](const Text& waiting) { return waiting.key == text.key; });
  if (waits || to_improve_.size() == kMostToImprove || hopeless_.count(text.key) != 0) return;
  to_improve_.push_back(text);
  wake_.notify_one();
}

KernelLoader::Loaded KernelLoader::Compile(const std::string& text, Optimisation optimisation,
                                           std::string* image) {
  const int64_t bytes = NvrtcBytes(static_cast<int64_t>(text.size()));
  const HeldMemory memory = tools_.watch->ForCompile(bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no memory now for the ", bytes, " bytes that compiling takes"));
  }
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::string> compiled = tools_.compile(text, optimisation);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++use_.compiled;
    use_.compile_seconds += seconds;
  }
  if (!compiled.ok()) return compiled.status();
  tools_.watch->Compiled(
      optimisation == Optimisation::kBest ? CompileQuality::kBest : CompileQuality::kQuick,
      seconds);
  *image = *std::move(compiled);
  return tools_.load(*image);
}

// One after the other: what compiles in the background leaves processors to the requests.
void KernelLoader::Improve(std::stop_token stop) {
  for (;;) {
    Text text;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, stop, [this] { return !to_improve_.empty(); });
      if (stop.stop_requested()) return;  // whatever still waits
      text = std::move(to_improve_.front());
      to_improve_.pop_front();
      if (hopeless_.count(text.key) != 0) continue;  // asked for again while it was compiled
    }
    // If the module was made meanwhile, Get finds it; a failure leaves the kernel that works.
    const absl::Status status =
        modules_.Get(text.key, [&] { return MakeBest(text); }).module.status();
    if (status.ok() || absl::IsResourceExhausted(status) || IsDeviceLost(status)) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (hopeless_.size() == kMostHopeless) hopeless_.clear();
    hopeless_.insert(text.key);
  }
}

void KernelLoader::Count(uint64_t DeviceUse::*counter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++(use_.*counter);
}

void KernelLoader::AddTo(DeviceUse& use) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  use.compile_seconds += use_.compile_seconds;
  use.compiled += use_.compiled;
  use.loaded_from_disk += use_.loaded_from_disk;
  use.loaded_from_memory += use_.loaded_from_memory;
}

}  // namespace simgrad::sim::cuda
