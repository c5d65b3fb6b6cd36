#include "sim/backend/compiled/compiled_executor.h"

#include <algorithm>
#include <utility>

#include "sim/backend/check_batch.h"
#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/backend/compiled/kernels/plan_cache.h"
#include "sim/backend/compiled/kernels/seen_programs.h"
#include "sim/backend/compiled/run/compiled_run.h"
#include "sim/backend/reference/reference_executor.h"

namespace simgrad::sim::compiled {
namespace {

// The part of the executor that its runs share.
struct Kept {
  Kept(const CompiledOptions& options, Wanted how)
      : kernel_options{.isa = options.isa,
                       .parts = options.parts,
                       .mapping = options.mapping,
                       .near_zero = options.near_zero,
                       .cut = options.cut,
                       .most_frame_bytes = options.most_frame_bytes,
                       .edit = options.edit},
        wanted(how),
        kernels(options.kernels),
        plans(kernel_options, options.most_plan_bytes, options.kernels.watch) {}

  KernelRequest RequestOf(const PlannedProgram& planned, Part part) const {
    KernelRequest request = {planned.plan, part, planned.adjoint, planned.options,
                             planned.adjoint_key};
    if (part == Part::kForward) {
      request.writer = planned.forward;
      request.key = planned.forward_key;
    }
    if (part == Part::kNearZero) request.key = planned.near_zero_key;
    return request;
  }

  // Null while it is compiled.
  std::shared_ptr<const Kernel> NearZero(const PlannedProgram& planned,
                                         const WorkMeter::StopCallback& stop) {
    const KernelRequest request = RequestOf(planned, Part::kNearZero);
    if (wanted != Wanted::kSoonest) {
      auto kernel = kernels.Get(request, wanted, stop);
      return kernel.ok() ? *std::move(kernel) : nullptr;
    }
    if (kernels.Find(request.key) == nullptr) {
      kernels.Ask(request, Wanted::kSoonest);
      return nullptr;
    }
    auto kernel = kernels.Get(request, wanted, stop);
    return kernel.ok() ? *std::move(kernel) : nullptr;
  }

  const KernelOptions kernel_options;
  const Wanted wanted;
  KernelCache kernels;
  PlanCache plans;
  SeenPrograms seen;
  std::atomic<uint64_t> runs_compiled{0};
  std::atomic<uint64_t> runs_by_reference{0};
};

class Compiled : public CompiledExecutor {
 public:
  Compiled(const CompiledOptions& options, Wanted wanted)
      : options_(options),
        kept_(std::make_shared<Kept>(options, wanted)),
        reference_(MakeReferenceExecutor()) {}
  std::string_view name() const override { return "compiled"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (absl::Status status = CheckBatch(batch, options.stop); !status.ok()) return status;
    std::shared_ptr<const PlannedProgram> planned = kept_->plans.Find(batch, options.recording);
    bool came_back = false;
    if (planned == nullptr) {
      came_back = kept_->seen.SawBefore(batch.program);
      // A plan may take longer than the whole run.
      if (!came_back && IsLittle(batch)) {
        return RunOfReference(std::move(batch), std::move(options));
      }
      const absl::Status made =
          UntilStopped([&] { planned = kept_->plans.Get(batch, options.recording, options.stop); });
      if (!made.ok()) return made;
    }
    if (IsLeftToReference(*planned, batch, came_back)) {
      return RunOfReference(std::move(batch), std::move(options));
    }
    absl::StatusOr<std::unique_ptr<CompiledRun>> run =
        RunOf(planned, std::move(batch), std::move(options));
    if (run.ok()) return std::unique_ptr<Run>(*std::move(run));
    if (planned->is_too_deep) return RunOfReference(std::move(batch), std::move(options));
    return run.status();
  }

  absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch batch, RunOptions options,
                                             const ForwardCounts& counts) override {
    const auto* const own = dynamic_cast<const CompiledCounts*>(&counts);
    if (own == nullptr) return reference_->Adopt(std::move(batch), std::move(options), counts);
    if (absl::Status status = CheckBatch(batch, options.stop); !status.ok()) return status;
    std::shared_ptr<const PlannedProgram> planned;
    const absl::Status made =
        UntilStopped([&] { planned = kept_->plans.Get(batch, options.recording, options.stop); });
    if (!made.ok()) return made;
    if (IsTooLarge(*planned)) return std::unique_ptr<Run>();
    absl::StatusOr<std::unique_ptr<CompiledRun>> run =
        RunOf(planned, std::move(batch), std::move(options));
    if (planned->is_too_deep) return std::unique_ptr<Run>();
    if (!run.ok()) return run.status();
    const absl::StatusOr<bool> taken = (*run)->TakeCounts(*own);
    if (!taken.ok()) return taken.status();
    return *taken ? std::unique_ptr<Run>(*std::move(run)) : nullptr;
  }

