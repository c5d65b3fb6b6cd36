#include "sim/backend/compiled/run/compiled_run.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/compiled/group/exact_margins.h"
#include "sim/backend/value_tensors.h"

namespace simgrad::sim::compiled {
namespace {

// The work of finding the rank of an id, in element-operations.
constexpr int64_t kSearchWork = 32;
// The most numbers of inputs with a step axis that a call of machine code is given: 128 KiB.
constexpr int64_t kSentAtOnce = int64_t{1} << 14;

int ThreadsOf(const RunOptions& options, int64_t groups) {
  return static_cast<int>(std::clamp<int64_t>(options.threads, 1, std::max<int64_t>(groups, 1)));
}

}  // namespace

CompiledRun::Worker::Worker(const Batch& batch, int lanes, const WorkMeter::StopCallback& asked)
    : inputs(batch, lanes), meter(asked), stop(asked) {}

CompiledRun::CompiledRun(Batch batch, RunOptions options, RunCode code)
    : batch_(std::move(batch)),
      options_(std::move(options)),
      code_(std::move(code)),
      plan_(*code_.plan),
      travelling_(TravellingFields(plan_)),
      layout_(plan_.fields, code_.shape.lanes()),
      states_(batch_.program->program.InputsOf(InputKind::kState)),
      forms_(FormsOf(batch_)),
      records_(options_.recording != Recording::kNone),
      looks_(records_ || batch_.program->policy.nonfinite == precision::NonFinite::kStop),
      pool_(ThreadsOf(options_, groups())),
      workers_(static_cast<size_t>(pool_.threads())),
      groups_(plan_, lanes(), groups()),
      tape_bytes_(static_cast<size_t>(batch_.steps), 0),
      gradients_(batch_.program->program.inputs.size()),
      connected_(batch_.program->program.inputs.size()) {
  const size_t lanes_in_all = static_cast<size_t>(groups() * lanes());
  const size_t instances = static_cast<size_t>(batch_.instances);
  for (const BlockSums::Wanted& wanted : BlockSums::WantedOf(*batch_.program)) {
    given_.push_back(GivenTo(plan_, wanted));
  }
  WorkMeter meter(options_.stop);
  sorted_ids_ = batch_.instance_ids;
  SortInPieces(meter, sorted_ids_.begin(), sorted_ids_.end(), std::less<>());
  ranks_.resize(lanes_in_all);
  used_.resize(lanes_in_all);
  for (size_t i = 0; i < instances; ++i) {
    meter.Add(kSearchWork);
    const auto at =
        std::lower_bound(sorted_ids_.begin(), sorted_ids_.end(), batch_.instance_ids[i]);
    ranks_[i] = static_cast<uint32_t>(at - sorted_ids_.begin());
    used_[i] = ~uint32_t{0};
  }
  const Program& program = batch_.program->program;
  reads_ = ReadInputs(*batch_.program);
  for (size_t i = 0; looks_ && i < program.inputs.size(); ++i) {
    const Binding& binding = batch_.inputs[i];
    const Input& input = program.inputs[i];
    const bool is_real = program[input.value].type.element == ElementType::kReal;
    if (!reads_[i] || !is_real || !binding.per_step || !IsBound(batch_, i)) continue;
    bool is_bad = false;
    for (int64_t k = 0; k < binding.tensor.count() && !is_bad; ++k) {
      meter.Add(kConversionWork);
      is_bad = !precision::IsFinite(binding.tensor.Get(k));
    }
    if (is_bad) bad_step_inputs_.push_back(i);
  }
  // Machine code looks at the clock itself; the numbers that its steps are sent bound a call.
  int64_t sent = 0;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (forms_[i].per_step) sent += ElementCount(program[program.inputs[i].value].type.shape);
  }
  if (sent > 0) steps_at_once_ = std::max<int64_t>(1, kSentAtOnce / (sent * lanes()));
}

