#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_launch.h"
#include "tests/sim/backend/cuda/host_shim/late_stream.h"
#include "tests/sim/backend/cuda/host_shim/shim_memory.h"

namespace simgrad::tests {
namespace {

using sim::cuda::GeneratedSource;
using sim::cuda::KernelArgs;
using sim::cuda::LaunchShape;
using sim::cuda::MemoryKind;

struct HostModule : sim::cuda::Module {
  std::shared_ptr<void> library;  // for dlsym
};

// Numbers the copies of one direction; from the failing one on they fail.
struct Copies {
  bool Fails() {
    const int64_t number = count++;
    return failing >= 0 && number >= failing;
  }
  std::atomic<int64_t> count{0};
  int64_t failing = -1;
};

// What the streams of a device share.
struct Shared {
  Copies reads, pinned;
  std::function<void(const std::string& entry)> on_launch;
};

absl::Status Lost() { return absl::UnavailableError("the device is lost"); }

class HostStream : public LateStream {
 public:
  HostStream(std::shared_ptr<ShimMemory> memory, std::shared_ptr<Waits> waits,
             std::shared_ptr<Shared> shared, Pace pace, uint64_t seed)
      : LateStream(std::move(memory), std::move(waits), pace),
        shared_(std::move(shared)),
        order_(seed) {}

  absl::Status ToHost(void* to, const void* from, int64_t bytes) override {
    return shared_->reads.Fails() ? Lost() : LateStream::ToHost(to, from, bytes);
  }

  absl::Status ToPinned(void* to, const void* from, int64_t bytes) override {
    return shared_->pinned.Fails() ? Later(Lost) : LateStream::ToPinned(to, from, bytes);
  }

  absl::Status Launch(const sim::cuda::Module& module, const std::string& entry, LaunchShape shape,
                      const KernelArgs& args) override {
    if (shared_->on_launch) shared_->on_launch(entry);
    return Later([this, library = static_cast<const HostModule&>(module).library, entry, shape,
                  args] { return Run(library.get(), entry, shape, args); });
  }

 private:
  absl::Status Run(void* library, const std::string& entry, LaunchShape shape,
                   const KernelArgs& args) {
    absl::Status status = LaunchOnHost([&](const char* symbol) { return dlsym(library, symbol); },
                                       entry, shape, args, order_);
    if (!status.ok()) return status;
    if (!memory().AllWhole()) {
      return absl::InternalError(absl::StrCat(entry, " wrote past the end of a buffer"));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Shared> shared_;
  std::mt19937_64 order_;
};

class HostShimDevice : public sim::cuda::Device {
 public:
  explicit HostShimDevice(HostShimOptions options)
      : options_(std::move(options)),
        memory_(std::make_shared<ShimMemory>(options_.memory_bytes, options_.pinned_bytes,
                                             options_.failing_allocation)),
        waits_(std::make_shared<Waits>(options_.skipped_wait)),
        shared_(std::make_shared<Shared>()) {
    shared_->reads.failing = options_.failing_read;
    shared_->pinned.failing = options_.failing_pinned_copy;
    shared_->on_launch = options_.on_launch;
    limits_.name = "host shim";
    limits_.multiprocessors = 2;
    limits_.memory_bytes = options_.memory_bytes;
  }
  ~HostShimDevice() override {
    if (options_.counts)
      *options_.counts = {memory_->allocations(), waits_->count(), shared_->reads.count,
                          shared_->pinned.count};
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
    return std::make_unique<HostStream>(memory_, waits_, shared_, pace, options_.seed);
  }
  absl::StatusOr<std::unique_ptr<sim::cuda::Event>> MakeEvent() override {
    return std::make_unique<LateEvent>(waits_);
  }
  absl::StatusOr<std::shared_ptr<const sim::cuda::Module>> Load(const GeneratedSource& source,
                                                                sim::cuda::KernelChoice) override {
    auto library = CompileOnHost(options_.plant ? options_.plant(source.text) : source.text);
    if (!library.ok()) return library.status();
    auto module = std::make_shared<HostModule>();
    module->library = *std::move(library);
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
  std::shared_ptr<Shared> shared_;
  std::atomic<int64_t> streams_{0};
  sim::cuda::DeviceLimits limits_;
};

}  // namespace

std::shared_ptr<sim::cuda::Device> MakeHostShimDevice(const HostShimOptions& options) {
  return std::make_shared<HostShimDevice>(options);
}

}  // namespace simgrad::tests