  // Nothing where the reference runs a program that is too large to compile.
  absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& batch, const RunOptions& options,
                                                   const RangeSteps& steps) const override {
    if (absl::Status status = CheckBatch(batch, options.stop); !status.ok()) return status;
    std::shared_ptr<const PlannedProgram> planned = kept_->plans.Find(batch, options.recording);
    if (planned == nullptr) {
      // As in Create. Large states are no work, but memory, which a plan tells better.
      constexpr int64_t kSmallStates = 1 << 20;
      if (IsLittle(batch) && !kept_->seen.HasSeen(batch.program)) {
        const MemoryNeed need = NeedOfReference(batch);
        if (need.saved <= kSmallStates) return need;
      }
      const absl::Status made =
          UntilStopped([&] { planned = kept_->plans.Get(batch, options.recording, options.stop); });
      if (!made.ok()) return made;
    }
    if (IsTooLarge(*planned)) return std::optional<MemoryNeed>();
    const absl::StatusOr<WeightsNeed> weights = NeedOfWeights(*planned, batch, options);
    if (!weights.ok()) return weights.status();
    MemoryNeed need = NeedOfRun(batch, options, steps, *planned->plan, planned->forward.shape,
                                planned->tape, *weights);
    if (planned->memory == nullptr) need.run += planned->bytes;
    for (Part part : {Part::kForward, Part::kAdjoint}) {
      const KernelRequest request = kept_->RequestOf(*planned, part);
      if (request.key.empty() || kept_->kernels.Find(request.key) != nullptr) continue;
      need.run += CompileBytes(*planned->plan, part);
    }
    if (IsLittle(*planned, batch)) need.run += BytesOfReference(planned->work_per_step, batch);
    return need;
  }

  // Plans first: they are made in a moment.
  int64_t Relieve(int64_t bytes) override {
    const int64_t freed = kept_->plans.Relieve(bytes);
    return freed + kept_->kernels.Relieve(bytes - freed);
  }

  CompiledUse use() const override {
    return {.compiler = kept_->kernels.use(),
            .plans = kept_->plans.size(),
            .plan_bytes = kept_->plans.bytes(),
            .runs_compiled = kept_->runs_compiled,
            .runs_by_reference = kept_->runs_by_reference};
  }

 private:
  static absl::StatusOr<WeightsNeed> NeedOfWeights(const PlannedProgram& planned,
                                                   const Batch& batch, const RunOptions& options) {
    WeightsNeed need;
    const absl::Status ended = UntilStopped([&] {
      WorkMeter meter(options.stop);
      need = WeightsNeedOf(batch, options, planned.forward.shape, meter);
    });
    if (!ended.ok()) return ended;
    return need;
  }

  absl::StatusOr<std::unique_ptr<Run>> RunOfReference(Batch batch, RunOptions options) {
    ++kept_->runs_by_reference;
    return reference_->Create(std::move(batch), std::move(options));
  }

  bool IsTooLarge(const PlannedProgram& planned) const {
    return planned.statements > options_.most_statements || planned.is_too_deep;
  }

  // Takes batch and options where it succeeds. A program may turn out to be too deep.
  absl::StatusOr<std::unique_ptr<CompiledRun>> RunOf(
      const std::shared_ptr<const PlannedProgram>& planned, Batch&& batch, RunOptions&& options) {
    const auto stop = options.stop;
    // Both are compiled side by side. The run begins when it can; its StartAdjoint waits for the rest.
    Claim adjoint;
    if (!planned->adjoint_key.empty()) {
      adjoint = kept_->kernels.AskForRun(kept_->RequestOf(*planned, Part::kAdjoint), kept_->wanted);
    }
    const auto kernel = [kept = kept_, planned, stop, adjoint](Part part) {
      auto loaded = kept->kernels.Get(kept->RequestOf(*planned, part), kept->wanted, stop);
      if (absl::IsOutOfRange(loaded.status())) {
        planned->is_too_deep = true;
        // A run that has begun cannot go on by the reference; the caller's next try is run by it.
        loaded = absl::UnavailableError(loaded.status().message());
      }
      return loaded;
    };
    const auto near_zero = [kept = kept_, planned, stop] { return kept->NearZero(*planned, stop); };
    const absl::StatusOr<WeightsNeed> weights = NeedOfWeights(*planned, batch, options);
    if (!weights.ok()) return weights.status();
    if (const auto ready = kernel(Part::kForward); !ready.ok()) return ready.status();
    // A larger function may turn out to be too deep, and must do so before the run begins.
    constexpr int64_t kShallow = plan::CutLimits().whole;
    if (planned->statements > kShallow && !planned->adjoint_key.empty()) {
      if (const auto ready = kernel(Part::kAdjoint); !ready.ok()) return ready.status();
    }
    std::unique_ptr<CompiledRun> run;
    const absl::Status made = UntilStopped([&] {
      run = std::make_unique<CompiledRun>(
          std::move(batch), std::move(options),
          RunCode{planned->plan, planned->forward.shape, planned->tape, *weights, kernel, near_zero,
                  WhenNearZero(*planned)});
    });
    if (!made.ok()) return made;
    ++kept_->runs_compiled;
    return run;
  }