// A number of an input, read at step t, that is not finite. States are read rounded.
bool CompiledRun::IsBadInput(size_t input, int64_t row, int64_t t, WorkMeter& meter) const {
  const Program& program = batch_.program->program;
  const Input& declared = program.inputs[input];
  const Type& type = program[declared.value].type;
  const Binding& binding = batch_.inputs[input];
  const int64_t count = ElementCount(type.shape);
  int64_t at = binding.per_instance ? row : 0;
  if (binding.per_step) at = at * batch_.steps + t;
  for (int64_t e = 0; e < count; ++e) {
    meter.Add(kConversionWork);
    double x = IsBound(batch_, input) ? binding.tensor.Get(at * count + e)
                                      : declared.default_value.value_or(0.0);
    if (declared.kind == InputKind::kState) {
      x = precision::RoundTo(*program[declared.value].format, x,
                             batch_.program->policy[Role::kState].overflow);
    }
    if (!precision::IsFinite(x)) return true;
  }
  return false;
}

// Checks the inputs that step 0 reads; a run of no steps reads no input of a step.
void CompiledRun::CheckSentInputs(int64_t group, WorkMeter& meter) {
  const Program& program = batch_.program->program;
  const std::span<int64_t> health = groups_.health(group);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    const bool own = input.kind == InputKind::kConfig || input.kind == InputKind::kStep;
    const bool is_real = program[input.value].type.element == ElementType::kReal;
    if (own || !reads_[i] || !is_real || (batch_.inputs[i].per_step && batch_.steps == 0)) continue;
    const bool is_shared = !batch_.inputs[i].per_instance;
    const bool is_bad = is_shared && IsBadInput(i, 0, 0, meter);
    for (int64_t lane = 0; lane < lanes(); ++lane) {
      const int64_t row = group * lanes() + lane;
      if (row >= batch_.instances) break;
      if (is_shared ? is_bad : IsBadInput(i, row, 0, meter)) {
        health[static_cast<size_t>(lane)] = 0;
      }
    }
  }
}

// [step][lane] flags of steps behind 0, or null where all is finite.
const uint32_t* CompiledRun::BadInputs(Worker& worker, int64_t group, int64_t first,
                                       int64_t count) const {
  if (bad_step_inputs_.empty()) return nullptr;
  worker.bad_inputs.assign(static_cast<size_t>(count * lanes()), 0);
  for (int64_t column = first == 0 ? 1 : 0; column < count; ++column) {
    if (first + column >= batch_.steps) break;
    for (int64_t lane = 0; lane < lanes(); ++lane) {
      const int64_t row = std::min(group * lanes() + lane, batch_.instances - 1);
      for (size_t input : bad_step_inputs_) {
        if (!IsBadInput(input, row, first + column, worker.meter)) continue;
        worker.bad_inputs[static_cast<size_t>(column * lanes() + lane)] = 1;
      }
    }
  }
  return worker.bad_inputs.data();
}

int64_t CompiledRun::groups() const { return (batch_.instances + lanes() - 1) / lanes(); }

std::unique_ptr<CompiledRun::Worker> CompiledRun::NewWorker() const {
  auto worker = std::make_unique<Worker>(batch_, lanes(), options_.stop);
  int64_t workspace = kernel_->workspace;
  if (adjoint_ != nullptr) workspace = std::max(workspace, adjoint_->workspace);
  worker->workspace.resize(static_cast<size_t>(workspace));
  return worker;
}

absl::Status CompiledRun::TakeCode(Part part) {
  absl::StatusOr<std::shared_ptr<const Kernel>> kernel = code_.kernel(part);
  if (!kernel.ok()) return kernel.status();
  (part == Part::kForward ? kernel_ : adjoint_) = *std::move(kernel);
  const size_t workspace =
      static_cast<size_t>((part == Part::kForward ? kernel_ : adjoint_)->workspace);
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (!worker || worker->workspace.size() >= workspace) continue;
    worker->workspace = {};  // nothing of it is read again, and both at once would be too much
    worker->workspace.resize(workspace);
  }
  return absl::OkStatus();
}

