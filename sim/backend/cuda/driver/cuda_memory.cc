#include "sim/backend/cuda/driver/cuda_memory.h"

#include "absl/strings/str_cat.h"

namespace simgrad::sim::cuda {
namespace {

// Share of the device's memory that is kept for the next request; the rest is for other processes.
constexpr int64_t kKeptShare = 4;

}  // namespace

absl::StatusOr<std::shared_ptr<CudaMemory>> CudaMemory::Open(std::shared_ptr<Context> context,
                                                             int64_t bytes) {
  const Driver& driver = context->driver();
  int pools = 0;
  absl::Status status =
      context->Check(driver.cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                                 context->device()),
                     "cuDeviceGetAttribute");
  if (!status.ok()) return status;
  std::shared_ptr<CudaMemory> memory(new CudaMemory(std::move(context)));
  if (pools != 0) status = memory->OpenPool(bytes);
  if (!status.ok()) return status;
  return memory;
}

absl::Status CudaMemory::OpenPool(int64_t bytes) {
  const Driver& driver = context_->driver();
  absl::Status status = context_->Enter();
  if (status.ok()) {
    status =
        context_->Check(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  if (status.ok()) {
    status = context_->Check(driver.cuDeviceGetDefaultMemPool(&pool_, context_->device()),
                             "cuDeviceGetDefaultMemPool");
  }
  cuuint64_t keep = static_cast<cuuint64_t>(bytes / kKeptShare);
  if (status.ok()) {
    status = context_->Check(
        driver.cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
        "cuMemPoolSetAttribute");
  }
  return status;
}

CudaMemory::~CudaMemory() {
  if (stream_ != nullptr && context_->Enter().ok()) context_->driver().cuStreamDestroy(stream_);
}

CudaMemory::Attempt CudaMemory::TakeOnce(int64_t bytes) const {
  const Driver& driver = context_->driver();
  const size_t size = static_cast<size_t>(bytes);
  CUdeviceptr data = 0;
  if (pool_ == nullptr) return {driver.cuMemAlloc(&data, size), "cuMemAlloc", data};
  CUresult result = driver.cuMemAllocAsync(&data, size, stream_);
  if (result != CUDA_SUCCESS) return {result, "cuMemAllocAsync", 0};
  // It is used on other streams.
  result = driver.cuStreamSynchronize(stream_);
  if (result != CUDA_SUCCESS) driver.cuMemFreeAsync(data, stream_);
  return {result, "cuStreamSynchronize", data};
}

absl::StatusOr<CUdeviceptr> CudaMemory::Take(int64_t bytes) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  Attempt attempt = {};
  const CUresult result = WithRoom([&] {
    attempt = TakeOnce(bytes);
    return attempt.result;
  });
  const absl::Status status = context_->Check(result, attempt.call);
  if (status.ok()) return attempt.data;
  if (!absl::IsResourceExhausted(status)) return status;
  return Short(absl::StrCat(bytes, " were asked for"));
}

absl::Status CudaMemory::Short(const std::string& asked) const {
  size_t free = 0;
  size_t total = 0;
  context_->driver().cuMemGetInfo(&free, &total);
  return absl::ResourceExhaustedError(
      absl::StrCat("the GPU has ", free, " of ", total, " bytes free; ", asked));
}

void CudaMemory::Give(CUdeviceptr data) {
  if (!context_->Enter().ok()) return;  // lost, and its memory with it
  const Driver& driver = context_->driver();
  if (pool_ != nullptr) {
    context_->Check(driver.cuMemFreeAsync(data, stream_), "cuMemFreeAsync").IgnoreError();
    return;
  }
  // Without a pool it is gone at once, whatever still runs.
  context_->Check(driver.cuCtxSynchronize(), "cuCtxSynchronize").IgnoreError();
  context_->Check(driver.cuMemFree(data), "cuMemFree").IgnoreError();
}

bool CudaMemory::Trim() {
  if (pool_ == nullptr || !context_->Enter().ok()) return false;
  const Driver& driver = context_->driver();
  // Freed memory belongs to the pool once its stream has come that far.
  return context_->Check(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize").ok() &&
         context_->Check(driver.cuMemPoolTrimTo(pool_, 0), "cuMemPoolTrimTo").ok();
}

}  // namespace simgrad::sim::cuda
