#include "sim/backend/compiled/compiled_run.h"

#include <algorithm>
#include <utility>

#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/backend/empty_chunk.h"
#include "sim/backend/value_tensors.h"
#include "sim/program/step_work.h"

namespace simgrad::sim::compiled {
namespace {

int ThreadsOf(const RunOptions& options, int64_t groups) {
  return static_cast<int>(std::clamp<int64_t>(options.threads, 1, std::max<int64_t>(groups, 1)));
}

absl::Status NoAdjoint() { return absl::UnimplementedError("compiled plans do not run adjoints"); }

}  // namespace

CompiledRun::Worker::Worker(const Batch& batch, int lanes, int64_t workspace_bytes,
                            const WorkMeter::StopCallback& stop)
    : inputs(batch, lanes), workspace(static_cast<size_t>(workspace_bytes)), meter(stop) {}

CompiledRun::CompiledRun(Batch batch, RunOptions options, plan::Plan plan,
                         std::shared_ptr<const Kernel> kernel)
    : batch_(std::move(batch)),
      options_(std::move(options)),
      plan_(std::move(plan)),
      kernel_(std::move(kernel)),
      layout_(plan_.fields, kernel_->shape.lanes()),
      states_(batch_.program->program.InputsOf(InputKind::kState)),
      pool_(ThreadsOf(options_, groups())),
      workers_(static_cast<size_t>(pool_.threads())),
      groups_(static_cast<size_t>(groups())) {}

int64_t CompiledRun::groups() const { return (batch_.instances + lanes() - 1) / lanes(); }

absl::Status CompiledRun::ForGroups(const std::function<void(Worker&, int64_t)>& work) {
  return UntilStopped([&] {
    pool_.ParallelFor(groups(), [&](int worker, int64_t group) {
      std::unique_ptr<Worker>& own = workers_[static_cast<size_t>(worker)];
      if (!own) {
        own = std::make_unique<Worker>(batch_, lanes(), kernel_->workspace, options_.stop);
      }
      work(*own, group);
    });
  });
}

void CompiledRun::Call(GroupFunction function, Worker& worker, int64_t group, int64_t first,
                       int64_t count) {
  worker.inputs.Load(group * lanes(), first, std::max<int64_t>(count, 1), worker.meter);
  GroupState& state = groups_[static_cast<size_t>(group)];
  std::vector<std::byte*> fields;
  for (size_t k = 0; k < plan_.fields.size(); ++k) {
    fields.push_back(state.fields.data() + layout_.offset(k));
  }
  const GroupArgs args = {.numbers = plan_.numbers.data(),
                          .integers = plan_.integers.data(),
                          .inputs = worker.inputs.pointers(),
                          .fields = fields.data(),
                          .workspace = worker.workspace.data(),
                          .lanes_run = state.runs.data(),
                          .first_step = first,
                          .count = count};
  function(&args);
}

void CompiledRun::SetSentStates(int64_t group, WorkMeter& meter) {
  const Program& program = batch_.program->program;
  const precision::Overflow overflow = batch_.program->policy[Role::kState].overflow;
  GroupState& state = groups_[static_cast<size_t>(group)];
  for (size_t k = 0; k < states_.size(); ++k) {
    const size_t input = static_cast<size_t>(states_[k]);
    const Input& declared = program.inputs[input];
    const Value& value = program[declared.value];
    const Binding& binding = batch_.inputs[input];
    const bool is_sent = !binding.tensor.bytes.empty();
    const plan::Field& field = plan_.fields[k];
    std::byte* const to = state.fields.data() + layout_.offset(k);
    meter.Add(field.count * lanes() * kConversionWork);
    for (int64_t lane = 0; lane < lanes(); ++lane) {
      const int64_t row = std::min(group * lanes() + lane, batch_.instances - 1);
      for (int64_t e = 0; e < field.count; ++e) {
        const int64_t from = (binding.per_instance ? row * field.count : 0) + e;
        const double unsent = declared.default_value.value_or(0.0);
        if (value.type.element == ElementType::kReal) {
          const double x = is_sent ? binding.tensor.Get(from) : unsent;
          WriteReal(to, field.carrier, e * lanes() + lane,
                    precision::RoundTo(*value.format, x, overflow));
        } else {
          const int64_t n = is_sent ? binding.tensor.GetInt(from) : static_cast<int64_t>(unsent);
          WriteInteger(to, field.carrier, e * lanes() + lane, n);
        }
      }
    }
  }
}

absl::Status CompiledRun::Start() {
  return ForGroups([this](Worker& worker, int64_t group) {
    GroupState& state = groups_[static_cast<size_t>(group)];
    state.fields.assign(static_cast<size_t>(layout_.bytes()), std::byte{0});
    state.runs.assign(static_cast<size_t>(lanes()), 0);
    const int64_t live = std::min<int64_t>(lanes(), batch_.instances - group * lanes());
    std::fill_n(state.runs.begin(), live, ~uint32_t{0});
    SetSentStates(group, worker.meter);
    if (batch_.program->program.HasInitial()) Call(kernel_->start, worker, group, 0, 1);
  });
}

void CompiledRun::CopyOut(const Value& value, size_t field, int64_t group, Tensor& tensor,
                          int64_t columns, int64_t column) const {
  const plan::Field& f = plan_.fields[field];
  const std::byte* const from =
      groups_[static_cast<size_t>(group)].fields.data() + layout_.offset(field);
  const int64_t live = std::min<int64_t>(lanes(), batch_.instances - group * lanes());
  for (int64_t lane = 0; lane < live; ++lane) {
    const int64_t row = (group * lanes() + lane) * columns + column;
    for (int64_t e = 0; e < f.count; ++e) {
      const int64_t i = e * lanes() + lane;
      if (value.type.element == ElementType::kReal) {
        tensor.Set(row * f.count + e, precision::Canonical(ReadReal(from, f.carrier, i)));
      } else {
        tensor.SetInt(row * f.count + e, ReadInteger(from, f.carrier, i));
      }
    }
  }
}

// The recorded states and exports after a step.
void CompiledRun::Record(ForwardChunk& chunk, int64_t group, int64_t column) const {
  const Program& program = batch_.program->program;
  const int64_t columns = chunk.diagnostics.steps;
  for (size_t k = 0; k < options_.record_states.size(); ++k) {
    const int32_t input = options_.record_states[k];
    const auto field = std::find(states_.begin(), states_.end(), input) - states_.begin();
    CopyOut(program[program.inputs[static_cast<size_t>(input)].value], static_cast<size_t>(field),
            group, chunk.states[k], columns, column);
  }
  for (size_t k = 0; k < options_.record_exports.size(); ++k) {
    const size_t item = static_cast<size_t>(options_.record_exports[k]);
    CopyOut(program[program.exports[item].value], states_.size() + item, group, chunk.exports[k],
            columns, column);
  }
}

absl::StatusOr<ForwardChunk> CompiledRun::Forward(int64_t first, int64_t count) {
  ForwardChunk chunk = EmptyChunk(batch_, options_, options_.stride, first, count);
  const bool records = !options_.record_states.empty() || !options_.record_exports.empty();
  // Between two looks at the clock.
  const double work = WorkAtCaps(batch_.program->program, batch_.program->program.step) * lanes();
  const int64_t at_once =
      records ? 1
              : std::clamp<int64_t>(static_cast<int64_t>(WorkMeter::kPiece / std::max(work, 1.0)),
                                    1, count);
  const absl::Status ended = ForGroups([&](Worker& worker, int64_t group) {
    for (int64_t done = 0; done < count;) {
      const int64_t now = std::min(at_once, count - done);
      worker.meter.Add(static_cast<int64_t>(
          std::min(work * static_cast<double>(now), static_cast<double>(WorkMeter::kPiece))));
      Call(kernel_->step, worker, group, first + done, now);
      done += now;
      if (records) Record(chunk, group, done - 1);
    }
  });
  if (!ended.ok()) return ended;
  return chunk;
}

std::shared_ptr<const void> CompiledRun::SaveState() const {
  return std::make_shared<std::vector<GroupState>>(groups_);
}

void CompiledRun::RestoreState(const std::shared_ptr<const void>& saved) {
  groups_ = *static_cast<const std::vector<GroupState>*>(saved.get());
}

int64_t CompiledRun::SavedBytes() const {
  return groups() * (layout_.bytes() + lanes() * static_cast<int64_t>(sizeof(uint32_t)));
}

absl::Status CompiledRun::Finish() {
  if (TerminalOf(*batch_.program) == nullptr) return absl::OkStatus();
  return ForGroups([this](Worker& worker, int64_t group) {
    Call(kernel_->finish, worker, group, batch_.steps, 1);
  });
}

absl::Status CompiledRun::StartAdjoint(double) { return NoAdjoint(); }
absl::StatusOr<AdjointChunk> CompiledRun::Adjoint(int64_t, int64_t) { return NoAdjoint(); }
absl::Status CompiledRun::FinishAdjoint() { return NoAdjoint(); }
int64_t CompiledRun::AdjointBytes(int64_t, int64_t) const { return 0; }

Tensor CompiledRun::Collect(const Value& value, size_t field) const {
  Tensor tensor = ZerosFor(value, {batch_.instances});
  for (int64_t group = 0; group < groups(); ++group) CopyOut(value, field, group, tensor, 1, 0);
  return tensor;
}

Tensor CompiledRun::State(int32_t state_input) const {
  const Program& program = batch_.program->program;
  const auto k = std::find(states_.begin(), states_.end(), state_input) - states_.begin();
  return Collect(program[program.inputs[static_cast<size_t>(state_input)].value],
                 static_cast<size_t>(k));
}

Tensor CompiledRun::Export(int32_t export_index) const {
  const Program& program = batch_.program->program;
  const size_t k = static_cast<size_t>(export_index);
  return Collect(program[program.exports[k].value], states_.size() + k);
}

std::vector<double> CompiledRun::Values() const {
  std::vector<double> values;
  if (batch_.program->objective.empty()) return values;
  const size_t field = plan_.fields.size() - 1;
  for (int64_t i = 0; i < batch_.instances; ++i) {
    const std::byte* const from =
        groups_[static_cast<size_t>(i / lanes())].fields.data() + layout_.offset(field);
    values.push_back(
        precision::Canonical(ReadReal(from, plan_.fields[field].carrier, i % lanes())));
  }
  return values;
}

std::vector<std::vector<int64_t>> CompiledRun::FirstEventSteps() const {
  const size_t sites = CountOf(batch_.program->sites, SiteKind::kEvent);
  return std::vector<std::vector<int64_t>>(
      sites, std::vector<int64_t>(static_cast<size_t>(batch_.instances), -1));
}

const std::vector<double>& CompiledRun::Gradient(int32_t) const {
  static const std::vector<double> none;
  return none;
}
const std::vector<uint8_t>& CompiledRun::Connected(int32_t) const {
  static const std::vector<uint8_t> none;
  return none;
}

}  // namespace simgrad::sim::compiled
