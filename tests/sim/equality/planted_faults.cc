#include "tests/sim/equality/planted_faults.h"

#include <algorithm>
#include <utility>

#include "precision/hash.h"
#include "tests/sim/equality/forwarding_run.h"
#include "tests/sim/equality/program_faults.h"

namespace simgrad::sim::equality {
namespace {

// Runs another program than the one it is given.
class OtherProgramExecutor : public Executor {
 public:
  OtherProgramExecutor(std::shared_ptr<Executor> executor, NumericalProgram program)
      : executor_(std::move(executor)),
        program_(std::make_shared<const NumericalProgram>(std::move(program))) {}
  std::string_view name() const override { return "faulty"; }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    batch.program = program_;
    return executor_->Create(std::move(batch), std::move(options));
  }

 private:
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<const NumericalProgram> program_;
};

// Runs the program, and then spoils what comes back.
class SpoilingExecutor : public Executor {
 public:
  using Spoil = std::function<std::unique_ptr<Run>(std::unique_ptr<Run>, const RunOptions&)>;
  SpoilingExecutor(std::shared_ptr<Executor> executor, Spoil spoil)
      : executor_(std::move(executor)), spoil_(std::move(spoil)) {}
  std::string_view name() const override { return "faulty"; }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    auto run = executor_->Create(std::move(batch), options);
    if (!run.ok()) return run.status();
    return spoil_(std::move(*run), options);
  }

 private:
  std::shared_ptr<Executor> executor_;
  Spoil spoil_;
};

// The last lane of the block shows the state of its neighbour.
class NeighbourRun : public ForwardingRun {
 public:
  using ForwardingRun::ForwardingRun;
  Tensor State(int32_t state_input) const override {
    Tensor tensor = ForwardingRun::State(state_input);
    const size_t rows = static_cast<size_t>(tensor.shape[0]);
    const size_t row = rows == 0 ? 0 : tensor.bytes.size() / rows;
    if (rows < 2) return tensor;
    std::copy_n(tensor.bytes.end() - static_cast<int64_t>(2 * row), row,
                tensor.bytes.end() - static_cast<int64_t>(row));
    return tensor;
  }
};

// At the start of every chunk the last values of the events are forgotten: each true one is a
// change.
class ForgetfulRun : public ForwardingRun {
 public:
  using ForwardingRun::ForwardingRun;
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override {
    absl::StatusOr<ForwardChunk> chunk = ForwardingRun::Forward(first, count);
    if (!chunk.ok() || first == 0) return chunk;
    for (std::vector<EventStep>& site : chunk->diagnostics.events) {
      if (!site.empty()) site.front().changes = site.front().count;
    }
    return chunk;
  }
};

// Adds to each signature what was decided wrongly.
class ShiftedSignatureRun : public ForwardingRun {
 public:
  ShiftedSignatureRun(std::unique_ptr<Run> run, std::vector<uint64_t> shifts)
      : ForwardingRun(std::move(run)), shifts_(std::move(shifts)) {}
  absl::Status Finish() override {
    absl::Status status = ForwardingRun::Finish();
    signatures_ = ForwardingRun::PathSignatures();
    for (size_t i = 0; i < signatures_.size(); ++i) signatures_[i] += shifts_[i];
    return status;
  }
  const std::vector<uint64_t>& PathSignatures() const override { return signatures_; }

 private:
  std::vector<uint64_t> shifts_;
  std::vector<uint64_t> signatures_;
};

// An event of several elements that stands outside all loops.
const Op* WideEvent(const Program& program) {
  for (const Op& op : program.step.ops) {
    const bool event = op.code == OpCode::kEvent;
    if (event && ElementCount(program[op.results[0]].type.shape) > 1) return &op;
  }
  return nullptr;
}

// The value of that event at every step: [instances][steps][elements].
absl::StatusOr<Tensor> ValuesOfEvent(Executor& executor, const Batch& batch, ValueId event) {
  auto probe = std::make_shared<NumericalProgram>(*batch.program);
  probe->adjoint.reset();
  probe->adjoint_spec.reset();
  probe->program.exports.push_back({"probe", event, true});
  Batch probed = batch;
  probed.cotangents = {};
  RunOptions options;
  options.record_exports = {static_cast<int32_t>(probe->program.exports.size()) - 1};
  // A terminal cost has an argument per export; it is not run here.
  probe->program.objectives.clear();
  probed.program = std::move(probe);
  auto run = executor.Create(std::move(probed), options);
  if (!run.ok()) return run.status();
  if (absl::Status status = (*run)->Start(); !status.ok()) return status;
  auto chunk = (*run)->Forward(0, batch.steps);
  if (!chunk.ok()) return chunk.status();
  return std::move(chunk->exports[0]);
}

