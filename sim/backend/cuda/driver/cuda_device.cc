#include "sim/backend/cuda/driver/cuda_device.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/backend/cuda/compiler/kernel_loader.h"
#include "sim/backend/cuda/compiler/nvrtc_compiler.h"
#include "sim/backend/cuda/driver/cuda_context.h"
#include "sim/backend/cuda/driver/cuda_memory.h"
#include "sim/backend/cuda/driver/pinned_pool.h"

namespace simgrad::sim::cuda {
namespace {

// The most pinned memory that is kept for the next request.
constexpr int64_t kIdlePinnedBytes = int64_t{1} << 30;
// The most bytes of modules; each has some hundred KiB.
constexpr int64_t kMostModuleBytes = int64_t{256} << 20;

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

class CudaDevice : public Device {
 public:
  CudaDevice(std::shared_ptr<Context> context, std::shared_ptr<CudaMemory> memory,
             DeviceLimits limits, KernelTools tools, std::string cache_folder)
      : context_(std::move(context)),
        memory_(std::move(memory)),
        limits_(std::move(limits)),
        kernels_(std::move(tools), std::move(cache_folder), kMostModuleBytes) {}
  ~CudaDevice() override {
    if (!context_->Enter().ok()) return;
    pinned_.Clear([this](void* data) { context_->driver().cuMemFreeHost(data); });
  }

  const DeviceLimits& limits() const override { return limits_; }
  DeviceUse Use() const override;
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream() override;
  absl::StatusOr<std::unique_ptr<Event>> MakeEvent() override {
    return std::make_unique<CudaEvent>(context_, CudaEvent::Use::kOrder);
  }
  absl::StatusOr<std::shared_ptr<const Module>> Load(const GeneratedSource& source,
                                                     KernelChoice choice) override {
    return kernels_.Load(source.text, choice);
  }
  int64_t Relieve(int64_t bytes) override { return kernels_.Relieve(bytes); }
  absl::StatusOr<int64_t> ResidentBlocks(const Module& module, const std::string& entry, int block,
                                         int64_t shared_bytes) override;
  int64_t TakenBytes(int64_t bytes, MemoryKind kind) const override {
    return kind == MemoryKind::kPinned ? PinnedPool::SizeFor(bytes) : bytes;
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryKind kind) override;
  void Free(void* data, MemoryKind kind) override;

 private:
  absl::StatusOr<void*> AllocatePinned(int64_t bytes);
  int64_t& UsedBytes(MemoryKind kind) {
    return kind == MemoryKind::kDevice ? memory_used_bytes_ : pinned_used_bytes_;
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<CudaMemory> memory_;
  DeviceLimits limits_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> taken_;
  PinnedPool pinned_{kIdlePinnedBytes};
  int64_t memory_used_bytes_ = 0, pinned_used_bytes_ = 0;
  KernelLoader kernels_;
};

DeviceUse CudaDevice::Use() const {
  DeviceUse use;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    use.memory_used_bytes = memory_used_bytes_;
    use.pinned_bytes = pinned_used_bytes_;
  }
  use.memory_total_bytes = limits_.memory_bytes;
  context_->AddTo(use);
  kernels_.AddTo(use);
  return use;
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::OpenStream() {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  CUstream stream = nullptr;
  const absl::Status status = context_->Check(
      context_->driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (!status.ok()) return status;
  return std::make_unique<CudaStream>(shared_from_this(), context_, memory_, stream);
}

// Usable by kernels under the same address (unified addressing).
absl::StatusOr<void*> CudaDevice::AllocatePinned(int64_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (void* const kept = pinned_.Take(bytes)) return kept;
  }
  void* address = nullptr;
  const absl::Status status = context_->Check(
      context_->driver().cuMemHostAlloc(&address, static_cast<size_t>(bytes),
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      "cuMemHostAlloc");
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the host has no ", bytes, " bytes of memory that can be pinned"));
  }
  if (!status.ok()) return status;
  return address;
}

absl::StatusOr<void*> CudaDevice::AllocateBytes(int64_t bytes, MemoryKind kind) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  const auto note = [&](void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_[address] = bytes;
    UsedBytes(kind) += bytes;
    return address;
  };
  if (kind == MemoryKind::kPinned) {
    bytes = TakenBytes(bytes, kind);
    const absl::StatusOr<void*> pinned = AllocatePinned(bytes);
    if (!pinned.ok()) return pinned.status();
    return note(*pinned);
  }
  const absl::StatusOr<CUdeviceptr> data = memory_->Take(bytes);
  if (!data.ok()) return data.status();
  return note(reinterpret_cast<void*>(*data));
}

void CudaDevice::Free(void* data, MemoryKind kind) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t bytes = taken_[data];
    UsedBytes(kind) -= bytes;
    taken_.erase(data);
    if (kind == MemoryKind::kPinned && pinned_.Keep(data, bytes)) return;
  }
  if (kind == MemoryKind::kDevice) return memory_->Give(Address(data));
  if (!context_->Enter().ok()) return;
  context_->Check(context_->driver().cuMemFreeHost(data), "cuMemFreeHost").IgnoreError();
}

absl::StatusOr<int64_t> CudaDevice::ResidentBlocks(const Module& module, const std::string& entry,
                                                   int block, int64_t shared_bytes) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  const auto function = static_cast<const CudaModule&>(module).Find(entry);
  if (!function.ok()) return function.status();
  absl::Status status = AllowShared(*context_, *function, shared_bytes);
  int blocks = 0;
  if (status.ok()) {
    status = context_->Check(context_->driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                 &blocks, *function, block, static_cast<size_t>(shared_bytes)),
                             "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  }
  if (!status.ok()) return status;
  return std::max<int64_t>(1, int64_t{blocks} * limits_.multiprocessors);
}

