#include "sim/backend/cuda/compiler/nvrtc_compiler.h"

#include <cuda.h>
#include <nvrtc.h>

#include <algorithm>
#include <future>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/backend/cuda/compiler/kernel_image.h"
#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/shared_object.h"

namespace simgrad::sim::cuda {
namespace {

// Kernels take their arguments by value, more than the 4 KiB that older ones allow.
constexpr int kOldestVersion = 1201;
// The first of which --Ofast-compile is known to work.
constexpr int kOldestQuickVersion = 1300;

struct Nvrtc {
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) architecture_count = nullptr;
  decltype(&nvrtcGetSupportedArchs) architectures = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) ptx = nullptr;
  int number = 0;  // 1300 for 13.0
};

std::vector<std::string> LibraryNames() {
  const std::string major = absl::StrCat("libnvrtc.so.", CUDA_VERSION / 1000);
  std::vector<std::string> names = {major};
  // The folder of the build's toolkit serves a machine that has it in no search path.
  if (std::string(SIMGRAD_CUDA_LIBRARIES)[0] == '/') {
    names.push_back(absl::StrCat(SIMGRAD_CUDA_LIBRARIES, "/", major));
  }
  names.push_back("libnvrtc.so");
  return names;
}

absl::StatusOr<Nvrtc> Load() {
  const absl::StatusOr<SharedObject> library = SharedObject::Open(LibraryNames());
  if (!library.ok()) return library.status();
  Nvrtc n;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->Find(name));
    all = all && function != nullptr;
  };
  find(n.version, "nvrtcVersion");
  find(n.error_string, "nvrtcGetErrorString");
  find(n.architecture_count, "nvrtcGetNumSupportedArchs");
  find(n.architectures, "nvrtcGetSupportedArchs");
  find(n.create, "nvrtcCreateProgram");
  find(n.destroy, "nvrtcDestroyProgram");
  find(n.compile, "nvrtcCompileProgram");
  find(n.log_size, "nvrtcGetProgramLogSize");
  find(n.log, "nvrtcGetProgramLog");
  find(n.cubin_size, "nvrtcGetCUBINSize");
  find(n.cubin, "nvrtcGetCUBIN");
  find(n.ptx_size, "nvrtcGetPTXSize");
  find(n.ptx, "nvrtcGetPTX");
  if (!all) return absl::FailedPreconditionError("libnvrtc lacks functions of CUDA 11.3 and later");
  int major = 0;
  int minor = 0;
  n.version(&major, &minor);
  n.number = major * 100 + minor;
  if (n.number < kOldestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("libnvrtc is of CUDA ", major, ".", minor, "; 12.1 or later is needed"));
  }
  return n;
}

// Opened once, at the first use.
const absl::StatusOr<Nvrtc>& Library() {
  static const auto* const library = new absl::StatusOr<Nvrtc>(Load());
  return *library;
}

absl::StatusOr<std::vector<std::string>> Options(const Nvrtc& nvrtc,
                                                 const std::string& architecture,
                                                 Optimisation optimisation) {
  int wanted = 0;
  if (architecture.rfind("sm_", 0) != 0 || !absl::SimpleAtoi(architecture.substr(3), &wanted)) {
    return absl::InvalidArgumentError(absl::StrCat(architecture, " is no architecture, as sm_90"));
  }
  int count = 0;
  nvrtc.architecture_count(&count);
  std::vector<int> known(static_cast<size_t>(std::max(count, 0)));
  if (count > 0) nvrtc.architectures(known.data());
  const absl::StatusOr<std::string> target = NvrtcTarget(wanted, known);
  if (!target.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NVRTC ", nvrtc.number / 100, ".", nvrtc.number % 100, " ", target.status().message()));
  }
  std::vector<std::string> options = {absl::StrCat("--gpu-architecture=", *target),
                                      "--std=c++20",
                                      "--fmad=false",
                                      "--ftz=false",
                                      "--prec-div=true",
                                      "--prec-sqrt=true",
                                      "--disable-warnings"};
  if (optimisation == Optimisation::kLeast) options.push_back("--Ofast-compile=max");
  return options;
}

