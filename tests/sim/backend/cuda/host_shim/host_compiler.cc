#include "tests/sim/backend/cuda/host_shim/host_compiler.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/environment.h"

namespace simgrad::tests {
namespace {

namespace fs = std::filesystem;

constexpr int kSharedBytes = 1 << 18;
constexpr char kShim[] = "cuda_host_shim.h";

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "simgrad-kernel-XXXXXX").string();
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
  std::ofstream(path, std::ios::binary) << text;
}

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

absl::StatusOr<std::string> CompileLibrary(
    const std::string& text, const std::vector<std::pair<std::string, std::string>>& headers) {
  const TemporaryFolder folder;
  for (const auto& [name, header] : headers) Write(folder.path() / "include" / name, header);
  const fs::path shim = fs::path(SIMGRAD_HOST_SHIM_FOLDER) / kShim;
  Write(folder.path() / kShim, Read(shim));
  const fs::path library = folder.path() / "kernel.so";
  const fs::path log = folder.path() / "log";
  // The shim's storage stands behind the text, where the size of an extern array is no matter.
  Write(folder.path() / "kernel.cc",
        absl::StrCat(text,
                     "\nSimgradShim simgrad_shim;\n"
                     "alignas(16) unsigned char simgrad_shared[",
                     kSharedBytes,
                     "];\nextern \"C\" SIMGRAD_SHIM_EXPORT unsigned char* "
                     "simgrad_shared_memory() { return simgrad_shared; }\n"));
  // Compiling takes most of a test's time; the long run has the optimiser look at it too. The compiler cache
  // of the build finds a text again, as no name of a folder is in the command.
  const std::string command =
      absl::StrCat("cd ", folder.path().string(),
                   " && { " SIMGRAD_HOST_LAUNCHER " " SIMGRAD_HOST_COMPILER " -std=c++20 ",
                   IsLong() ? "-O1" : "-O0",
                   " -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-gnu-unique"
                   " -fPIC -fvisibility=hidden -fno-exceptions -w -D__CUDA_HOST_SHIM__ -include ",
                   kShim,
                   " -Iinclude -c -o kernel.o kernel.cc"
                   " && " SIMGRAD_HOST_COMPILER " -shared -o kernel.so kernel.o; } >log 2>&1");
  if (std::system(command.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("the host compiler refuses the text:\n",
                                            Read(log).substr(0, 4000), "\n", text));
  }
  return Read(library);
}

absl::StatusOr<std::shared_ptr<void>> OpenLibrary(std::string_view bytes) {
  const TemporaryFolder folder;  // an open library needs no name
  const fs::path path = folder.path() / "kernel.so";
  Write(path, bytes);
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::InternalError(absl::StrCat("dlopen: ", dlerror()));
  return std::shared_ptr<void>(handle, [](void* opened) { dlclose(opened); });
}

}  // namespace simgrad::tests
