#include "sim/backend/cuda/driver/cuda_driver.h"

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/shared_object.h"

namespace simgrad::sim::cuda {
namespace {

// The first driver that takes kernel arguments of more than 4 KiB.
constexpr int kOldestVersion = 12010;

// CUresults that not every header since 12.1 has a name for.
constexpr int kContained = 226;  // CUDA_ERROR_CONTAINED: an ECC error kept to this process
constexpr int kTensorMemoryLeak = 721;
constexpr int kMpsClientTerminated = 810;
constexpr int kExternalDevice = 911;  // an error outside the GPU that its work ran into

// After these nothing works on the device in this process (CUDA driver API, CUresult: "leaves the
// process in an inconsistent state").
bool IsSticky(CUresult result) {
  switch (static_cast<int>(result)) {
    case kContained:
    case kTensorMemoryLeak:
    case kMpsClientTerminated:
    case kExternalDevice:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<const Driver*> Load() {
  const absl::StatusOr<SharedObject> library = SharedObject::Open({"libcuda.so.1"});
  if (!library.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NVIDIA driver: ", std::string(library.status().message())));
  }
  auto* const driver = new Driver;  // for the life of the process
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->Find(name));
    if (function == nullptr && missing.empty()) missing = name;
  };
#define SIMGRAD_DRIVER_FIND_NAMED(name) find(driver->name, #name);
#define SIMGRAD_DRIVER_FIND(name) SIMGRAD_DRIVER_FIND_NAMED(name)
  SIMGRAD_DRIVER_FUNCTIONS(SIMGRAD_DRIVER_FIND)
#undef SIMGRAD_DRIVER_FIND
#undef SIMGRAD_DRIVER_FIND_NAMED
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver has no ", missing,
                                                      "; one for CUDA ", CUDA_VERSION / 1000, ".",
                                                      CUDA_VERSION % 1000 / 10, " is needed"));
  }
  const CUresult result = driver->cuInit(0);
  if (result != CUDA_SUCCESS) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver does not start: ", ErrorName(*driver, result)));
  }
  driver->cuDriverGetVersion(&driver->version);
  if (driver->version < kOldestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver is of CUDA ", driver->version / 1000, ".",
                     driver->version % 1000 / 10, "; 12.1 or later is needed"));
  }
  return driver;
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Get() {
  static const auto* const driver = new absl::StatusOr<const Driver*>(Load());
  return *driver;
}

std::string ErrorName(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  driver.cuGetErrorName(result, &name);
  return name == nullptr ? absl::StrCat("CUresult ", static_cast<int>(result)) : name;
}

absl::Status DriverStatus(const Driver& driver, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* words = nullptr;
  driver.cuGetErrorString(result, &words);
  const std::string message = absl::StrCat(call, ": ", ErrorName(driver, result), ": ",
                                           words == nullptr ? "unknown" : words);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  if (IsSticky(result)) return DeviceLostError(message);
  return absl::InternalError(message);
}

}  // namespace simgrad::sim::cuda
