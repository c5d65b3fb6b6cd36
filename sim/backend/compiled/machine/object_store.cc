#include "sim/backend/compiled/machine/object_store.h"

#include <dlfcn.h>
#include <llvm/Bitcode/BitcodeWriter.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/raw_ostream.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "sim/text.h"

namespace simgrad::sim::compiled {
namespace {

std::unique_ptr<const KernelFolder>& Store() {
  static std::unique_ptr<const KernelFolder> store;
  return store;
}

// Its version, size and time: an update within one version compiles anew.
std::string LibraryOfLlvm() {
  Dl_info info{};
  void* const function = reinterpret_cast<void*>(&llvm::WriteBitcodeToFile);
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return LLVM_VERSION_STRING;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(info.dli_fname, error);
  const auto time = std::filesystem::last_write_time(info.dli_fname, error).time_since_epoch();
  return Cat(LLVM_VERSION_STRING " ", static_cast<int64_t>(bytes), " ",
             static_cast<int64_t>(time.count()));
}

}  // namespace

void KeepObjectsIn(const std::string& folder, int64_t most_bytes) {
  Store() = folder.empty() ? nullptr : std::make_unique<const KernelFolder>(folder, most_bytes);
}

const KernelFolder* KeptObjects() { return Store().get(); }

std::string ObjectKey(const llvm::Module& module, std::string_view options,
                      std::string_view compiler) {
  static const auto* const library = new std::string(LibraryOfLlvm());
  std::string bitcode;
  llvm::raw_string_ostream written(bitcode);
  llvm::WriteBitcodeToFile(module, written);
  written.flush();
  return KernelKey({bitcode, options, compiler, *library});
}

}  // namespace simgrad::sim::compiled
