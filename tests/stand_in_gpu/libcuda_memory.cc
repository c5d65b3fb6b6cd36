// The stand-in driver's functions of memory: taken, given back, copied.
#include <cuda.h>

#include <cstring>

#include "tests/stand_in_gpu/call.h"
#include "tests/stand_in_gpu/machine.h"

namespace {

using simgrad::stand_in::Call;
using simgrad::stand_in::CurrentGpu;
using simgrad::stand_in::Machine;
using simgrad::stand_in::Of;
using simgrad::stand_in::PushTo;

// A GPU's default pool is its index, counted from one.
int GpuOf(CUmemoryPool pool) { return static_cast<int>(reinterpret_cast<intptr_t>(pool)) - 1; }

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
  return Call(__func__, [&](Machine& machine) {
    *total = static_cast<size_t>(machine.settings().memory_bytes);
    *free = static_cast<size_t>(machine.FreeBytes(CurrentGpu()));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return Call(__func__, [&](Machine& machine) {
    if (machine.settings().memory_pools == 0) return CUDA_ERROR_NOT_SUPPORTED;
    *pool = reinterpret_cast<CUmemoryPool>(static_cast<intptr_t>(device) + 1);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  return Call(__func__, [&](Machine& machine) {
    if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
    machine.KeepAtMost(GpuOf(pool), static_cast<size_t>(*static_cast<cuuint64_t*>(value)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  return Call(__func__, [&](Machine& machine) {
    machine.TrimPool(GpuOf(pool), keep);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* data, size_t bytes) {
  return Call(__func__, [&](Machine& machine) {
    return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : machine.Take(CurrentGpu(), bytes, data);
  });
}

// At once: nothing promises that it waits.
CUresult CUDAAPI cuMemFree(CUdeviceptr data) {
  return Call(__func__, [&](Machine& machine) { return machine.Give(data); });
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* data, size_t bytes, CUstream) {
  return Call(__func__, [&](Machine& machine) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return machine.TakeFromPool(CurrentGpu(), bytes, data);
  });
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr data, CUstream stream) {
  return Call(__func__, [&](Machine& machine) { return machine.GiveLater(data, Of(stream)); });
}

CUresult CUDAAPI cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  return Call(__func__, [&](Machine& machine) { return machine.TakePinned(bytes, data); });
}

CUresult CUDAAPI cuMemAllocHost(void** data, size_t bytes) {
  return cuMemHostAlloc(data, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* data) {
  return Call(__func__, [&](Machine& machine) { return machine.GivePinned(data); });
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
  return Call(__func__, [&](Machine& machine) {
    if (!machine.Holds(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return PushTo(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), from, bytes);
      return CUDA_SUCCESS;
    });
  });
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Call(__func__, [&](Machine& machine) {
    if (!machine.Holds(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto* const source = reinterpret_cast<const void*>(from);
    const CUresult pushed = PushTo(stream, [=] {
      std::memcpy(to, source, bytes);
      return CUDA_SUCCESS;
    });
    if (pushed != CUDA_SUCCESS || machine.IsPinned(to)) return pushed;
    return machine.Drain(Of(stream));
  });
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
  return Call(__func__, [&](Machine& machine) {
    if (!machine.Holds(to, bytes) || !machine.Holds(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return PushTo(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return CUDA_SUCCESS;
    });
  });
}

// Pinned memory too has its address on the device (CUDA Driver API, Unified Addressing), and is set as well
// (API synchronization behavior, Memset).
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                                 CUstream stream) {
  return Call(__func__, [&](Machine& machine) {
    const bool fits =
        machine.Holds(to, bytes) || machine.IsPinned(reinterpret_cast<const void*>(to), bytes);
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    return PushTo(stream, [=] {
      std::memset(reinterpret_cast<void*>(to), value, bytes);
      return CUDA_SUCCESS;
    });
  });
}

}  // extern "C"
