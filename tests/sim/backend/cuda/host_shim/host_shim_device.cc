#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_launch.h"

namespace simgrad::tests {
namespace {

using sim::cuda::GeneratedSource;
using sim::cuda::KernelArgs;
using sim::cuda::LaunchShape;

constexpr uint8_t kFresh = 0xCB;
constexpr uint8_t kGuard = 0xA7;
constexpr int64_t kGuardBytes = 64;

struct HostModule : sim::cuda::Module {
  std::shared_ptr<void> library;  // for dlsym
};

// The memory that kernels may use.
class Memory {
 public:
  explicit Memory(int64_t limit) : limit_(limit) {}
  ~Memory() {
    for (auto& [data, bytes] : held_) std::free(data);
  }

  absl::StatusOr<void*> Take(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (taken_ + bytes > limit_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(bytes, " bytes asked for; ", limit_ - taken_, " of ", limit_, " are free"));
    }
    uint8_t* const data =
        static_cast<uint8_t*>(std::malloc(static_cast<size_t>(bytes + kGuardBytes)));
    if (data == nullptr) return absl::ResourceExhaustedError("malloc");
    std::memset(data, kFresh, static_cast<size_t>(bytes));
    std::memset(data + bytes, kGuard, kGuardBytes);
    held_[data] = bytes;
    taken_ += bytes;
    return data;
  }

  void Give(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = broken_ || !Whole(data, held_[data]);
    taken_ -= held_[data];
    held_.erase(data);
    std::free(data);
  }

  int64_t taken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_;
  }

  bool AllWhole() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [data, bytes] : held_) broken_ = broken_ || !Whole(data, bytes);
    return !broken_;
  }

 private:
  static bool Whole(const void* data, int64_t bytes) {
    const uint8_t* const guard = static_cast<const uint8_t*>(data) + bytes;
    for (int64_t i = 0; i < kGuardBytes; ++i) {
      if (guard[i] != kGuard) return false;
    }
    return true;
  }

  int64_t limit_;
  std::mutex mutex_;
  int64_t taken_ = 0;
  std::map<void*, int64_t> held_;
  bool broken_ = false;
};

class HostStream : public sim::cuda::Stream {
 public:
  HostStream(std::shared_ptr<Memory> memory, uint64_t seed)
      : memory_(std::move(memory)), order_(seed) {}

  absl::Status ToDevice(void* to, const void* from, int64_t bytes) override {
    return Copy(to, from, bytes);
  }
  absl::Status ToHost(void* to, const void* from, int64_t bytes) override {
    return Copy(to, from, bytes);
  }
  absl::Status OnDevice(void* to, const void* from, int64_t bytes) override {
    return Copy(to, from, bytes);
  }
  absl::Status Fill(void* to, uint8_t byte, int64_t bytes) override {
    std::memset(to, byte, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status Wait() override { return absl::OkStatus(); }

  absl::Status Launch(const sim::cuda::Module& module, const std::string& entry, LaunchShape shape,
                      const KernelArgs& args) override {
    void* const library = static_cast<const HostModule&>(module).library.get();
    absl::Status status = LaunchOnHost([&](const char* symbol) { return dlsym(library, symbol); },
                                       entry, shape, args, order_);
    if (!status.ok()) return status;
    if (!memory_->AllWhole()) {
      return absl::InternalError(absl::StrCat(entry, " wrote past the end of a buffer"));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  std::shared_ptr<Memory> memory_;
  std::mt19937_64 order_;
};

class HostShimDevice : public sim::cuda::Device {
 public:
  explicit HostShimDevice(HostShimOptions options)
      : options_(std::move(options)), memory_(std::make_shared<Memory>(options_.memory_bytes)) {
    limits_.name = "host shim";
    limits_.multiprocessors = 2;
    limits_.memory_bytes = options_.memory_bytes;
  }
  const sim::cuda::DeviceLimits& limits() const override { return limits_; }
  sim::cuda::DeviceUse Use() const override {
    sim::cuda::DeviceUse use;
    use.memory_used_bytes = memory_->taken();
    use.memory_total_bytes = options_.memory_bytes;
    return use;
  }
  absl::StatusOr<std::unique_ptr<sim::cuda::Stream>> OpenStream() override {
    return std::make_unique<HostStream>(memory_, options_.seed);
  }
  absl::StatusOr<std::shared_ptr<const sim::cuda::Module>> Load(
      const GeneratedSource& source) override {
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
  absl::StatusOr<void*> AllocateBytes(int64_t bytes) override { return memory_->Take(bytes); }
  void Free(void* data) override { memory_->Give(data); }

 private:
  HostShimOptions options_;
  std::shared_ptr<Memory> memory_;
  sim::cuda::DeviceLimits limits_;
};

}  // namespace

std::shared_ptr<sim::cuda::Device> MakeHostShimDevice(const HostShimOptions& options) {
  return std::make_shared<HostShimDevice>(options);
}

}  // namespace simgrad::tests
