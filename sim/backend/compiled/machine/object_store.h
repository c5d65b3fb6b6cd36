// Objects that were compiled before, found again by all that they were compiled from.
//
// For programs that compile the same modules in every run, which are the tests: nine tenths of their time goes
// into compiling. A server keeps kernels by the structure of their plans (kernel_cache.h), and so writes no
// module where it has the kernel.
// Threads: any, but for KeepObjectsIn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/backend/kernel_folder.h"

namespace llvm {
class Module;
}

namespace simgrad::sim::compiled {

// From now on this process keeps its objects in `folder`, up to `most_bytes`, and looks for them there first;
// empty: no longer. To be called while nothing is compiled.
void KeepObjectsIn(const std::string& folder, int64_t most_bytes);

// Null where objects are not kept.
const KernelFolder* KeptObjects();

// The digest of the module, of `options`, of the source `compiler` and of LLVM's library.
std::string ObjectKey(const llvm::Module& module, std::string_view options,
                      std::string_view compiler);

}  // namespace simgrad::sim::compiled
