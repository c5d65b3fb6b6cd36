// The parts of a CUDA device: its context, and owners of modules, events and streams.
//
// Errors: those of cuda_driver.h, through Context::Check alone, which counts them and remembers a
//   device that is lost.
// Threads: a Context and a CudaModule any, the others one at a time.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/driver/cuda_driver.h"

namespace simgrad::sim::cuda {

class CudaMemory;  // cuda_memory.h

// A device that several owners (streams, modules) share: its context, and what went wrong in it.
class Context {
 public:
  static absl::StatusOr<std::shared_ptr<Context>> Open(const Driver& driver, int index) {
    CUdevice device = 0;
    absl::Status status = DriverStatus(driver, driver.cuDeviceGet(&device, index), "cuDeviceGet");
    if (!status.ok()) return status;
    CUcontext context = nullptr;
    status = DriverStatus(driver, driver.cuDevicePrimaryCtxRetain(&context, device),
                          "cuDevicePrimaryCtxRetain");
    if (!status.ok()) return status;
    return std::shared_ptr<Context>(new Context(driver, device, context));
  }
  ~Context() { driver_.cuDevicePrimaryCtxRelease(device_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const { return driver_; }
  CUdevice device() const { return device_; }

  // The check of every call: counts errors and remembers that the device is lost.
  absl::Status Check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    absl::Status status = DriverStatus(driver_, result, call);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (IsDeviceLost(status)) {
      ++use_.lost_errors;
      use_.lost = true;
    } else {
      ++(absl::IsResourceExhausted(status) ? use_.memory_errors : use_.other_errors);
    }
    return status;
  }
  // Before every call: the context belongs to the calling thread.
  absl::Status Enter() {
    if (lost()) return DeviceLostError("the device was lost to an earlier error");
    return Check(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  }
  bool lost() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return use_.lost;
  }
  void AddBusy(double seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    use_.busy_seconds += seconds;
  }
  // Its errors and busy time.
  void AddTo(DeviceUse& use) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    use.busy_seconds = use_.busy_seconds;
    use.memory_errors = use_.memory_errors;
    use.lost_errors = use_.lost_errors;
    use.other_errors = use_.other_errors;
    use.lost = use_.lost;
  }

 private:
  Context(const Driver& driver, CUdevice device, CUcontext context)
      : driver_(driver), device_(device), context_(context) {}

  const Driver& driver_;
  CUdevice device_;
  CUcontext context_;
  mutable std::mutex mutex_;
  DeviceUse use_;
};

inline CUdeviceptr Address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

class CudaModule : public Module {
 public:
  // The image of a text, or of its two parts (generate.h).
  static absl::StatusOr<std::shared_ptr<const Module>> Load(std::shared_ptr<Context> context,
                                                            std::shared_ptr<CudaMemory> memory,
                                                            const std::string& image);
  ~CudaModule() override {
    if (parts_.empty() || !context_->Enter().ok()) return;
    for (CUmodule part : parts_) context_->driver().cuModuleUnload(part);
  }
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;
  absl::StatusOr<CUfunction> Find(const std::string& entry) const;

 private:
  CudaModule(std::shared_ptr<Context> context, std::shared_ptr<CudaMemory> memory, int64_t bytes)
      : Module(bytes), context_(std::move(context)), memory_(std::move(memory)) {}

