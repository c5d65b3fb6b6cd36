// Every CUresult becomes the status that its meaning asks for.
#include <cuda.h>

#include "gtest/gtest.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/driver/cuda_driver.h"

namespace simgrad::sim::cuda {
namespace {

// A driver that knows no error by name, as one is that is older than the error.
Driver Wordless() {
  Driver driver;
  driver.cuGetErrorName = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  driver.cuGetErrorString = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  return driver;
}

absl::Status StatusOf(int result) {
  return DriverStatus(Wordless(), static_cast<CUresult>(result), "cuCall");
}

TEST(DriverStatusTest, AnErrorAfterWhichTheDeviceCannotBeUsedLosesIt) {
  // CUresult: CONTEXT_IS_DESTROYED, ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED, ...
  for (const int result :
       {709, 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}) {
    EXPECT_TRUE(IsDeviceLost(StatusOf(result))) << result;
  }
}

TEST(DriverStatusTest, AnErrorOfOneCallLosesNothing) {
  // INVALID_VALUE, INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, NOT_FOUND, NOT_READY,
  // LAUNCH_OUT_OF_RESOURCES, NOT_SUPPORTED
  for (const int result : {1, 200, 209, 218, 500, 600, 701, 801}) {
    EXPECT_EQ(StatusOf(result).code(), absl::StatusCode::kInternal) << result;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(2)));
  EXPECT_TRUE(StatusOf(0).ok());
}

TEST(DriverStatusTest, AnErrorThatTheDriverHasNoNameForIsToldByItsNumber) {
  EXPECT_EQ(StatusOf(911).message(), "cuCall: CUresult 911: unknown");
}

}  // namespace
}  // namespace simgrad::sim::cuda
