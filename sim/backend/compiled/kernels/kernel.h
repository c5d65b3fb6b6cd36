// The machine code of a plan: its forward functions, or those of its adjoint, for groups of
// instances.
//
// Numbers of the program stand in the plan's tables, so plans of one structure share a kernel.
// Cost: CompileKernel a compile; LoadKernel about a millisecond. Errors: INTERNAL
// with LLVM's words. Threads: compile in one; the functions may run in any.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/compiled/group/group_args.h"
#include "sim/backend/compiled/group/writer_options.h"
#include "sim/backend/compiled/machine/machine_code.h"
#include "sim/backend/compiled/machine/object_code.h"
#include "sim/plan/cut.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

using GroupFunction = void (*)(GroupArgs*);

struct KernelOptions {
  Isa isa = BestIsa();
  Effort effort = Effort::kBest;
  // Vectors side by side, where lanes hold instances; else as PartsFor says.
  std::optional<int> parts;
  std::optional<Mapping> mapping;  // else as mapping.h says
  bool near_zero = false;          // kNearZero from the first step on, needed or not
  plan::CutLimits cut;
  uint64_t most_frame_bytes = kMostFrameBytes;  // of a function; smaller for tests
  // Changes each plan before it is cut: for tests that plant faults.
  std::function<void(plan::Plan&)> edit;
};

// Two, which hide each other's waits; one for a program whose largest function has so many statements
// that registers are short anyhow and compiling takes long.
int PartsFor(int64_t statements);
LaneShape ShapeOf(const KernelOptions& options);

// A part of a plan's functions: forward code and adjoint code are made when they are asked for.
// kNearZero: the reversed steps for processors that are slow where a product meets a subnormal.
enum class Part : uint8_t { kForward, kAdjoint, kNearZero };

// Compiled, not loaded.
struct KernelObject {
  std::string bytes;      // an object file
  int64_t workspace = 0;  // bytes, of the function that needs most
  // LLVM's, before any pass, with each call's callee in its place: the best compile begins with them.
  int64_t instructions = 0;
};

struct Kernel {
  std::unique_ptr<MachineCode> code;
  int64_t workspace = 0;
  int64_t instructions = 0;       // of its object; 0: it was found in the folder
  Effort effort = Effort::kBest;  // that it was compiled with
  // kForward; null: the plan has none.
  GroupFunction start = nullptr;
  GroupFunction step = nullptr;  // steps [first_step, first_step + count)
  GroupFunction finish = nullptr;
  // kAdjoint; of kNearZero `reverse_last` and `reverse`.
  GroupFunction replay = nullptr;  // steps of a call, ascending
  GroupFunction reverse_terminal = nullptr;
  GroupFunction reverse_last = nullptr;  // null: as `reverse`
  GroupFunction reverse = nullptr;       // steps of a call, descending
  GroupFunction reverse_initial = nullptr;
  // Processor time of the thread that compiled it; zero: it was found in the folder.
  std::chrono::nanoseconds compile_time{0};
  // How long steps have run in this code, on all threads: it tells whether better code is worth it.
  std::unique_ptr<std::atomic<int64_t>> run_nanoseconds = std::make_unique<std::atomic<int64_t>>(0);
};

// Adds its own life to the time that a kernel has run.
class RunTimer {
 public:
  explicit RunTimer(const Kernel& kernel) : total_(*kernel.run_nanoseconds) {}
  ~RunTimer() {
    const std::chrono::nanoseconds life = std::chrono::steady_clock::now() - start_;
    total_.fetch_add(life.count(), std::memory_order_relaxed);
  }
  RunTimer(const RunTimer&) = delete;
  RunTimer& operator=(const RunTimer&) = delete;

 private:
  std::atomic<int64_t>& total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The functions of a part that the plan has.
std::vector<const plan::Function*> FunctionsOf(const plan::Plan& plan, Part part);

// `writer`: what is recorded; its shape is that of the options. CANCELLED where `stop` returned true.
absl::StatusOr<KernelObject> CompileKernel(const plan::Plan& plan, Part part, WriterOptions writer,
                                           const KernelOptions& options,
                                           const WorkMeter::StopCallback& stop = {});
absl::StatusOr<Kernel> LoadKernel(const KernelObject& object, Part part);

}  // namespace simgrad::sim::compiled