  std::shared_ptr<Context> context_;
  std::shared_ptr<CudaMemory> memory_;
  std::vector<CUmodule> parts_;
};

class CudaEvent : public Event {
 public:
  enum class Use : uint8_t { kOrder, kTiming };
  CudaEvent(std::shared_ptr<Context> context, Use use) : context_(std::move(context)), use_(use) {}
  ~CudaEvent() override {
    if (event_ != nullptr && context_->Enter().ok()) context_->driver().cuEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  absl::Status Wait() override {
    if (absl::Status status = context_->Enter(); !status.ok() || event_ == nullptr) return status;
    return context_->Check(context_->driver().cuEventSynchronize(event_), "cuEventSynchronize");
  }
  absl::Status Record(CUstream stream) {
    const Driver& driver = context_->driver();
    absl::Status status;
    if (event_ == nullptr) {
      const unsigned flags = use_ == Use::kTiming ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
      status = context_->Check(driver.cuEventCreate(&event_, flags), "cuEventCreate");
    }
    if (!status.ok()) return status;
    return context_->Check(driver.cuEventRecord(event_, stream), "cuEventRecord");
  }
  absl::Status HoldBack(CUstream stream) const {
    if (event_ == nullptr) return absl::OkStatus();
    return context_->Check(context_->driver().cuStreamWaitEvent(stream, event_, 0),
                           "cuStreamWaitEvent");
  }
  // Both were made for timing and have come to pass.
  double SecondsUntil(const CudaEvent& later) const {
    float milliseconds = 0.0f;
    context_->driver().cuEventElapsedTime(&milliseconds, event_, later.event_);
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  std::shared_ptr<Context> context_;
  Use use_;
  CUevent event_ = nullptr;
};

class CudaStream : public Stream {
 public:
  // `device`: whose pinned memory it uses.
  CudaStream(std::shared_ptr<Device> device, std::shared_ptr<Context> context,
             std::shared_ptr<CudaMemory> memory, CUstream stream)
      : device_(std::move(device)),
        context_(std::move(context)),
        memory_(std::move(memory)),
        stream_(stream) {}
  ~CudaStream() override {
    Wait().IgnoreError();
    if (context_->Enter().ok()) context_->driver().cuStreamDestroy(stream_);
  }

  absl::Status ToDevice(void* to, const void* from, int64_t bytes) override;
  absl::Status FromPinned(void* to, const void* from, int64_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok() || bytes == 0) return status;
    return context_->Check(
        driver().cuMemcpyHtoDAsync(Address(to), from, static_cast<size_t>(bytes), stream_),
        "cuMemcpyHtoDAsync");
  }
  absl::Status ToHost(void* to, const void* from, int64_t bytes) override {
    if (absl::Status status = ToPinned(to, from, bytes); !status.ok()) return status;
    return Wait();
  }
  absl::Status ToPinned(void* to, const void* from, int64_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok() || bytes == 0) return status;
    return context_->Check(
        driver().cuMemcpyDtoHAsync(to, Address(from), static_cast<size_t>(bytes), stream_),
        "cuMemcpyDtoHAsync");
  }
  absl::Status OnDevice(void* to, const void* from, int64_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok() || bytes == 0) return status;
    return context_->Check(
        driver().cuMemcpyDtoDAsync(Address(to), Address(from), static_cast<size_t>(bytes), stream_),
        "cuMemcpyDtoDAsync");
  }
  absl::Status Fill(void* to, uint8_t byte, int64_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok() || bytes == 0) return status;
    return context_->Check(
        driver().cuMemsetD8Async(Address(to), byte, static_cast<size_t>(bytes), stream_),
        "cuMemsetD8Async");
  }
  absl::Status Launch(const Module& module, const std::string& entry, LaunchShape shape,
                      const KernelArgs& args) override;
  absl::Status Record(Event& event) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    return static_cast<CudaEvent&>(event).Record(stream_);
  }
  absl::Status WaitFor(Event& event) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    return static_cast<CudaEvent&>(event).HoldBack(stream_);
  }
  absl::Status Wait() override;

 private:
  const Driver& driver() const { return context_->driver(); }
  // Takes `bytes` of the pinned memory, for a copy to the device; null if the host has none.
  absl::StatusOr<void*> TakeStaging(int64_t bytes);
  // The error of a launch for whose threads there is no memory.
  absl::Status NoLocalMemory(CUfunction function, const std::string& entry);

  std::shared_ptr<Device> device_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<CudaMemory> memory_;
  CUstream stream_;
  Buffer staging_;
  int64_t staged_bytes_ = 0;  // of it, since the last wait
  // Around each launch since the last wait, for the busy time.
  struct Timed {
    explicit Timed(const std::shared_ptr<Context>& context)
        : begin(context, CudaEvent::Use::kTiming), end(context, CudaEvent::Use::kTiming) {}
    CudaEvent begin, end;
  };
  std::vector<std::unique_ptr<Timed>> timed_;  // kept for the next launches
  size_t launches_ = 0;
};

// Lets a function use more dynamic shared memory than a launch may without asking.
absl::Status AllowShared(Context& context, CUfunction function, int64_t bytes);

}  // namespace simgrad::sim::cuda
