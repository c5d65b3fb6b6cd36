#include "sim/backend/cuda/driver/cuda_context.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/compiler/kernel_image.h"
#include "sim/backend/cuda/driver/cuda_memory.h"

namespace simgrad::sim::cuda {
namespace {

// Tables of pointers and numbers for many launches, so that sending them waits for nothing.
constexpr int64_t kStagingBytes = 64 << 10;
// A larger copy is an input of a run: it comes before all work, and waiting for it costs nothing.
constexpr int64_t kMostStaged = kStagingBytes / 4;

}  // namespace

absl::StatusOr<std::shared_ptr<const Module>> CudaModule::Load(std::shared_ptr<Context> context,
                                                               std::shared_ptr<CudaMemory> memory,
                                                               const std::string& image) {
  const auto images = SplitImages(image);
  if (!images.ok()) return images.status();
  if (absl::Status status = context->Enter(); !status.ok()) return status;
  std::shared_ptr<CudaModule> module(
      new CudaModule(context, memory, static_cast<int64_t>(image.size())));
  for (const std::string& part : *images) {
    CUmodule loaded = nullptr;
    const CUresult result =
        memory->WithRoom([&] { return context->driver().cuModuleLoadData(&loaded, part.c_str()); });
    const absl::Status status = context->Check(result, "cuModuleLoadData");
    if (!status.ok()) return status;
    module->parts_.push_back(loaded);
  }
  return std::shared_ptr<const Module>(std::move(module));
}

// The driver may load a kernel only now (CUDA C++ Programming Guide, Lazy Loading).
absl::StatusOr<CUfunction> CudaModule::Find(const std::string& entry) const {
  const CUmodule part = IsOfAdjoint(entry) ? parts_.back() : parts_.front();
  CUfunction function = nullptr;
  const CUresult result = memory_->WithRoom(
      [&] { return context_->driver().cuModuleGetFunction(&function, part, entry.c_str()); });
  const absl::Status status = context_->Check(result, "cuModuleGetFunction");
  if (!status.ok()) return status;
  return function;
}

absl::Status AllowShared(Context& context, CUfunction function, int64_t bytes) {
  constexpr int64_t kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return absl::OkStatus();
  return context.Check(
      context.driver().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          static_cast<int>(bytes)),
      "cuFuncSetAttribute");
}

absl::StatusOr<void*> CudaStream::TakeStaging(int64_t bytes) {
  if (staging_.data() == nullptr) {
    absl::StatusOr<Buffer> pinned = device_->Allocate(kStagingBytes, MemoryKind::kPinned);
    if (absl::IsResourceExhausted(pinned.status())) return nullptr;
    if (!pinned.ok()) return pinned.status();
    staging_ = *std::move(pinned);
  }
  if (staged_bytes_ + bytes > staging_.bytes()) {
    if (absl::Status status = Wait(); !status.ok()) return status;
  }
  void* const place = static_cast<unsigned char*>(staging_.data()) + staged_bytes_;
  staged_bytes_ += bytes;
  return place;
}

// A copy from pageable memory may be read when the stream comes to it: the driver need not copy it
// aside, and where the GPU reads the host's pages itself it does not.
absl::Status CudaStream::ToDevice(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<void*> staging = nullptr;
  if (bytes <= kMostStaged) staging = TakeStaging(bytes);
  if (!staging.ok()) return staging.status();
  if (*staging != nullptr) {
    std::memcpy(*staging, from, static_cast<size_t>(bytes));
    return FromPinned(to, *staging, bytes);
  }
  absl::Status status = FromPinned(to, from, bytes);
  return status.ok() ? Wait() : status;
}

// At a launch the driver takes local memory for all threads that the device holds at once, where it has not
// enough of it from launches before.
absl::Status CudaStream::NoLocalMemory(CUfunction function, const std::string& entry) {
  int bytes = 0;  // of a thread
  const absl::Status status = context_->Check(
      driver().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function),
      "cuFuncGetAttribute");
  if (!status.ok()) return status;
  const DeviceLimits& limits = device_->limits();
  const int64_t threads = int64_t{limits.multiprocessors} * limits.threads_per_multiprocessor;
  return memory_->Short(absl::StrCat("the threads of kernel ", entry, " need about ",
                                     threads * bytes, " of local memory"));
}

absl::Status CudaStream::Launch(const Module& module, const std::string& entry, LaunchShape shape,
                                const KernelArgs& args) {
  constexpr int kWarp = 32;  // device/warp.h joins whole ones
  if (shape.block % kWarp != 0) {
    return absl::InternalError(
        absl::StrCat("a block of ", shape.block, " threads; a GPU takes ", "multiples of ", kWarp));
  }
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  const auto function = static_cast<const CudaModule&>(module).Find(entry);
  if (!function.ok()) return function.status();
  absl::Status status = AllowShared(*context_, *function, shape.shared_bytes);
  if (launches_ == timed_.size()) timed_.push_back(std::make_unique<Timed>(context_));
  if (status.ok()) status = timed_[launches_]->begin.Record(stream_);
  if (!status.ok()) return status;
  void* parameters[] = {const_cast<KernelArgs*>(&args)};
  const CUresult result = memory_->WithRoom([&] {
    return driver().cuLaunchKernel(
        *function, static_cast<unsigned>(shape.grid), 1, 1, static_cast<unsigned>(shape.block), 1,
        1, static_cast<unsigned>(shape.shared_bytes), stream_, parameters, nullptr);
  });
  status = context_->Check(result, "cuLaunchKernel");
  if (absl::IsResourceExhausted(status)) return NoLocalMemory(*function, entry);
  if (status.ok()) status = timed_[launches_]->end.Record(stream_);
  if (status.ok()) ++launches_;
  return status;
}

absl::Status CudaStream::Wait() {
  absl::Status status = context_->Enter();
  const size_t launches = std::exchange(launches_, 0);
  if (status.ok()) {
    status = context_->Check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }
  if (status.ok()) staged_bytes_ = 0;
  double busy = 0.0;
  for (size_t i = 0; status.ok() && i < launches; ++i) {
    busy += timed_[i]->begin.SecondsUntil(timed_[i]->end);
  }
  if (busy > 0.0) context_->AddBusy(busy);
  return status;
}

}  // namespace simgrad::sim::cuda