  NearZeroUse WhenNearZero(const PlannedProgram& planned) const {
    if (!FusesMultiplyAdd(options_.isa)) return NearZeroUse::kNever;
    if (options_.near_zero) return NearZeroUse::kAlways;
    if (!SubnormalsAreSlow()) return NearZeroUse::kNever;
    return planned.has_f16 ? NearZeroUse::kWhenRead : NearZeroUse::kWhenMet;
  }

  // The reference's, in element-operations: those of the steps, and what it does for each instance
  // and for each of its steps.
  static double WorkOf(double per_step, const Batch& batch) {
    constexpr double kOfInstance = 64;
    constexpr double kOfStep = 4;
    const double steps = static_cast<double>(batch.steps + 1);
    return static_cast<double>(batch.instances) * (kOfInstance + steps * (kOfStep + per_step));
  }
  // The reference keeps every number of a little work, and 1 to 2 KiB for an instance.
  static int64_t BytesOfReference(double per_step, const Batch& batch) {
    constexpr double kPerOperation = 64;
    return static_cast<int64_t>(kPerOperation * WorkOf(per_step, batch));
  }
  // The need of a little work, without a plan. Tapes are among the numbers that are kept, states are not.
  static MemoryNeed NeedOfReference(const Batch& batch) {
    const Program& program = batch.program->program;
    constexpr int64_t kPerInstance = 512;  // health, path, bookkeeping
    int64_t state = kPerInstance;
    for (int32_t i : program.InputsOf(InputKind::kState)) {
      const ValueId value = program.inputs[static_cast<size_t>(i)].value;
      state += 8 * ElementCount(program[value].type.shape);
    }
    // Two states travel with every chunk; as many are the engine's.
    constexpr int64_t kStates = 4;
    const int64_t saved = batch.instances * state;
    return {.run = BytesOfReference(WorkPerStep(*batch.program), batch) + kStates * saved,
            .saved = saved};
  }
  double LittleWork(int64_t statements) const {
    return std::max(options_.little_work,
                    options_.little_work_per_statement * static_cast<double>(statements));
  }
  bool IsLittle(const PlannedProgram& planned, const Batch& batch) const {
    const int64_t statements = std::max(planned.forward_statements + planned.adjoint_statements,
                                        FewestStatements(*planned.program));
    return kept_->wanted == Wanted::kSoonest &&
           WorkOf(planned.work_per_step, batch) <= LittleWork(statements);
  }
  // Before there is a plan: if it is little by this, it is little by its plan.
  bool IsLittle(const Batch& batch) const {
    return kept_->wanted == Wanted::kSoonest && WorkOf(WorkPerStep(*batch.program), batch) <=
                                                    LittleWork(FewestStatements(*batch.program));
  }
  // `came_back`: the program ran before without a plan.
  bool IsLeftToReference(const PlannedProgram& planned, const Batch& batch, bool came_back) const {
    came_back = planned.uses++ > 0 || came_back;
    if (IsTooLarge(planned)) return true;
    if (!IsLittle(planned, batch)) return false;
    bool ready = true;
    for (Part part : {Part::kForward, Part::kAdjoint}) {
      const KernelRequest request = kept_->RequestOf(planned, part);
      if (request.key.empty() || kept_->kernels.Find(request.key) != nullptr) continue;
      ready = false;
      // A program that comes back is compiled meanwhile; one that never does is not.
      if (came_back) kept_->kernels.Ask(request, Wanted::kSoonest);
    }
    return !ready;
  }

  const CompiledOptions options_;
  const std::shared_ptr<Kept> kept_;
  const std::unique_ptr<Executor> reference_;
};

}  // namespace

std::unique_ptr<CompiledExecutor> MakeCompiledExecutor(const CompiledOptions& options) {
  return std::make_unique<Compiled>(options, Wanted::kSoonest);
}

std::unique_ptr<CompiledExecutor> MakeCompiledExecutor(const KernelOptions& options) {
  const CompiledOptions all = {.isa = options.isa,
                               .parts = options.parts,
                               .mapping = options.mapping,
                               .near_zero = options.near_zero,
                               .cut = options.cut,
                               .most_frame_bytes = options.most_frame_bytes,
                               .edit = options.edit};
  return std::make_unique<Compiled>(
      all, options.effort == Effort::kBest ? Wanted::kBest : Wanted::kQuick);
}

}  // namespace simgrad::sim::compiled
