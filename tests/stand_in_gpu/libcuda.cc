// The CUDA driver's functions over the pretended machine: a libcuda.so.1 for tests, but for those
// of memory (libcuda_memory.cc).
//
// Kernels are the shared libraries that the libnvrtc beside it makes of generated texts
// (libnvrtc.cc); their threads run as fibers. What the driver refuses is refused: a call without a
// context, an address nobody took, a launch of the wrong shape.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/cuda/kernel_abi.h"
#include "tests/sim/backend/cuda/host_shim/host_launch.h"
#include "tests/stand_in_gpu/call.h"
#include "tests/stand_in_gpu/control.h"
#include "tests/stand_in_gpu/image.h"
#include "tests/stand_in_gpu/machine.h"

namespace {

using simgrad::sim::cuda::KernelArgs;
using simgrad::stand_in::Call;
using simgrad::stand_in::current;
using simgrad::stand_in::CurrentGpu;
using simgrad::stand_in::Event;
using simgrad::stand_in::Machine;
using simgrad::stand_in::Of;
using simgrad::stand_in::Operation;
using simgrad::stand_in::PushTo;
using simgrad::stand_in::Stream;

constexpr int kMultiprocessors = 2;
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kSharedPerBlock = 227 << 10;
constexpr int kSharedWithoutAsking = 48 << 10;
constexpr int kThreadsPerBlock = 1024;

struct LoadedModule;
struct Function {
  LoadedModule* module = nullptr;
  std::string name;
  int shared_bytes = kSharedWithoutAsking;
};
struct LoadedModule {
  std::shared_ptr<void> library;
  std::vector<std::unique_ptr<Function>> functions;
};

std::shared_ptr<Event>& Of(CUevent event) {
  return *reinterpret_cast<std::shared_ptr<Event>*>(event);
}

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool IsGpu(CUdevice device) { return device >= 0 && device < Machine::Get().settings().gpus; }

}  // namespace

