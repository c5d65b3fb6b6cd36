// A machine that runs generated kernels: its memory, its modules, its launches, in order.
//
// Two implementations: CudaDevice (cuda_device.h, driver API and NVRTC), and in the tests a host
// that compiles the same text with the host compiler and runs its threads as fibers.
// Errors: INTERNAL with the compiler's log for a text that does not compile; RESOURCE_EXHAUSTED
//   when memory is short; UNAVAILABLE with reason DEVICE_LOST after a sticky error.
// Threads: a Device may be used by several threads; a Stream by one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {

// How long a launch may take.
enum class LaunchTime : uint8_t {
  kFree,
  kWatched,  // a GPU that drives a display: its watchdog stops a launch after some seconds
};

struct DeviceLimits {
  std::string name;
  int multiprocessors = 1;
  int threads_per_multiprocessor = 2048;
  int64_t shared_bytes_per_block = 48 << 10;
  int64_t memory_bytes = 0;
  double clock_hz = 0.0;  // the highest
  LaunchTime launch_time = LaunchTime::kFree;
};

// The use of a device, for metrics.
struct DeviceUse {
  int64_t memory_used_bytes = 0;  // by this process
  int64_t pinned_bytes = 0;       // of the host, by this process
  int64_t memory_total_bytes = 0;
  double busy_seconds = 0.0;  // of launches
  double compile_seconds = 0.0;
  uint64_t compiled = 0, loaded_from_disk = 0, loaded_from_memory = 0;  // texts
  uint64_t memory_errors = 0, lost_errors = 0, other_errors = 0;
  bool lost = false;  // after a sticky error: nothing runs on it any more
};

// UNAVAILABLE, told from other such statuses by IsDeviceLost.
absl::Status DeviceLostError(const std::string& message);
bool IsDeviceLost(const absl::Status& status);

struct LaunchShape {
  int64_t grid = 1;
  int block = 128;
  int64_t shared_bytes = 0;
};

class Device;

// kPinned is memory of the host. A device copies to and from it while the host goes on; kernels can
// use it too, over the bus.
enum class MemoryKind : uint8_t { kDevice, kPinned };

// Memory that kernels can use; freed with its owner. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Device> device, MemoryKind kind, void* data, int64_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();
  MemoryKind kind() const { return kind_; }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  MemoryKind kind_ = MemoryKind::kDevice;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A compiled text.
class Module {
 public:
  // `bytes`: of its image, which stands for what the driver and the device keep of it.
  explicit Module(int64_t bytes = 0) : bytes_(bytes) {}
  virtual ~Module() = default;
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
};

// A point in the work of a stream. Until it is recorded, nothing waits for it.
class Event {
 public:
  virtual ~Event() = default;
  virtual absl::Status Wait() = 0;  // the host, until the point has been passed
};

// Runs work in the order in which it was given. Copies and launches may return before they are
// done; the next Wait then returns their error. Only events order two streams.
class Stream {
 public:
  virtual ~Stream() = default;
  // `from` may change after the call returns. A large copy waits for the stream.
  virtual absl::Status ToDevice(void* to, const void* from, int64_t bytes) = 0;
  // `from` is pinned and stays as it is until the copy is done; does not wait.
  virtual absl::Status FromPinned(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status ToHost(void* to, const void* from, int64_t bytes) = 0;    // waits
  virtual absl::Status ToPinned(void* to, const void* from, int64_t bytes) = 0;  // does not wait
  virtual absl::Status OnDevice(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status Fill(void* to, uint8_t byte, int64_t bytes) = 0;
  virtual absl::Status Launch(const Module& module, const std::string& entry, LaunchShape shape,
                              const KernelArgs& args) = 0;
  virtual absl::Status Record(Event& event) = 0;
  // Work given from now on begins after the event; the host does not wait.
  virtual absl::Status WaitFor(Event& event) = 0;
  virtual absl::Status Wait() = 0;
};

// About the seconds that compiling the best kernel of a text takes. Measured in processor seconds with NVRTC
// 13.0 for sm_90, the longer of the two parts: 2.5 for a text of 23 kB, 26 for 0.82 MB, 81 for 3.1 MB. One of
// 5.4 MB was not there after 25 minutes of a processor that had much else to do.
constexpr double BestCompileSeconds(int64_t text_bytes) {
  return 2.0 + 27e-6 * static_cast<double>(text_bytes);
}

// The kernel that a run gets; the bits are the same.
enum class KernelChoice : uint8_t {
  kBest,     // optimised, though it may have to be compiled first
  kSoonest,  // if it has to be compiled: with little optimisation, which is faster
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  virtual const DeviceLimits& limits() const = 0;
  virtual DeviceUse Use() const { return {}; }
  virtual absl::StatusOr<std::unique_ptr<Stream>> OpenStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> MakeEvent() = 0;
  // Compiles, or takes from the cache.
  virtual absl::StatusOr<std::shared_ptr<const Module>> Load(const GeneratedSource& source,
                                                             KernelChoice choice) = 0;
  // Gives up about so many bytes of modules that are kept and not in use; returns how many.
  virtual int64_t Relieve(int64_t /*bytes*/) { return 0; }
  // Blocks of an entry point that the whole device runs at once, at least 1.
  virtual absl::StatusOr<int64_t> ResidentBlocks(const Module& module, const std::string& entry,
                                                 int block, int64_t shared_bytes) = 0;
  // Allocates at least one byte; waits for nothing. Errors: RESOURCE_EXHAUSTED with the figures.
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind = MemoryKind::kDevice);
  // The bytes that an allocation takes of the device or the host, at least `bytes`.
  virtual int64_t TakenBytes(int64_t bytes, MemoryKind /*kind*/) const { return bytes; }
  // The number of runs alive on the device.
  std::atomic<int64_t> runs{0};
  // The runs, other than trials, that have launches which they have not waited for yet.
  std::atomic<int64_t> launched{0};

 protected:
  friend class Buffer;
  virtual absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryKind kind) = 0;
  virtual void Free(void* data, MemoryKind kind) = 0;
};

}  // namespace simgrad::sim::cuda
