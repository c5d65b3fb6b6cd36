// From generated texts to modules: from memory, else from the folder, else from the compiler.
//
// Optimising a text takes seconds. The first request therefore runs a kernel that was compiled
// almost without optimisation, while a thread of the loader compiles the optimised one for later
// requests. Both compute the same bits. Of a text whose best kernel takes minutes it does not.
// Errors: those of the compiler and of loading; RESOURCE_EXHAUSTED if the watch has no memory for a
//   compilation. Errors are not kept. Threads: any; requests for one text share one compilation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "sim/backend/compile_watch.h"
#include "sim/backend/cuda/compiler/module_cache.h"
#include "sim/backend/cuda/compiler/nvrtc_compiler.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/kernel_folder.h"

namespace simgrad::sim::cuda {

// The functions of a compiler and a device that a loader needs.
struct KernelTools {
  // Compiles a text to an image.
  std::function<absl::StatusOr<std::string>(const std::string&, Optimisation)> compile;
  std::function<ModuleCache::Loaded(const std::string& image)> load;
  // All that an image depends on beside text and headers. No `least`: there is no such compilation.
  std::string best_options;
  std::string least_options;
  // Told of compilations, and asked for their memory and for that of modules.
  std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>();
};

class KernelLoader {
 public:
  // `folder`: of compiled kernels, the best ones alone; empty: none. `most_bytes`: of modules in memory.
  KernelLoader(KernelTools tools, std::string folder, int64_t most_bytes);
  // Waits for the text that is being compiled, if there is one.
  ~KernelLoader();

  ModuleCache::Loaded Load(const std::string& text, KernelChoice choice);
  // Leaves what still waits for its best kernel; does not wait. The end of the loader does it too.
  void StopImproving() { improver_.request_stop(); }
  int64_t Relieve(int64_t bytes) { return modules_.Relieve(bytes); }  // as Device
  void AddTo(DeviceUse& use) const;

 private:
  using Loaded = ModuleCache::Loaded;
  struct Text {
    std::string text;
    std::string key;  // of its best image
  };

  Loaded LoadBest(const Text& text);
  Loaded MakeBest(const Text& text);
  Loaded LoadLeast(const Text& text);
  Loaded Compile(const std::string& text, Optimisation optimisation, std::string* image);
  void AskForBest(const Text& text);
  void Improve(std::stop_token stop);
  void Count(uint64_t DeviceUse::*counter);

  const KernelTools tools_;
  const KernelFolder folder_;
  ModuleCache modules_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Text> to_improve_;     // bounded; what found no room asks again when it is used again
  std::set<std::string> hopeless_;  // keys of texts whose best kernel cannot be made
  DeviceUse use_;                   // its compile_seconds, compiled and loaded_from_...
  std::jthread improver_;
};

}  // namespace simgrad::sim::cuda