absl::Status CompiledRun::ForGroups(const std::function<void(Worker&, int64_t)>& work) {
  return UntilStopped([&] {
    pool_.ParallelFor(groups(), [&](int worker, int64_t group) {
      std::unique_ptr<Worker>& own = workers_[static_cast<size_t>(worker)];
      if (!own) own = NewWorker();
      work(*own, group);
    });
  });
}

MarginColumn* CompiledRun::EventMarginsOf(Worker& worker, int64_t t) const {
  if (!CountsEventMargins() || !IsSampled(t)) return nullptr;
  return worker.event_margins.data() + SampleOf(worker, t) * plan_.events.size();
}

GroupArgs CompiledRun::ArgsOf(Worker& worker, int64_t group, int64_t first, int64_t count,
                              int64_t column) {
  worker.inputs.Load(group * lanes(), first, std::max<int64_t>(count, 1), worker.meter);
  const size_t lane = static_cast<size_t>(group * lanes());
  const size_t terminations_from = static_cast<size_t>(column) * plan_.terminations.size();
  const size_t events_from = static_cast<size_t>(column) * plan_.events.size();
  return {.numbers = plan_.numbers.data(),
          .integers = plan_.integers.data(),
          .inputs = worker.inputs.pointers(),
          .workspace = worker.workspace.data(),
          .lanes_used = used_.data() + lane,
          .first_step = first,
          .count = count,
          .health = groups_.health(group).data(),
          .near_band_ulps = options_.near_band_ulps,
          .ranks = ranks_.data() + lane,
          .signatures = groups_.signatures(group).data(),
          .terminations = worker.terminations.data() + terminations_from,
          .events = worker.events.data() + events_from,
          .ranges = &worker.ranges,
          .additions = count == 1 && IsSampled(first) ? worker.additions.data() : nullptr,
          .event_margins = count == 1 ? EventMarginsOf(worker, first) : nullptr,
          .last_events = groups_.last_events(group),
          .first_events = groups_.first_events(group),
          .note_margins = NoteMargins,
          .note_tested = NoteTested,
          .termination_watches = worker.termination_watches.data() + terminations_from,
          .event_watches = worker.event_watches.data() + events_from,
          .tape_bytes = worker.tape_bytes.data() + column};
}

namespace {

// The sink of level `instances`; machine code hands it back to the functions below.
struct InstanceArgs : PolledArgs {
  std::vector<InstanceSite>* sites = nullptr;
  int64_t first_instance = 0;
  int64_t instances = 0;
  int64_t column = 0;  // of the chunk, at the first step of the call
  size_t Cell(int64_t step, int64_t lane) const {
    return static_cast<size_t>((column + step) * instances + first_instance + lane);
  }
};

void TellTested(GroupArgs* args, int64_t step, int64_t site, int64_t lane, double value) {
  const InstanceArgs& own = *static_cast<InstanceArgs*>(args);
  InstanceSite& to = (*own.sites)[static_cast<size_t>(site)];
  ++to.value_counts[own.Cell(step, lane)];
  to.values[static_cast<size_t>(own.first_instance + lane)].push_back(precision::Canonical(value));
}

void TellRun(GroupArgs* args, int64_t step, int64_t site, int64_t lane, int32_t iterations,
             int32_t reason) {
  const InstanceArgs& own = *static_cast<InstanceArgs*>(args);
  InstanceSite& to = (*own.sites)[static_cast<size_t>(site)];
  to.iterations[own.Cell(step, lane)] += static_cast<uint32_t>(iterations);
  to.reasons[own.Cell(step, lane)] = static_cast<uint8_t>(reason);
}

int64_t Poll(GroupArgs* args) {
  PolledArgs& own = *static_cast<PolledArgs*>(args);
  own.stopped = *own.stop && (*own.stop)();
  return own.stopped ? 0 : WorkMeter::kPiece;
}

}  // namespace