extern "C" {

void simgrad_stand_in_reset(const simgrad::stand_in::Settings* settings) {
  Machine::Get().Reset(*settings);
}

simgrad::stand_in::Report simgrad_stand_in_report() {
  Machine& machine = Machine::Get();
  const std::lock_guard lock(machine.mutex());
  simgrad::stand_in::Report report;
  report.calls = machine.calls();
  for (int gpu = 0; gpu < machine.settings().gpus; ++gpu) {
    report.held_bytes += machine.Held(gpu);
    report.kept_bytes += machine.KeptByPool(gpu);
  }
  report.pinned_bytes = machine.PinnedBytes();
  report.events = machine.events();
  report.whole = machine.AllWhole();
  report.failed = machine.failed();
  return report;
}

CUresult CUDAAPI cuInit(unsigned) { return CUDA_SUCCESS; }

// NVRTC 13 asks a driver that it finds for tables of undocumented functions, and does without.
CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS:
      *name = "CUDA_SUCCESS";
      break;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case CUDA_ERROR_INVALID_CONTEXT:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case CUDA_ERROR_LAUNCH_FAILED:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      break;
    case CUDA_ERROR_INVALID_IMAGE:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      break;
    case CUDA_ERROR_NOT_FOUND:
      *name = "CUDA_ERROR_NOT_FOUND";
      break;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult, const char** words) {
  *words = "an error of the stand-in";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  *count = Machine::Get().settings().gpus;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int index) {
  if (!IsGpu(index)) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::strncpy(name, Machine::Get().settings().name.c_str(), static_cast<size_t>(length));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid->bytes, 0, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

#ifdef cuDeviceGetUuid
// Under the name that toolkits before 13.0 look for.
#undef cuDeviceGetUuid
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}
#endif

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      *value = 1'000'000;  // kHz
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = kMultiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = kThreadsPerMultiprocessor;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = kSharedPerBlock;
      break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      *value = Machine::Get().settings().memory_pools;
      break;
    case CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT:
      *value = Machine::Get().settings().watched;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(Machine::Get().settings().memory_bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!IsGpu(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto retain = [&](Machine& machine) {
    if (device == machine.settings().refusing) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1);
    return CUDA_SUCCESS;
  };
  return Call(__func__, retain, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  const auto set = [&](Machine&) {
    current = context;
    return CUDA_SUCCESS;
  };
  return Call(__func__, set, false);
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return Call(__func__, [](Machine& machine) { return machine.DrainAll(CurrentGpu()); });
}

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned) {
  return Call(__func__, [&](Machine& machine) {
    *stream = reinterpret_cast<CUstream>(machine.OpenStream(CurrentGpu()));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  return Call(__func__, [&](Machine& machine) { return machine.CloseStream(Of(stream)); });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  return Call(__func__, [&](Machine& machine) {
    const CUresult result = machine.Drain(Of(stream));
    machine.Synchronised(CurrentGpu());
    return result;
  });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return Call(__func__, [&](Machine& machine) {
    Operation operation;
    operation.after = Of(event);
    operation.times = Of(event)->recorded;
    return machine.Push(Of(stream), std::move(operation));
  });
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned) {
  return Call(__func__, [&](Machine& machine) {
    ++machine.events();
    *event = reinterpret_cast<CUevent>(new std::shared_ptr<Event>(std::make_shared<Event>()));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  return Call(__func__, [&](Machine& machine) {
    delete &Of(event);
    --machine.events();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return Call(__func__, [&](Machine&) {
    const std::shared_ptr<Event> shared = Of(event);
    ++shared->recorded;
    shared->stream = Of(stream);
    return PushTo(stream, [shared] {
      ++shared->happened;
      shared->seconds = Now();
      return CUDA_SUCCESS;
    });
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  return Call(__func__,
              [&](Machine& machine) { return machine.AwaitEvent(Of(event), Of(event)->recorded); });
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  return Call(__func__, [&](Machine&) {
    return Of(event)->happened < Of(event)->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Call(__func__, [&](Machine&) {
    for (const auto& event : {Of(start), Of(end)}) {
      if (event->happened < event->recorded) return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = static_cast<float>(1e3 * (Of(end)->seconds - Of(start)->seconds));
    return CUDA_SUCCESS;
  });
}

#ifdef cuEventElapsedTime
// Under the name that toolkits before 12.8 look for.
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}
#endif

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return Call(__func__, [&](Machine&) {
    std::shared_ptr<void> library = simgrad::stand_in::OpenImage(image);
    if (library == nullptr) return CUDA_ERROR_INVALID_IMAGE;
    auto* const loaded = new LoadedModule;
    loaded->library = std::move(library);
    *module = reinterpret_cast<CUmodule>(loaded);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  return Call(__func__, [&](Machine&) {
    delete reinterpret_cast<LoadedModule*>(module);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return Call(__func__, [&](Machine&) {
    auto* const loaded = reinterpret_cast<LoadedModule*>(module);
    if (dlsym(loaded->library.get(), name) == nullptr) return CUDA_ERROR_NOT_FOUND;
    for (const auto& known : loaded->functions) {
      if (known->name != name) continue;
      *function = reinterpret_cast<CUfunction>(known.get());
      return CUDA_SUCCESS;
    }
    loaded->functions.push_back(std::make_unique<Function>(Function{loaded, name}));
    *function = reinterpret_cast<CUfunction>(loaded->functions.back().get());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  return Call(__func__, [&](Machine& machine) {
    if (attribute != CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    *value = static_cast<int>(machine.settings().local_bytes);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                    int value) {
  return Call(__func__, [&](Machine&) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > kSharedPerBlock) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    reinterpret_cast<Function*>(function)->shared_bytes = value;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block,
                                                             size_t) {
  return Call(__func__, [&](Machine&) {
    *blocks = kThreadsPerMultiprocessor / block;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, CUstream stream,
                                void** parameters, void**) {
  return Call(__func__, [&](Machine& machine) {
    const auto& entry = *reinterpret_cast<const Function*>(function);
    const bool fits = grid_x > 0 && grid_x <= 0x7fffffffu && grid_y == 1 && grid_z == 1 &&
                      block_x > 0 && block_x <= kThreadsPerBlock && block_y == 1 && block_z == 1 &&
                      static_cast<int>(shared_bytes) <= entry.shared_bytes;
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    // For all threads that the GPU holds, at the first launch that needs so much.
    const CUresult local =
        machine.TakeLocal(CurrentGpu(), machine.settings().local_bytes * kMultiprocessors *
                                            kThreadsPerMultiprocessor);
    if (local != CUDA_SUCCESS) return local;
    const KernelArgs args = *static_cast<const KernelArgs*>(parameters[0]);
    return PushTo(stream, [library = entry.module->library, name = entry.name, args, grid_x,
                           block_x, shared_bytes] {
      const absl::Status status = simgrad::tests::LaunchOnHost(
          [&](const char* symbol) { return dlsym(library.get(), symbol); }, name,
          {static_cast<int64_t>(grid_x), static_cast<int>(block_x), shared_bytes}, args,
          Machine::Get().die());
      const bool fine = status.ok() && Machine::Get().AllWhole();
      if (!fine) {
        std::fprintf(stderr, "stand-in GPU: %s: %s\n", name.c_str(),
                     status.ok() ? "wrote outside of what is held" : status.ToString().c_str());
      }
      return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    });
  });
}

}  // extern "C"
