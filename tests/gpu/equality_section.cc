#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/host_executor.h"
#include "tests/gpu/sections.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::gpu_check {
namespace {

using sim::cuda::Device;
using sim::cuda::KernelChoice;
using sim::cuda::Mapping;
using sim::equality::Observed;

// Sizes per random program: compiling it takes longer than running it.
constexpr uint64_t kSizes = 40;
constexpr size_t kFailures = 10;

std::string Difference(const std::shared_ptr<Device>& device, const sim::Work& work,
                       const sim::CudaExecutorOptions& options) {
  const auto expected = sim::equality::Observe(sim::MakeHostExecutor(), work);
  if (!expected.ok()) return absl::StrCat("cpu: ", expected.status().ToString());
  const auto actual = sim::equality::Observe(sim::MakeCudaExecutor(device, options), work);
  if (!actual.ok()) return absl::StrCat("cuda: ", actual.status().ToString());
  return sim::equality::FirstDifference(*expected, *actual).value_or("");
}

// Numbers of instances and steps of triple `k` of a program; the first is the case's own.
void Resize(uint64_t k, sim::equality::CaseOptions& options) {
  static const std::vector<int64_t> kInstances = {0, 1, 2, 31, 32, 33, 127, 128, 129, 1000};
  if (k == 0) return;
  options.instances = kInstances[(k + k / kInstances.size()) % kInstances.size()];
  options.steps = static_cast<int64_t>(20 * (k % kInstances.size()) + 1 + k / kInstances.size());
}

void CheckMemoryThatRunsOut(const std::shared_ptr<Device>& device, Report& report) {
  const int64_t before = device->Use().memory_used_bytes;
  const auto too_much = device->Allocate(2 * device->limits().memory_bytes);
  if (!absl::IsResourceExhausted(too_much.status())) {
    report.Fail(absl::StrCat("twice the memory of the device is answered with ",
                             too_much.status().ToString()));
  }
  if (device->Use().memory_used_bytes != before) {
    report.Fail("memory is held after an allocation that failed");
  }
}

}  // namespace

void CheckEquality(const std::shared_ptr<Device>& device, const EqualityGoal& goal,
                   Report& report) {
  std::atomic<uint64_t> next{0};
  std::atomic<int64_t> triples{0};
  std::atomic<int64_t> steps{0};
  std::mutex mutex;
  size_t failures = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(goal.seconds);
  // What a run that is cut off has compared; under the mutex.
  auto told = std::chrono::steady_clock::now();
  const auto tell = [&] {
    told = std::chrono::steady_clock::now();
    report.AddAtLeast("random (program, policy, size) triples compared to the bit",
                      static_cast<double>(triples), static_cast<double>(goal.triples));
    report.AddAtLeast("steps of those", static_cast<double>(steps),
                      static_cast<double>(goal.steps));
    report.Add("of them different", static_cast<double>(failures), "");
  };
  const auto goes_on = [&] {
    return (triples < goal.triples || steps < goal.steps) && std::chrono::steady_clock::now() < end;
  };
  const auto work = [&] {
    while (goes_on()) {
      const uint64_t seed = goal.first_seed + next++;
      for (uint64_t k = 0; k < kSizes && goes_on(); ++k) {
        sim::equality::CaseOptions options;
        Resize(k, options);
        const auto made = sim::equality::MakeCase(seed, options);
        std::string failure = made.ok() ? "" : made.status().ToString();
        if (made.ok()) {
          const Mapping mapping =
              k % 2 == 0 ? Mapping::kThreadPerInstance : Mapping::kBlockPerInstance;
          const KernelChoice kernel = k % 4 < 2 ? KernelChoice::kSoonest : KernelChoice::kBest;
          // A small grid goes through its instances in several passes.
          const int64_t grid = k % 3 == 0 ? 1 + static_cast<int64_t>(k % 4) : 0;
          failure =
              Difference(device, made->work, {.mapping = mapping, .grid = grid, .kernel = kernel});
          steps += made->work.batch.steps;
        }
        ++triples;
        const std::lock_guard<std::mutex> lock(mutex);
        if (std::chrono::steady_clock::now() - told > std::chrono::seconds(1)) tell();
        if (failure.empty()) continue;
        report.Fail(absl::StrCat("random case ", seed, ", size ", k, ": ", failure));
        if (++failures >= kFailures) triples = goal.triples, steps = goal.steps;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < goal.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  tell();
}

void CheckSizes(const std::shared_ptr<Device>& device, bool small, Report& report) {
  struct Size {
    int64_t instances, steps;
    double elements;
  };
  std::vector<Size> sizes;
  for (const int64_t instances : {0, 1, 31, 32, 33}) sizes.push_back({instances, 5, 3});
  sizes.push_back({65, 60, 3});  // several warps in several windows of recorded steps
  if (!small) {
    for (const int64_t instances : {1023, 1024, 1025, 1'000'000})
      sizes.push_back({instances, 5, 1});
    for (const double elements : {1, 9, 40, 256, 1000, 4096}) sizes.push_back({33, 4, elements});
    for (const int64_t steps : {1, 10, 1000, 100'000}) sizes.push_back({7, steps, 1});
    sizes.push_back({200'000, 100, 1});  // and several groups of instances in each
  }
  for (const Size& size : sizes) {
    for (const bool gradient : {false, true}) {
      auto program = tests::LowerCase(tests::WorldCases(size.elements)[0], "f32", gradient);
      if (!program.ok()) {
        report.Fail(program.status().ToString());
        continue;
      }
      sim::Work work = tests::WorkOfCase(*std::move(program), size.instances, size.steps);
      work.options.recording = sim::Recording::kSummary;
      if (size.instances * size.steps > 500'000) work.options.record_states.clear();
      const std::string difference = Difference(device, work, {});
      if (difference.empty()) continue;
      report.Fail(absl::StrCat(size.instances, " instances, ", size.steps, " steps, ",
                               size.elements, " elements: ", difference));
    }
  }
  // Memcheck takes a call that fails on purpose for an error.
  if (!small) CheckMemoryThatRunsOut(device, report);
  report.Add("sizes compared to the bit, forward and gradient",
             2 * static_cast<double>(sizes.size()), "");
}

}  // namespace simgrad::gpu_check
