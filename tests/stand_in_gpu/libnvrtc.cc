// NVRTC's functions over the host compiler: a libnvrtc for tests, for the stand-in driver beside
// it. With SIMGRAD_STAND_IN_BEST_SECONDS optimising a text takes so many seconds more.
#include <cuda.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/sim/backend/cuda/host_shim/host_compiler.h"
#include "tests/stand_in_gpu/image.h"

struct _nvrtcProgram {
  std::string text;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string log;
  std::string image;
};

extern "C" {

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == NVRTC_SUCCESS ? "success" : "an error of the stand-in";
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = CUDA_VERSION / 1000;
  *minor = CUDA_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char*, int count,
                               const char* const* headers, const char* const* names) {
  *program = new _nvrtcProgram;
  (*program)->text = text;
  for (int i = 0; i < count; ++i) (*program)->headers.emplace_back(names[i], headers[i]);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  const char* const more = std::getenv("SIMGRAD_STAND_IN_BEST_SECONDS");
  const bool is_quick = std::any_of(options, options + count, [](std::string_view option) {
    return option == "--Ofast-compile=max";
  });
  if (more != nullptr && !is_quick) {
    std::this_thread::sleep_for(std::chrono::seconds(std::atoi(more)));
  }
  const absl::StatusOr<std::string> library =
      simgrad::tests::CompileLibrary(program->text, program->headers);
  if (!library.ok()) {
    program->log = std::string(library.status().message());
    return NVRTC_ERROR_COMPILATION;
  }
  program->image = simgrad::stand_in::MakeImage(*library);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  *size = program->image.size();
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
  return nvrtcGetCUBINSize(program, size);
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* image) { return nvrtcGetCUBIN(program, image); }

}  // extern "C"
