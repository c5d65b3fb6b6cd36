#include "tests/sim/backend/cuda/host_shim/host_launch.h"

#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "precision/float_environment.h"
#include "tests/sim/backend/cuda/host_shim/fiber_block.h"

namespace simgrad::tests {
namespace {

constexpr uint8_t kFresh = 0xCB;

// As cuda_host_shim.h declares it.
struct Index {
  unsigned x, y, z;
};
struct Shim {
  Index thread, block, block_size, grid_size;
  unsigned (*await)(const char*, int, int, unsigned);
};
using Entry = void (*)(sim::cuda::KernelArgs);

}  // namespace

absl::Status LaunchOnHost(const std::function<void*(const char*)>& find, const std::string& entry,
                          const sim::cuda::LaunchShape& shape, const sim::cuda::KernelArgs& args,
                          std::mt19937_64& order) {
  auto* const shim = static_cast<Shim*>(find("simgrad_shim"));
  const auto call = reinterpret_cast<Entry>(find(entry.c_str()));
  const auto shared = reinterpret_cast<unsigned char* (*)()>(find("simgrad_shared_memory"));
  if (call == nullptr || shim == nullptr || shared == nullptr) {
    return absl::InternalError(absl::StrCat("the text has no entry point ", entry));
  }
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  static auto* const fibers = new FiberBlock;
  const precision::ScopedFloatEnvironment environment;
  shim->block_size = {static_cast<unsigned>(shape.block), 1, 1};
  shim->grid_size = {static_cast<unsigned>(shape.grid), 1, 1};
  shim->await = &FiberBlock::Await;
  for (int64_t block = 0; block < shape.grid; ++block) {
    shim->block = {static_cast<unsigned>(block), 0, 0};
    if (shape.shared_bytes > 0) {
      std::memset(shared(), kFresh, static_cast<size_t>(shape.shared_bytes));
    }
    const auto resume = [&](int thread) { shim->thread = {static_cast<unsigned>(thread), 0, 0}; };
    const absl::Status status = fibers->Run(shape.block, order, resume, [&](int) { call(args); });
    if (!status.ok()) {
      return absl::InternalError(absl::StrCat(entry, ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace simgrad::tests
