// Speed on the ball of docs/performance.md: 2^20 instances, 1000 steps, f32, one element.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"
#include "tests/gpu/sections.h"
#include "tests/gpu/yardstick.h"

namespace simgrad::gpu_check {
namespace {

using sim::cuda::Device;

constexpr int64_t kInstances = kBallInstances;
constexpr int64_t kSteps = kBallSteps;
// A trajectory of all of them would not fit the host's memory comfortably.
constexpr int64_t kTrajectorySteps = 128;
constexpr int kRepeats = 5;  // the best counts; the first compiles

double SecondsOf(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Setting {
  std::string preset = "f32";
  std::string tape;  // format of role tape; empty: the preset's
  bool gradient = false;
  sim::Recording recording = sim::Recording::kNone;
  bool trajectory = false;
  int64_t steps = kSteps;
};

absl::StatusOr<sim::Work> WorkOf(const Setting& setting) {
  const auto world = sim::BuildWorld("bouncing_ball", {{"clamp", false}});
  if (!world.ok()) return world.status();
  precision::PolicySpec spec;
  spec.preset = setting.preset;
  if (!setting.tape.empty()) {
    precision::RoleOverride change;
    change.format = precision::FormatFromName(setting.tape);
    spec.roles.push_back({"tape", change});
  }
  std::optional<sim::AdjointSpec> adjoint;
  const std::string objective = setting.gradient ? "final_height" : "";
  if (setting.gradient) {
    adjoint.emplace().objective = objective;
    for (const sim::Input& input : world->inputs) {
      adjoint->wanted.push_back(sim::IsDifferentiable(*world, input));
    }
  }
  auto program =
      sim::Lower(*world, std::get<precision::Policy>(precision::Resolve(spec)), objective, adjoint);
  if (!program.ok()) return program.status();
  sim::Work work;
  work.batch.program = std::make_shared<const sim::NumericalProgram>(*std::move(program));
  work.batch.instances = kInstances;
  work.batch.steps = setting.steps;
  static const std::vector<double> kHeights = BallHeights(kInstances);
  const sim::Program& p = work.batch.program->program;
  for (size_t i = 0; i < static_cast<size_t>(kInstances); ++i) {
    work.batch.instance_ids.push_back(i);
  }
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const sim::Input& input = p.inputs[i];
    sim::Binding& binding = work.batch.inputs.emplace_back();
    if (input.kind == sim::InputKind::kState) {
      binding.per_instance = true;
      binding.tensor = sim::Tensor::Zeros(sim::DType::kF32, {kInstances, 1});
      for (int64_t k = 0; input.name == "y" && k < kInstances; ++k) {
        binding.tensor.Set(k, kHeights[static_cast<size_t>(k)]);
      }
      if (setting.trajectory) work.options.record_states.push_back(static_cast<int32_t>(i));
    } else if (input.kind == sim::InputKind::kParam && input.name == "k") {
      binding.tensor = sim::Tensor::Zeros(sim::DType::kF32, {});
      binding.tensor.Set(0, 1.0);
    }
  }
  work.options.recording = setting.recording;
  work.chunk_steps = setting.steps;
  work.memory_budget_bytes = int64_t{32} << 30;
  if (setting.gradient) work.gradient.emplace();
  return work;
}

struct Times {
  double forward = 0, all = 0, kernels = 0;
};

// The best of a few runs; nothing where one fails, and then the report says so.
std::optional<Times> Measure(const std::shared_ptr<Device>& device, const Setting& setting,
                             Report& report) {
  const absl::StatusOr<sim::Work> work = WorkOf(setting);
  if (!work.ok()) {
    report.Fail(work.status().ToString());
    return std::nullopt;
  }
  const sim::Engine engine(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(device)));
  Times best = {1e300, 1e300, 1e300};
  for (int k = 0; k < kRepeats; ++k) {
    sim::Observer observer;
    const double before = device->Use().busy_seconds;
    const auto result = engine.Execute(*work, observer);
    if (!result.ok()) {
      report.Fail(result.status().ToString());
      return std::nullopt;
    }
    const sim::PhaseSeconds& s = result->seconds;
    best.forward = std::min(best.forward, s.forward);
    best.all = std::min(best.all, s.forward + s.recompute + s.adjoint);
    best.kernels = std::min(best.kernels, device->Use().busy_seconds - before);
  }
  return best;
}

// Bytes read and written per second by a copy on the device.
absl::StatusOr<double> CopyBandwidth(const std::shared_ptr<Device>& device) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  auto from = device->Allocate(kBytes);
  auto to = device->Allocate(kBytes);
  auto stream = device->OpenStream();
  if (!from.ok() || !to.ok() || !stream.ok()) return absl::ResourceExhaustedError("two GiB");
  absl::Status status = (*stream)->Fill(from->data(), 1, kBytes);
  status.Update((*stream)->Wait());
  constexpr int kCopies = 20;
  const double seconds = SecondsOf([&] {
    for (int k = 0; k < kCopies; ++k) {
      status.Update((*stream)->OnDevice(to->data(), from->data(), kBytes));
    }
    status.Update((*stream)->Wait());
  });
  if (!status.ok()) return status;
  return 2.0 * kBytes * kCopies / seconds;
}