// What the signatures lack if the element index of one event is always taken as 0.
std::shared_ptr<Executor> SignatureWithoutElement(std::shared_ptr<Executor> executor,
                                                  const Batch& batch) {
  const Op* event = WideEvent(batch.program->program);
  const bool stops = batch.program->policy.nonfinite == precision::NonFinite::kStop;
  if (event == nullptr || stops || batch.steps == 0) return nullptr;
  const absl::StatusOr<Tensor> values = ValuesOfEvent(*executor, batch, event->results[0]);
  if (!values.ok()) return nullptr;
  const uint64_t site = precision::Fnv1a64(event->attributes.site);
  const int64_t elements = values->count() / (batch.instances * batch.steps);
  std::vector<uint64_t> shifts(static_cast<size_t>(batch.instances), 0);
  for (int64_t at = 0; at < values->count(); ++at) {
    const int64_t t = at / elements % batch.steps;
    const bool before = t > 0 && values->GetInt(at - elements) != 0;
    const bool now = values->GetInt(at) != 0;
    if (before == now) continue;
    const uint64_t e = static_cast<uint64_t>(at % elements);
    const uint64_t step = static_cast<uint64_t>(t);
    shifts[static_cast<size_t>(at / elements / batch.steps)] +=
        precision::DecisionHash(site, step, 0, 0, now) -
        precision::DecisionHash(site, step, 0, e, now);
  }
  const bool any = std::any_of(shifts.begin(), shifts.end(), [](uint64_t s) { return s != 0; });
  if (!any) return nullptr;
  return std::make_shared<SpoilingExecutor>(
      std::move(executor), [shifts](std::unique_ptr<Run> run, const RunOptions&) {
        return std::make_unique<ShiftedSignatureRun>(std::move(run), shifts);
      });
}

template <typename Faulty>
PlantedFault Spoiled(std::string name) {
  return {std::move(name), [](std::shared_ptr<Executor> executor, const Batch&) {
            return std::make_shared<SpoilingExecutor>(
                std::move(executor), [](std::unique_ptr<Run> run, const RunOptions&) {
                  return std::make_unique<Faulty>(std::move(run));
                });
          }};
}

PlantedFault OfProgram(std::string name, bool (*change)(NumericalProgram&)) {
  return {std::move(name),
          [change](std::shared_ptr<Executor> executor,
                   const Batch& batch) -> std::shared_ptr<Executor> {
            NumericalProgram changed = *batch.program;
            if (!change(changed)) return nullptr;
            return std::make_shared<OtherProgramExecutor>(std::move(executor), std::move(changed));
          }};
}

}  // namespace

std::vector<PlantedFault> PlantedFaults() {
  return {
      OfProgram("wrong order of a sum", WrongOrderOfSums),
      OfProgram("missing rounding after mul", MissingRoundingAfterMul),
      OfProgram("contraction to fma", ContractionToFma),
      OfProgram("stale value of a lane that left its loop", StaleCarriedValue),
      OfProgram("one iteration too many at the cap", OneIterationTooMany),
      OfProgram("test before cap where the cap comes first", TestBeforeCapWhereCapIsFirst),
      OfProgram("<= for <", EqualityCountsAsLess),
      OfProgram("max drops NaN", MaxDropsNaN),
      OfProgram("merge adds to an absent cotangent", MergeAddsWhatIsAbsent),
      OfProgram("tape not rounded", TapeIsNotRounded),
      OfProgram("saturating cast overflows", CastIgnoresSaturation),
      OfProgram("accumulate ignores its mask", AccumulateIgnoresItsMask),
      OfProgram("event ignores its guard", GuardIsIgnored),
      Spoiled<NeighbourRun>("lane shows its neighbour's state"),
      Spoiled<ForgetfulRun>("events forgotten between chunks"),
      {"signature without element index", SignatureWithoutElement},
  };
}

}  // namespace simgrad::sim::equality