void CompiledRun::Invoke(GroupFunction function, Worker& worker, PolledArgs& args) {
  args.fuel = worker.fuel;
  args.poll = Poll;
  args.stop = &worker.stop;
  function(&args);
  if (args.stopped) throw StopRequested();
  worker.fuel = args.fuel;
}

CompiledRun::Kept* CompiledRun::KeptOf(const plan::Function& function, Worker& worker) const {
  if (&function == &plan_.step) return &worker.of_step;
  if (&function == &plan_.replay) return &worker.of_replay;
  if (&function == &plan_.reverse) return &worker.of_reverse;
  return nullptr;
}

void CompiledRun::Invoke(GroupFunction code, const plan::Function& function, Worker& worker,
                         int64_t group, PolledArgs& args) const {
  Kept* const kept = KeptOf(function, worker);
  if (kept == nullptr || function.kept == 0) return Invoke(code, worker, args);
  kept->memory.resize(static_cast<size_t>(function.kept * lanes()));
  args.kept = kept->memory.data();
  args.reuses = kept->group == group ? kept->reuses : 0;
  kept->group = -1;  // where the call is stopped, it holds nothing
  Invoke(code, worker, args);
  kept->group = group;
  kept->reuses = args.reuses;
}

void CompiledRun::Call(GroupFunction code, const plan::Function& function, Worker& worker,
                       int64_t group, int64_t first, int64_t count, int64_t column,
                       ForwardChunk* chunk) {
  InstanceArgs args;
  static_cast<GroupArgs&>(args) = ArgsOf(worker, group, first, count, column);
  args.tell_tested = TellTested;
  args.tell_run = TellRun;
  args.sites = chunk == nullptr ? nullptr : &chunk->instance_sites;
  args.first_instance = group * lanes();
  args.instances = batch_.instances;
  args.column = column;
  worker.fields.clear();
  for (size_t k = 0; k < travelling_; ++k) {
    worker.fields.push_back(groups_.fields(group) + layout_.offset(k));
  }
  args.fields = worker.fields.data();
  args.bad_inputs = BadInputs(worker, group, first, count);
  Invoke(code, function, worker, group, args);
}