// What the yardstick is worth: the share of the time that its instructions take at least.
void RateYardstick(const std::shared_ptr<Device>& device, const std::string& architecture,
                   double seconds, Report& report) {
  const auto listing = DisassembleYardstick(architecture);
  if (!listing.ok()) {
    report.not_run.push_back(
        absl::StrCat("the yardstick's share of the issue limit: ", listing.status().message()));
    return;
  }
  const auto limit = LimitOfYardstick(*listing);
  if (!limit.ok()) {
    report.Fail(limit.status().ToString());
    return;
  }
  const sim::cuda::DeviceLimits& limits = device->limits();
  report.Add("instructions of a warp and step of it", limit->per_step.all, "");
  report.Add("turns of its inner loop among them", limit->inner_runs, "");
  report.Add(absl::StrFormat("its share of the limit (%s) at %.3g GHz on %d multiprocessors",
                             limit->bound, 1e-9 * limits.clock_hz, limits.multiprocessors),
             limit->Seconds(kInstances, kSteps, limits.multiprocessors, limits.clock_hz) / seconds,
             "");
}

void MeasureRollouts(const std::shared_ptr<Device>& device, const std::string& architecture,
                     Report& report) {
  const auto handwritten = RunYardstick(device, kRepeats);
  if (!handwritten.ok()) report.Fail(handwritten.status().ToString());
  const auto rollout = Measure(device, {}, report);
  const auto summary = Measure(device, {.recording = sim::Recording::kSummary}, report);
  if (rollout) {
    report.Add("ball, 2^20 x 1000, kernels", 1e3 * rollout->kernels, "ms");
    if (handwritten.ok()) {
      report.Add("the same written by hand", 1e3 * *handwritten, "ms");
      report.AddAtLeast("share of the kernel written by hand", *handwritten / rollout->kernels,
                        0.8);
      RateYardstick(device, architecture, *handwritten, report);
    }
    if (summary) {
      report.AddAtMost("time with diagnostics `summary`", summary->forward / rollout->forward,
                       "x the rollout", 1.1);
    }
  }
  const auto copy = CopyBandwidth(device);
  const auto written = Measure(device, {.trajectory = true, .steps = kTrajectorySteps}, report);
  if (copy.ok()) report.Add("copy on the device, read and written", *copy * 1e-9, "GB/s");
  if (copy.ok() && written) {
    const double bytes = 2.0 * 4.0 * static_cast<double>(kInstances * kTrajectorySteps);
    report.AddAtLeast("full trajectory, share of the copy bandwidth",
                      bytes / written->kernels / *copy, 0.7);
  }
}

void MeasureGradients(const std::shared_ptr<Device>& device, Report& report) {
  const auto rollout = Measure(device, {.recording = sim::Recording::kSummary}, report);
  const auto gradient =
      Measure(device, {.gradient = true, .recording = sim::Recording::kSummary}, report);
  const auto narrow = Measure(
      device, {.tape = "bf16", .gradient = true, .recording = sim::Recording::kSummary}, report);
  if (rollout && gradient) {
    report.AddAtMost("gradient with checkpoints", gradient->all / rollout->all, "x the rollout",
                     6.0);
  }
  if (gradient && narrow) {
    report.AddAtLeast("speed of a 16-bit tape over a 32-bit one", gradient->all / narrow->all, 1.6);
  }
}

void MeasureFirstResults(const std::shared_ptr<Device>& device, Report& report) {
  Setting setting;
  setting.preset = "f16_safe";  // nothing above has compiled it
  setting.steps = 10;
  absl::StatusOr<sim::Work> work = WorkOf(setting);
  if (!work.ok()) return;
  work->batch.instances = 1;
  work->batch.instance_ids.resize(1);
  for (sim::Binding& binding : work->batch.inputs) {
    if (binding.per_instance) {
      binding.tensor = sim::Tensor::Zeros(sim::DType::kF32, {1, 1});
      binding.tensor.Set(0, 0.5);
    }
  }
  const sim::Engine engine(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(device)));
  const auto run = [&] {
    sim::Observer observer;
    const auto result = engine.Execute(*work, observer);
    if (!result.ok()) report.Fail(result.status().ToString());
  };
  report.AddAtMost("a new built-in program to its first result", SecondsOf(run), "s", 1.0);
  report.AddAtMost("the same again", 1e3 * SecondsOf(run), "ms", 5.0);
}

}  // namespace

void MeasureSpeed(const std::shared_ptr<Device>& device, const std::string& architecture,
                  Report& report) {
  MeasureFirstResults(device, report);
  MeasureRollouts(device, architecture, report);
  MeasureGradients(device, report);
}

}  // namespace simgrad::gpu_check
