#include "tests/sim/backend/cuda/host_shim/compiled_text.h"

#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "tests/sim/backend/cuda/host_shim/host_compiler.h"

namespace simgrad::tests {
namespace {

using Result = absl::StatusOr<std::shared_ptr<void>>;

class Compiler {
 public:
  static Compiler& Get() {
    static auto* const compiler = new Compiler;
    return *compiler;
  }

  Result Compile(const std::string& text) {
    std::promise<Result> promise;
    std::shared_future<Result> made;
    bool first = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto [found, is_new] = texts_.try_emplace(text);
      if (is_new) found->second = promise.get_future().share();
      first = is_new;
      made = found->second;
    }
    if (first) promise.set_value(CompileNew(text));
    return made.get();
  }

  CompileCounts counts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

 private:
  // The headers come from the binary, as on a device: what is not embedded is missed here too.
  Compiler() {
    for (const sim::cuda::EmbeddedHeader& header : sim::cuda::EmbeddedHeaders()) {
      headers_.emplace_back(header.name, header.text);
    }
  }

  Result CompileNew(const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    const absl::StatusOr<std::string> library = CompileLibrary(text, headers_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++counts_.texts;
      counts_.seconds +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (!library.ok()) return library.status();
    return OpenLibrary(*library);
  }

  std::vector<std::pair<std::string, std::string>> headers_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Result>> texts_;
  CompileCounts counts_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<void>> CompileOnHost(const std::string& text) {
  return Compiler::Get().Compile(text);
}

std::string WithKernels(std::string text) {
  for (const std::string name :
       {"sim/backend/cuda/device/kernels.h", "sim/backend/cuda/device/instance.h",
        "sim/backend/cuda/device/weight_sums.h"}) {
    const std::string include = "#include \"" + name + "\"\n";
    if (text.find(include) == std::string::npos) continue;
    for (const sim::cuda::EmbeddedHeader& header : sim::cuda::EmbeddedHeaders()) {
      if (header.name != name) continue;
      text.replace(text.find(include), include.size(), std::string(header.text) + "\n");
    }
  }
  return text;
}

CompileCounts CompileCountsSoFar() { return Compiler::Get().counts(); }

}  // namespace simgrad::tests