void CompiledRun::SetSentStates(int64_t group, std::byte* fields, WorkMeter& meter) const {
  const Program& program = batch_.program->program;
  const precision::Overflow overflow = batch_.program->policy[Role::kState].overflow;
  for (size_t k = 0; k < states_.size(); ++k) {
    const size_t input = static_cast<size_t>(states_[k]);
    const Input& declared = program.inputs[input];
    const Value& value = program[declared.value];
    const Binding& binding = batch_.inputs[input];
    const bool is_sent = !binding.tensor.bytes.empty();
    const plan::Field& field = plan_.fields[k];
    std::byte* const to = fields + layout_.offset(k);
    for (int64_t lane = 0; lane < lanes(); ++lane) {
      const int64_t row = std::min(group * lanes() + lane, batch_.instances - 1);
      for (int64_t e = 0; e < field.count; ++e) {
        meter.Add(kConversionWork);
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
  if (absl::Status taken = TakeCode(Part::kForward); !taken.ok()) return taken;
  absl::Status ended = UntilStopped([this] {
    WorkMeter meter(options_.stop);
    groups_.Clear(meter);
  });
  if (!ended.ok()) return ended;
  ended = ForGroups([&](Worker& worker, int64_t group) {
    if (looks_) CheckSentInputs(group, worker.meter);
    SetSentStates(group, groups_.fields(group), worker.meter);
    if (batch_.program->program.HasInitial())
      Call(kernel_->start, plan_.start, worker, group, 0, 1, 0);
  });
  if (ended.ok()) is_published_ = false;  // else some groups have nothing yet
  return ended;
}

void CompiledRun::Publish() const {
  if (is_published_ || !records_) return;
  is_published_ = true;
  signatures_.clear();
  health_.clear();
  for (int64_t i = 0; i < batch_.instances; ++i) {
    const int64_t group = i / lanes();
    const size_t lane = static_cast<size_t>(i % lanes());
    signatures_.push_back(groups_.signatures(group)[lane]);
    const int64_t code = reversed_.empty() ? groups_.health(group)[lane]
                                           : reversed_[static_cast<size_t>(group)].health[lane];
    InstanceHealth health;
    if (code >= 0) {
      health.ok = false;
      health.phase = (code & 4) != 0   ? Phase::kAdjoint
                     : (code & 2) != 0 ? Phase::kForward
                                       : Phase::kInput;
      health.step = code >> 8;
      health.stopped = (code & 1) != 0;
    }
    health_.push_back(health);
  }
}

std::shared_ptr<const void> CompiledRun::SaveState() const {
  auto saved = std::make_shared<LaneMemory>();
  const absl::Status ended = UntilStopped([&] {
    WorkMeter meter(options_.stop);
    *saved = groups_.Save(meter);
  });
  return ended.ok() ? saved : nullptr;
}

void CompiledRun::RestoreState(const std::shared_ptr<const void>& saved) {
  is_published_ = false;
  // A run that was stopped gives unspecified values, or CANCELLED.
  UntilStopped([&] {
    WorkMeter meter(options_.stop);
    groups_.Restore(*static_cast<const LaneMemory*>(saved.get()), meter);
  }).IgnoreError();
}

int64_t CompiledRun::SavedBytes() const { return SavedBytesOf(plan_, code_.shape, groups()); }

std::optional<MemoryNeed> CompiledRun::NeedOf(const RangeSteps& steps) const {
  return NeedOfRun(batch_, options_, steps, plan_, code_.shape, code_.tape, code_.weights);
}

absl::Status CompiledRun::Finish() {
  const absl::Status ended = ForGroups([this](Worker& worker, int64_t group) {
    if (batch_.program->policy.nonfinite == precision::NonFinite::kStop) {
      // In a run of no steps, marks the instances that `initial` or an input stopped.
      for (int64_t& health : groups_.health(group)) health |= health >= 0;
    }
    if (TerminalOf(*batch_.program) == nullptr) return;
    Call(kernel_->finish, plan_.finish, worker, group, batch_.steps, 1, 0);
  });
  if (ended.ok()) is_published_ = false;  // else some groups have nothing yet
  return ended;
}

Tensor CompiledRun::Collect(const Value& value, size_t field) const {
  Tensor tensor = ZerosFor(value, {batch_.instances});
  // A part of it where it is stopped.
  UntilStopped([&] {
    WorkMeter meter(options_.stop);
    for (int64_t group = 0; group < groups(); ++group) {
      CopyOut(value, field, group, tensor, 1, 0, meter);
    }
  }).IgnoreError();
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
  const size_t field = travelling_ - 1;
  for (int64_t i = 0; i < batch_.instances; ++i) {
    const std::byte* const from = groups_.fields(i / lanes()) + layout_.offset(field);
    values.push_back(
        precision::Canonical(ReadReal(from, plan_.fields[field].carrier, i % lanes())));
  }
  return values;
}

std::vector<std::vector<int64_t>> CompiledRun::FirstEventSteps() const {
  std::vector<std::vector<int64_t>> steps(CountOf(batch_.program->sites, SiteKind::kEvent));
  for (size_t site = 0; site < steps.size(); ++site) {
    for (int64_t i = 0; i < batch_.instances; ++i) {
      const int64_t lane = static_cast<int64_t>(site) * lanes() + i % lanes();
      steps[site].push_back(groups_.first_events(i / lanes())[lane]);
    }
  }
  return steps;
}

}  // namespace simgrad::sim::compiled
