#include "tests/gpu/yardstick.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/compiler/kernel_image.h"
#include "sim/backend/cuda/compiler/nvrtc_compiler.h"

namespace simgrad::gpu_check {
namespace {

constexpr float kH = 0.01f, kG = 9.81f, kGain = 0.5f, kTol = 1e-4f, kRestitution = 0.8f;
constexpr int kMaxIter = 25;
constexpr int kWarp = 32;

constexpr char kText[] = R"(
#include "sim/backend/cuda/kernel_abi.h"
extern "C" __global__ void simgrad_forward(
    const __grid_constant__ simgrad::sim::cuda::KernelArgs args) {
  const float h = static_cast<float>(args.number[0]), g = static_cast<float>(args.number[1]);
  const float gain = static_cast<float>(args.number[2]), tol = static_cast<float>(args.number[3]);
  const float restitution = static_cast<float>(args.number[4]);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.instances;
       i += int64_t{gridDim.x} * blockDim.x) {
    float y = static_cast<float*>(args.field[0])[i], v = static_cast<float*>(args.field[1])[i];
    // One step per turn of the loop: its disassembly is counted.
#pragma unroll 1
    for (int64_t t = 0; t < args.steps; ++t) {
      const float v_free = v + h * -g;
      y = y + h * v_free;
      const bool contact = y < 0.0f;
#pragma unroll 1
      for (int it = 0;; ++it) {
        const float p = -y > 0.0f ? -y : 0.0f;
        if (p < tol || it == 25) break;
        y = y + gain * p;
      }
      v = contact ? -restitution * (v_free < 0.0f ? v_free : 0.0f) : v_free;
    }
    static_cast<float*>(args.field[0])[i] = y;
    static_cast<float*>(args.field[1])[i] = v;
  }
}
)";

// A step of the text above on the host; the number of turns of its inner loop.
int Step(float& y, float& v) {
  const float v_free = v + kH * -kG;
  y = y + kH * v_free;
  const bool contact = y < 0.0f;
  int turns = 0;
  for (;; ++turns) {
    const float p = -y > 0.0f ? -y : 0.0f;
    if (p < kTol || turns == kMaxIter) break;
    y = y + kGain * p;
  }
  v = contact ? -kRestitution * (v_free < 0.0f ? v_free : 0.0f) : v_free;
  return turns;
}

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("popen: ", command));
  std::string output;
  char part[4096];
  for (size_t n = 0; (n = std::fread(part, 1, sizeof(part), pipe)) > 0;) output.append(part, n);
  constexpr int kNoSuchProgram = 127;  // the shell's word for it
  const int status = pclose(pipe);
  if (status == 0) return output;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchProgram) {
    return absl::NotFoundError(absl::StrCat(command, ": there is no such program"));
  }
  return absl::InternalError(absl::StrCat(command, " failed: ", output));
}

}  // namespace

std::string YardstickText() { return kText; }

std::vector<double> BallHeights(int64_t instances) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> height(0.1f, 1.0f);
  std::vector<double> heights(static_cast<size_t>(instances));
  for (double& y : heights) y = static_cast<double>(height(generator));
  return heights;
}