absl::StatusOr<KernelTools> ToolsOf(const std::shared_ptr<Context>& context,
                                    const std::shared_ptr<CudaMemory>& memory,
                                    const std::string& architecture) {
  KernelTools tools;
  absl::StatusOr<std::string> best = NvrtcOptionsText(architecture, Optimisation::kBest);
  if (!best.ok()) return best.status();
  tools.best_options = *std::move(best);
  if (NvrtcCompilesQuickly()) {
    absl::StatusOr<std::string> least = NvrtcOptionsText(architecture, Optimisation::kLeast);
    if (!least.ok()) return least.status();
    tools.least_options = *std::move(least);
  }
  tools.compile = [architecture](const std::string& text, Optimisation optimisation) {
    return CompileWithNvrtc(text, architecture, optimisation);
  };
  tools.load = [context, memory](const std::string& image) {
    return CudaModule::Load(context, memory, image);
  };
  return tools;
}

absl::StatusOr<int> Attribute(const Driver& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  const absl::Status status = DriverStatus(
      driver, driver.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  if (!status.ok()) return status;
  return value;
}

absl::StatusOr<CudaDeviceInfo> InfoOf(const Driver& driver, int index) {
  CudaDeviceInfo info;
  info.index = index;
  CUdevice device = 0;
  absl::Status status = DriverStatus(driver, driver.cuDeviceGet(&device, index), "cuDeviceGet");
  std::array<char, 256> name{};
  if (status.ok()) {
    status = DriverStatus(
        driver, driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
        "cuDeviceGetName");
  }
  CUuuid uuid = {};
  if (status.ok()) {
    status = DriverStatus(driver, driver.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
  }
  size_t bytes = 0;
  if (status.ok()) {
    status = DriverStatus(driver, driver.cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  }
  if (!status.ok()) return status;
  const auto major = Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  if (!major.ok()) return major.status();
  const auto minor = Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (!minor.ok()) return minor.status();
  info.name = name.data();
  // A part of a GPU (MIG) has a UUID of its own; the driver says so in the name alone.
  info.uuid = info.name.find(" MIG ") == std::string::npos ? "GPU-" : "MIG-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) info.uuid += '-';
    absl::StrAppendFormat(&info.uuid, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  info.architecture = absl::StrCat("sm_", *major, *minor);
  info.memory_bytes = static_cast<int64_t>(bytes);
  info.driver = VersionText(driver.version);
  return info;
}

absl::StatusOr<DeviceLimits> LimitsOf(const Context& context, const CudaDeviceInfo& info) {
  DeviceLimits limits;
  limits.name = info.name;
  limits.memory_bytes = info.memory_bytes;
  const auto take = [&](CUdevice_attribute attribute, auto& to) -> absl::Status {
    const auto value = Attribute(context.driver(), context.device(), attribute);
    if (value.ok()) to = *value;
    return value.status();
  };
  absl::Status status = take(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, limits.multiprocessors);
  status.Update(
      take(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, limits.threads_per_multiprocessor));
  status.Update(
      take(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, limits.shared_bytes_per_block));
  int clock_khz = 0;
  status.Update(take(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, clock_khz));
  limits.clock_hz = 1e3 * clock_khz;
  int watchdog = 0;
  status.Update(take(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, watchdog));
  limits.launch_time = watchdog != 0 ? LaunchTime::kWatched : LaunchTime::kFree;
  if (!status.ok()) return status;
  return limits;
}

}  // namespace

bool IsCudaBuilt() { return true; }
std::string CudaBuildVersion() { return VersionText(CUDA_VERSION); }

absl::StatusOr<std::vector<CudaDeviceInfo>> ListCudaDevices() {
  const absl::StatusOr<const Driver*> driver = Driver::Get();
  if (!driver.ok()) return driver.status();
  int count = 0;
  const absl::Status status =
      DriverStatus(**driver, (*driver)->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.ok()) return status;
  if (count == 0) return absl::FailedPreconditionError("the NVIDIA driver finds no GPU");
  std::vector<CudaDeviceInfo> devices;
  for (int index = 0; index < count; ++index) {
    absl::StatusOr<CudaDeviceInfo> info = InfoOf(**driver, index);
    if (!info.ok()) {
      info = CudaDeviceInfo{.index = index, .status = info.status()};
    }
    devices.push_back(*std::move(info));
  }
  return devices;
}

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const CudaDeviceOptions& options) {
  const auto devices = ListCudaDevices();
  if (!devices.ok()) return devices.status();
  if (options.index < 0 || options.index >= static_cast<int>(devices->size())) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", options.index,
                                            "; this machine has ", devices->size(),
                                            ", counted from 0"));
  }
  const CudaDeviceInfo& info = (*devices)[static_cast<size_t>(options.index)];
  if (!info.status.ok()) return info.status;
  // Without NVRTC nothing can run: say so now, not at the first request.
  if (const auto known = NvrtcOptionsText(info.architecture, Optimisation::kBest); !known.ok()) {
    return known.status();
  }
  const Driver& driver = **Driver::Get();
  auto context = Context::Open(driver, options.index);
  if (!context.ok()) return context.status();
  auto memory = CudaMemory::Open(*context, info.memory_bytes);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<DeviceLimits> limits = LimitsOf(**context, info);
  if (!limits.ok()) return limits.status();
  absl::StatusOr<KernelTools> tools = ToolsOf(*context, *memory, info.architecture);
  if (!tools.ok()) return tools.status();
  tools->watch = options.watch;
  return std::make_shared<CudaDevice>(*std::move(context), *std::move(memory), *std::move(limits),
                                      *std::move(tools), options.kernel_cache_folder);
}

}  // namespace simgrad::sim::cuda
