// What it takes to make, to load and to keep the machine code of a few programs, in milliseconds of the processor.
//
// usage: compile_bench [ball|large OPERATIONS] [quick|best]
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/executor.h"
#include "sim/plan/cut.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/structure.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::sim::compiled {
namespace {

class Clock {
 public:
  double Lap() {
    const double now = Now();
    return now - std::exchange(last_, now);
  }

 private:
  static double Now() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  }
  double last_ = Now();
};

// Of this process.
int64_t PeakMiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

int64_t LiveMiB() {
  const struct mallinfo2 live = mallinfo2();
  return static_cast<int64_t>((live.uordblks + live.hblkhd) >> 20);
}

NumericalProgram Lowered(const Program& world, const std::string& objective) {
  const auto policy = std::get<precision::Policy>(precision::Resolve({}));
  AdjointSpec spec;
  spec.objective = objective;
  for (const Input& input : world.inputs) spec.wanted.push_back(IsDifferentiable(world, input));
  return *Lower(world, policy, objective, spec);
}

void Measure(const NumericalProgram& program, Recording recording, Part part, Effort effort) {
  const bool records = recording != Recording::kNone;
  Clock clock;
  plan::Plan whole =
      plan::PlacedPlan(program, {.decides = records, .looks = records, .ranges = records});
  const double planned = clock.Lap();
  const bool forward = part == Part::kForward;
  int64_t statements = 0;
  int64_t largest = 0;
  for (const plan::Function* function : FunctionsOf(whole, part)) {
    statements += plan::StatementsOf(*function);
    largest = std::max(largest, plan::StatementsOf(*function));
  }
  const plan::Plan plan = plan::CutLargeFunctions(std::move(whole));
  const int64_t live = LiveMiB();
  const auto object =
      CompileKernel(plan, part,
                    {.inputs = std::vector<InputForm>(program.program.inputs.size()),
                     .looks = records,
                     .decides = records && forward,
                     .ranges = records,
                     .extremes = forward && recording == Recording::kSummary},
                    {.effort = effort, .parts = PartsFor(largest)});
  if (!object.ok()) {
    std::printf("%s\n", object.status().ToString().c_str());
    return;
  }
  const double compiled = clock.Lap();
  const auto kernel = LoadKernel(*object, part);
  const double loaded = clock.Lap();
  std::printf(
      "%s %s %s: %lld statements, plan %.1f, compile %.1f, load %.1f; %zu bytes, workspace "
      "%lld; at most %lld MiB, %lld of them before\n",
      forward ? "forward" : "adjoint", records ? "summary" : "none",
      effort == Effort::kBest ? "best" : "quick", static_cast<long long>(statements), planned,
      compiled, loaded, object->bytes.size(), static_cast<long long>(object->workspace),
      static_cast<long long>(PeakMiB()), static_cast<long long>(live));
}

int Main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "ball";
  const bool is_large = what == "large";
  const Program world = is_large ? large::LargeProgram(count > 2 ? std::atoll(words[2]) : 5000)
                                 : *BuildWorld("bouncing_ball", {{"clamp", false}});
  const NumericalProgram program = Lowered(world, world.objectives.front().name);
  const std::string last = words[count - 1];
  for (const Effort effort : {Effort::kQuick, Effort::kBest}) {
    if (last == "quick" && effort == Effort::kBest) continue;
    if (last == "best" && effort == Effort::kQuick) continue;
    for (const Recording recording : {Recording::kNone, Recording::kSummary}) {
      for (const Part part : {Part::kForward, Part::kAdjoint}) {
        Measure(program, recording, part, effort);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace simgrad::sim::compiled

int main(int count, char** words) { return simgrad::sim::compiled::Main(count, words); }