absl::StatusOr<double> RunYardstick(const std::shared_ptr<sim::cuda::Device>& device, int repeats) {
  sim::cuda::GeneratedSource source;
  source.text = kText;
  const auto module = device->Load(source, sim::cuda::KernelChoice::kBest);
  if (!module.ok()) return module.status();
  auto stream = device->OpenStream();
  if (!stream.ok()) return stream.status();
  auto y = device->Allocate(4 * kBallInstances);
  auto v = device->Allocate(4 * kBallInstances);
  const std::vector<double> numbers = {static_cast<double>(kH), static_cast<double>(kG),
                                       static_cast<double>(kGain), static_cast<double>(kTol),
                                       static_cast<double>(kRestitution)};
  auto table = device->Allocate(static_cast<int64_t>(8 * numbers.size()));
  if (!y.ok() || !v.ok() || !table.ok()) return absl::ResourceExhaustedError("the yardstick");
  std::vector<float> heights;
  for (double height : BallHeights(kBallInstances)) heights.push_back(static_cast<float>(height));
  sim::cuda::KernelArgs args = {};
  args.instances = kBallInstances;
  args.steps = kBallSteps;
  args.field[0] = y->data();
  args.field[1] = v->data();
  args.number = static_cast<const double*>(table->data());
  const auto grid = device->ResidentBlocks(**module, "simgrad_forward", 128, 0);
  if (!grid.ok()) return grid.status();
  double best = 1e300;
  for (int k = 0; k < repeats; ++k) {
    absl::Status status = (*stream)->ToDevice(table->data(), numbers.data(), table->bytes());
    status.Update((*stream)->ToDevice(y->data(), heights.data(), y->bytes()));
    status.Update((*stream)->Fill(v->data(), 0, v->bytes()));
    status.Update((*stream)->Wait());
    const double before = device->Use().busy_seconds;
    status.Update((*stream)->Launch(**module, "simgrad_forward", {*grid, 128, 0}, args));
    status.Update((*stream)->Wait());
    if (!status.ok()) return status;
    best = std::min(best, device->Use().busy_seconds - before);
  }
  return best;
}

double InnerRunsPerWarpStep(int64_t warps, int64_t steps) {
  const std::vector<double> heights = BallHeights(warps * kWarp);
  int64_t runs = 0;
  for (int64_t warp = 0; warp < warps; ++warp) {
    float y[kWarp];
    float v[kWarp] = {};
    for (int i = 0; i < kWarp; ++i) {
      y[i] = static_cast<float>(heights[static_cast<size_t>(warp * kWarp + i)]);
    }
    for (int64_t t = 0; t < steps; ++t) {
      int most = 0;
      for (int i = 0; i < kWarp; ++i) most = std::max(most, Step(y[i], v[i]));
      runs += most;
    }
  }
  return static_cast<double>(runs) / static_cast<double>(warps * steps);
}

double IssueLimit::Seconds(int64_t instances, int64_t steps, int multiprocessors,
                           double clock_hz) const {
  constexpr double kSchedulers = 4.0;
  const double warps = static_cast<double>(instances) / kWarp;
  return warps * static_cast<double>(steps) * per_step.Cycles() /
         (kSchedulers * multiprocessors * clock_hz);
}

absl::StatusOr<IssueLimit> LimitOfYardstick(const std::string& listing) {
  const auto instructions = ReadListing(listing, "simgrad_forward");
  if (!instructions.ok()) return instructions.status();
  const auto loops = NestedLoops(*instructions);
  if (!loops.ok()) return loops.status();
  if (loops->size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("the yardstick has ", loops->size(),
                     " loops in each other, not those over instances, steps and iterations"));
  }
  constexpr int64_t kSampledWarps = 256;
  IssueLimit limit;
  limit.inner_runs = InnerRunsPerWarpStep(kSampledWarps, kBallSteps);
  limit.per_step.Add((*loops)[1], 1.0);
  limit.per_step.Add((*loops)[2], limit.inner_runs);
  limit.per_step.Cycles(&limit.bound);
  return limit;
}

absl::StatusOr<std::string> DisassembleYardstick(const std::string& architecture) {
  const auto compiled = sim::cuda::CompileWithNvrtc(kText, architecture);
  if (!compiled.ok()) return compiled.status();
  const auto images = sim::cuda::SplitImages(*compiled);
  if (!images.ok()) return images.status();
  std::string name = (std::filesystem::temp_directory_path() / "yardstick-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return absl::InternalError("no temporary folder");
  const std::string file = name + "/yardstick.cubin";
  std::ofstream(file, std::ios::binary) << images->front();
  absl::StatusOr<std::string> listing = OutputOf("nvdisasm -c " + file + " 2>&1");
  if (absl::IsNotFound(listing.status())) listing = OutputOf("cuobjdump -sass " + file + " 2>&1");
  std::error_code ignored;
  std::filesystem::remove_all(name, ignored);
  if (!absl::IsNotFound(listing.status())) return listing;
  return absl::NotFoundError("there is neither nvdisasm nor cuobjdump");
}

}  // namespace simgrad::gpu_check
