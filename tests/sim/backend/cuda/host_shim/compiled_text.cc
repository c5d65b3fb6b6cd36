#include "tests/sim/backend/cuda/host_shim/compiled_text.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::tests {
namespace {

using Result = absl::StatusOr<std::shared_ptr<const CompiledText>>;
namespace fs = std::filesystem;

// A folder of this process, gone at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "simgrad-kernels-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void Write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Compiler {
 public:
  static Compiler& Get() {
    static Compiler compiler;
    return compiler;
  }

  Result Compile(const std::string& text) {
    std::promise<Result> promise;
    std::shared_future<Result> made;
    int number = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = texts_.find(text);
      if (found != texts_.end()) {
        made = found->second;
      } else {
        made = promise.get_future().share();
        number = static_cast<int>(texts_.size());
        texts_.emplace(text, made);
      }
    }
    if (number >= 0) promise.set_value(CompileNew(text, number));
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
      Write(folder_.path() / "include" / std::string(header.name), header.text);
    }
  }

  Result CompileNew(const std::string& text, int number) {
    const auto start = std::chrono::steady_clock::now();
    const fs::path base = folder_.path() / absl::StrCat("kernel", number);
    const fs::path source = base.string() + ".cc";
    const fs::path library = base.string() + ".so";
    const fs::path log = base.string() + ".log";
    // The shim's storage stands behind the text, where the size of an extern array is no matter.
    Write(source, absl::StrCat(text,
                               "\nSimgradShim simgrad_shim;\n"
                               "alignas(16) unsigned char simgrad_shared[",
                               kSharedBytes,
                               "];\nextern \"C\" SIMGRAD_SHIM_EXPORT unsigned char* "
                               "simgrad_shared_memory() { return simgrad_shared; }\n"));
    // Compiling takes most of a test's time; the long run has the optimiser look at it too.
    const std::string command =
        absl::StrCat(SIMGRAD_HOST_COMPILER, " -std=c++20 ",
                     std::getenv("SIMGRAD_LONG") != nullptr ? "-O1" : "-O0",
                     " -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-gnu-unique"
                     " -shared -fPIC -fvisibility=hidden -fno-exceptions -w -D__CUDA_HOST_SHIM__"
                     " -include " SIMGRAD_HOST_SHIM_FOLDER "/cuda_host_shim.h -I",
                     (folder_.path() / "include").string(), " -o ", library.string(), " ",
                     source.string(), " >", log.string(), " 2>&1");
    const int code = std::system(command.c_str());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++counts_.texts;
      counts_.seconds +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (code != 0) {
      return absl::InternalError(absl::StrCat("the host compiler refuses the text:\n",
                                              Read(log).substr(0, 4000), "\n", text));
    }
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return absl::InternalError(absl::StrCat("dlopen: ", dlerror()));
    fs::remove(source);
    fs::remove(library);
    return std::make_shared<const CompiledText>(handle);
  }

  static constexpr int kSharedBytes = 1 << 18;
  TemporaryFolder folder_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Result>> texts_;
  CompileCounts counts_;
};

}  // namespace

CompiledText::~CompiledText() { dlclose(handle_); }

void* CompiledText::Find(const std::string& symbol) const { return dlsym(handle_, symbol.c_str()); }

Result CompileOnHost(const std::string& text) { return Compiler::Get().Compile(text); }

CompileCounts CompileCountsSoFar() { return Compiler::Get().counts(); }

}  // namespace simgrad::tests
