#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/float_environment.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/fiber_block.h"
#include "tests/sim/backend/cuda/host_shim/late_stream.h"
#include "tests/sim/backend/cuda/host_shim/shim_memory.h"

namespace simgrad::tests {
namespace {

using sim::cuda::GeneratedSource;
using sim::cuda::KernelArgs;
using sim::cuda::LaunchShape;
using sim::cuda::MemoryKind;

// As cuda_host_shim.h declares it.
struct Index {
  unsigned x, y, z;
};
struct Shim {
  Index thread, block, block_size, grid_size;
  int (*barrier)(const char*, int, int);
};
using Entry = void (*)(KernelArgs);

struct HostModule : sim::cuda::Module {
  std::shared_ptr<const CompiledText> text;
};

class HostStream : public LateStream {
 public:
  HostStream(std::shared_ptr<ShimMemory> memory, std::shared_ptr<Waits> waits, Pace pace,
             uint64_t seed)
      : LateStream(std::move(memory), std::move(waits), pace), order_(seed) {}

  absl::Status Launch(const sim::cuda::Module& module, const std::string& entry, LaunchShape shape,
                      const KernelArgs& args) override {
    return Later([this, text = static_cast<const HostModule&>(module).text, entry, shape, args] {
      return Run(*text, entry, shape, args);
    });
  }

 private:
  absl::Status Run(const CompiledText& text, const std::string& entry, LaunchShape shape,
                   const KernelArgs& args) {
    auto* const shim = static_cast<Shim*>(text.Find("simgrad_shim"));
    const auto call = reinterpret_cast<Entry>(text.Find(entry));
    const auto shared = reinterpret_cast<unsigned char* (*)()>(text.Find("simgrad_shared_memory"));
    if (call == nullptr || shim == nullptr || shared == nullptr) {
      return absl::InternalError(absl::StrCat("the text has no entry point ", entry));
    }
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    const precision::ScopedFloatEnvironment environment;
    shim->block_size = {static_cast<unsigned>(shape.block), 1, 1};
    shim->grid_size = {static_cast<unsigned>(shape.grid), 1, 1};
    shim->barrier = &FiberBlock::Barrier;
    for (int64_t block = 0; block < shape.grid; ++block) {
      shim->block = {static_cast<unsigned>(block), 0, 0};
      if (shape.shared_bytes > 0) {
        std::memset(shared(), kFreshByte, static_cast<size_t>(shape.shared_bytes));
      }
      const auto resume = [&](int thread) { shim->thread = {static_cast<unsigned>(thread), 0, 0}; };
      absl::Status status = block_.Run(shape.block, order_, resume, [&](int) { call(args); });
      if (!status.ok())
        return absl::InternalError(absl::StrCat(entry, ": ", std::string(status.message())));
    }
    if (!memory().AllWhole()) {
      return absl::InternalError(absl::StrCat(entry, " wrote past the end of a buffer"));
    }
    return absl::OkStatus();
  }

  std::mt19937_64 order_;
  FiberBlock block_;
};

class HostShimDevice : public sim::cuda::Device {
 public:
  explicit HostShimDevice(HostShimOptions options)
      : options_(std::move(options)),
        memory_(std::make_shared<ShimMemory>(options_.memory_bytes, options_.pinned_bytes,
                                             options_.failing_allocation)),
        waits_(std::make_shared<Waits>(options_.skipped_wait)) {
    limits_.name = "host shim";
    limits_.multiprocessors = 2;
    limits_.memory_bytes = options_.memory_bytes;
  }
  ~HostShimDevice() override {
    if (options_.counts) *options_.counts = {memory_->allocations(), waits_->count()};
  }
  const sim::cuda::DeviceLimits& limits() const override { return limits_; }
  sim::cuda::DeviceUse Use() const override {
    sim::cuda::DeviceUse use;
    use.memory_used_bytes = memory_->taken(MemoryKind::kDevice);
    use.pinned_bytes = memory_->taken(MemoryKind::kPinned);
    use.memory_total_bytes = options_.memory_bytes;
    return use;
  }
  absl::StatusOr<std::unique_ptr<sim::cuda::Stream>> OpenStream() override {
    const Pace pace = streams_++ == options_.hurried_stream ? Pace::kHurried : Pace::kLate;
    return std::make_unique<HostStream>(memory_, waits_, pace, options_.seed);
  }
  absl::StatusOr<std::unique_ptr<sim::cuda::Event>> MakeEvent() override {
    return std::make_unique<LateEvent>(waits_);
  }
  absl::StatusOr<std::shared_ptr<const sim::cuda::Module>> Load(
      const GeneratedSource& source) override {
    auto text = CompileOnHost(options_.plant ? options_.plant(source.text) : source.text);
    if (!text.ok()) return text.status();
    auto module = std::make_shared<HostModule>();
    module->text = *std::move(text);
    return std::shared_ptr<const sim::cuda::Module>(std::move(module));
  }
  absl::StatusOr<int64_t> ResidentBlocks(const sim::cuda::Module&, const std::string&, int,
                                         int64_t) override {
    return int64_t{3};  // few, so that blocks go round
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryKind kind) override {
    return memory_->Take(bytes, kind);
  }
  void Free(void* data, MemoryKind) override { memory_->Give(data); }

 private:
  HostShimOptions options_;
  std::shared_ptr<ShimMemory> memory_;
  std::shared_ptr<Waits> waits_;
  std::atomic<int64_t> streams_{0};
  sim::cuda::DeviceLimits limits_;
};

}  // namespace

std::shared_ptr<sim::cuda::Device> MakeHostShimDevice(const HostShimOptions& options) {
  return std::make_shared<HostShimDevice>(options);
}

}  // namespace simgrad::tests
