#include "tests/sim/equality/observed.h"

#include <algorithm>
#include <utility>

#include "sim/program/paths.h"
#include "tests/sim/equality/forwarding_run.h"

namespace simgrad::sim::equality {
namespace {

// Keeps a copy of what each instance gave before the run is gone.
class ProbedRun : public ForwardingRun {
 public:
  ProbedRun(std::unique_ptr<Run> run, const Batch& batch, Observed& seen)
      : ForwardingRun(std::move(run)), batch_(batch), seen_(seen) {}

  absl::Status FinishAdjoint() override {
    absl::Status status = inner().FinishAdjoint();
    if (!status.ok()) return status;
    const NumericalProgram& program = *batch_.program;
    for (size_t i = 0; i < program.program.inputs.size(); ++i) {
      if (program.program.inputs[i].name == kPathStart) continue;  // no input of the world's
      const bool wanted = program.adjoint_spec->wanted[i];
      const int32_t input = static_cast<int32_t>(i);
      seen_.instance_gradients.push_back(wanted ? inner().Gradient(input) : std::vector<double>{});
      seen_.connected.push_back(wanted ? inner().Connected(input) : std::vector<uint8_t>{});
    }
    return status;
  }

 private:
  const Batch& batch_;
  Observed& seen_;
};

class ProbingExecutor : public Executor {
 public:
  ProbingExecutor(std::shared_ptr<Executor> executor, const Batch& batch, Observed& seen)
      : executor_(std::move(executor)), batch_(batch), seen_(seen) {}
  std::string_view name() const override { return executor_->name(); }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    auto run = executor_->Create(std::move(batch), std::move(options));
    if (!run.ok()) return run.status();
    return std::make_unique<ProbedRun>(std::move(*run), batch_, seen_);
  }

 private:
  std::shared_ptr<Executor> executor_;
  const Batch& batch_;
  Observed& seen_;
};

// Puts the chunks of a run together again.
class Collector : public Observer {
 public:
  Collector(const Batch& batch, Observed& seen) : batch_(batch), seen_(seen) {}

  void OnStart(const std::vector<Tensor>& recorded) override { seen_.first_states = recorded; }

  void OnForward(const ForwardChunk& chunk) override {
    if (steps_ == 0) {
      seen_.diagnostics = chunk.diagnostics;
      seen_.sites = chunk.instance_sites;
    } else {
      seen_.diagnostics.Append(chunk.diagnostics);
      for (size_t i = 0; i < chunk.instance_sites.size(); ++i) {
        Append(chunk.instance_sites[i], seen_.sites[i]);
      }
    }
    Place(chunk.states, seen_.states);
    Place(chunk.exports, seen_.exports);
    steps_ += Steps(chunk);
  }

 private:
  static void Append(const InstanceSite& from, InstanceSite& to) {
    const auto append = [](const auto& more, auto& list) {
      list.insert(list.end(), more.begin(), more.end());
    };
    append(from.iterations, to.iterations);
    append(from.reasons, to.reasons);
    append(from.value_counts, to.value_counts);
    for (size_t i = 0; i < from.values.size(); ++i) append(from.values[i], to.values[i]);
  }

  int64_t Steps(const ForwardChunk& chunk) const {
    if (chunk.diagnostics.steps > 0) return chunk.diagnostics.steps;
    for (const auto* list : {&chunk.states, &chunk.exports}) {
      if (!list->empty()) return list->front().shape[1];
    }
    return 0;
  }

  // [instances][steps of the chunk][shape] into [instances][all steps][shape].
  void Place(const std::vector<Tensor>& parts, std::vector<Tensor>& whole) const {
    if (whole.empty()) {
      for (const Tensor& part : parts) {
        Shape shape = part.shape;
        shape[1] = batch_.steps;
        whole.push_back(Tensor::Zeros(part.dtype, std::move(shape)));
      }
    }
    for (size_t k = 0; k < parts.size(); ++k) {
      const size_t rows = static_cast<size_t>(batch_.instances);
      const size_t row = rows == 0 ? 0 : parts[k].bytes.size() / rows;
      const size_t full = rows == 0 ? 0 : whole[k].bytes.size() / rows;
      const size_t per_step = batch_.steps == 0 ? 0 : full / static_cast<size_t>(batch_.steps);
      for (size_t i = 0; i < rows; ++i) {
        std::copy_n(parts[k].bytes.begin() + static_cast<int64_t>(i * row), row,
                    whole[k].bytes.begin() +
                        static_cast<int64_t>(i * full + static_cast<size_t>(steps_) * per_step));
      }
    }
  }

  const Batch& batch_;
  Observed& seen_;
  int64_t steps_ = 0;
};

}  // namespace

absl::StatusOr<Observed> Observe(std::shared_ptr<Executor> executor, const Work& work) {
  Observed seen;
  const Engine engine(std::make_shared<ProbingExecutor>(std::move(executor), work.batch, seen));
  Collector collector(work.batch, seen);
  absl::StatusOr<WorkResult> result = engine.Execute(work, collector);
  if (!result.ok()) return result.status();
  seen.result = std::move(*result);
  // Numbers of inputs are those of the world's.
  const auto& inputs = work.batch.program->program.inputs;
  const auto start = std::find_if(inputs.begin(), inputs.end(),
                                  [](const Input& input) { return input.name == kPathStart; });
  for (InputGradient& gradient : seen.result.gradients) {
    gradient.input -= start - inputs.begin() < gradient.input ? 1 : 0;
  }
  // Where nothing is recorded, an executor may count or not.
  if (work.options.recording == Recording::kNone) seen.result.adjoint_ranges = {};
  return seen;
}

}  // namespace simgrad::sim::equality