// A program of NVRTC; destroyed with its owner.
class Program {
 public:
  explicit Program(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  ~Program() {
    if (program_ != nullptr) nvrtc_.destroy(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  absl::Status Create(const std::string& text) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const EmbeddedHeader& header : EmbeddedHeaders()) {
      texts.push_back(header.text.data());  // literals: they end with a zero
      names.push_back(header.name.data());
    }
    return Check(nvrtc_.create(&program_, text.c_str(), "simgrad_kernel.cu",
                               static_cast<int>(texts.size()), texts.data(), names.data()),
                 "nvrtcCreateProgram");
  }

  absl::Status Compile(const std::vector<std::string>& options) {
    std::vector<const char*> flags;
    for (const std::string& option : options) flags.push_back(option.c_str());
    const nvrtcResult result =
        nvrtc_.compile(program_, static_cast<int>(flags.size()), flags.data());
    if (result == NVRTC_SUCCESS) return absl::OkStatus();
    size_t size = 0;
    nvrtc_.log_size(program_, &size);
    std::string log(size, '\0');
    if (size > 0) nvrtc_.log(program_, log.data());
    return absl::InternalError(
        absl::StrCat("NVRTC: ", nvrtc_.error_string(result), "\n", log.substr(0, 8000)));
  }

  absl::StatusOr<std::string> Image(bool ptx) {
    size_t size = 0;
    absl::Status status =
        Check(ptx ? nvrtc_.ptx_size(program_, &size) : nvrtc_.cubin_size(program_, &size), "size");
    std::string image(size, '\0');
    if (status.ok()) {
      status = Check(
          ptx ? nvrtc_.ptx(program_, image.data()) : nvrtc_.cubin(program_, image.data()), "image");
    }
    if (!status.ok()) return status;
    return image;
  }

 private:
  absl::Status Check(nvrtcResult result, const char* what) const {
    if (result == NVRTC_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("NVRTC, ", what, ": ", nvrtc_.error_string(result)));
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// See generate.h; part 0 is the whole text.
absl::StatusOr<std::string> CompilePart(const Nvrtc& nvrtc, const std::string& text,
                                        std::vector<std::string> options, int part) {
  const bool ptx = options.front().find("compute_") != std::string::npos;
  if (part != 0) options.push_back(absl::StrCat("--define-macro=", kPartMacro, "=", part));
  Program program(nvrtc);
  absl::Status status = program.Create(text);
  if (status.ok()) status = program.Compile(options);
  if (!status.ok()) return status;
  return program.Image(ptx);
}

}  // namespace

absl::StatusOr<std::string> NvrtcTarget(int wanted, const std::vector<int>& known) {
  int best = 0;
  for (const int architecture : known) {
    if (architecture <= wanted) best = std::max(best, architecture);
  }
  if (best == 0) {
    return absl::FailedPreconditionError(absl::StrCat("knows no architecture up to sm_", wanted));
  }
  return absl::StrCat(best == wanted ? "sm_" : "compute_", best);
}

absl::StatusOr<std::string> NvrtcVersion() {
  const absl::StatusOr<Nvrtc>& nvrtc = Library();
  if (!nvrtc.ok()) return nvrtc.status();
  return absl::StrCat(nvrtc->number / 100, ".", nvrtc->number % 100);
}

bool NvrtcCompilesQuickly() {
  const absl::StatusOr<Nvrtc>& nvrtc = Library();
  return nvrtc.ok() && nvrtc->number >= kOldestQuickVersion;
}

absl::StatusOr<std::string> NvrtcOptionsText(const std::string& architecture,
                                             Optimisation optimisation) {
  const absl::StatusOr<Nvrtc>& nvrtc = Library();
  if (!nvrtc.ok()) return nvrtc.status();
  const auto options = Options(*nvrtc, architecture, optimisation);
  if (!options.ok()) return options.status();
  return absl::StrCat(nvrtc->number, " ", absl::StrJoin(*options, " "));
}

absl::StatusOr<std::string> CompileWithNvrtc(const std::string& text,
                                             const std::string& architecture,
                                             Optimisation optimisation) {
  const absl::StatusOr<Nvrtc>& nvrtc = Library();
  if (!nvrtc.ok()) return nvrtc.status();
  const auto options = Options(*nvrtc, architecture, optimisation);
  if (!options.ok()) return options.status();
  if (!HasAdjointPart(text)) {
    const auto whole = CompilePart(*nvrtc, text, *options, 0);
    if (!whole.ok()) return whole.status();
    return JoinImages({*whole});
  }
  auto adjoint =
      std::async(std::launch::async, [&] { return CompilePart(*nvrtc, text, *options, 2); });
  const auto forward = CompilePart(*nvrtc, text, *options, 1);
  const auto reverse = adjoint.get();
  if (!forward.ok()) return forward.status();
  if (!reverse.ok()) return reverse.status();
  return JoinImages({*forward, *reverse});
}

}  // namespace simgrad::sim::cuda
