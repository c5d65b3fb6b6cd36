// The adjoint of a run: replays of ranges of steps, reversed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/backend/compiled/group/cotangent_record.h"
#include "sim/backend/compiled/run/compiled_run.h"
#include "sim/backend/step_columns.h"
#include "sim/plan/tape_bound.h"

namespace simgrad::sim::compiled {
namespace {

using plan::Carrier;
using plan::SentKind;

// The tape of a worker, known to machine code by its GroupArgs alone.
struct TapedArgs : PolledArgs {
  LaneMemory* owner = nullptr;
};

void GrowTape(GroupArgs* args, int64_t bytes) {
  LaneMemory& tape = *static_cast<TapedArgs*>(args)->owner;
  tape.resize(static_cast<size_t>(std::max<int64_t>(bytes, 2 * args->tape_capacity)));
  args->tape = tape.data();
  args->tape_capacity = static_cast<int64_t>(tape.size());
}

Carrier CarrierOfRole(const NumericalProgram& program, Role role) {
  return program.policy[role].format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
}

}  // namespace

void CompiledRun::MakeReversed(int64_t group) {
  const Program& program = batch_.program->program;
  Reversed& to = reversed_[static_cast<size_t>(group)];
  const std::span<const int64_t> health = groups_.health(group);
  to.health.assign(health.begin(), health.end());
  to.fields.assign(static_cast<size_t>(layout_.bytes() - groups_.field_bytes()), std::byte{0});
  to.gradients.resize(program.inputs.size());
  to.connected.resize(program.inputs.size());
  const int64_t bytes = BytesOf(CarrierOfRole(*batch_.program, Role::kGradient));
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (!batch_.program->adjoint_spec->wanted[i]) continue;
    to.connected[i].assign(static_cast<size_t>(lanes()), 0);
    if (program.inputs[i].weights) continue;
    const int64_t count = ElementCount(program[program.inputs[i].value].type.shape);
    // A run of no steps adds to no step.
    const int64_t steps = forms_[i].sums_per_step ? std::max<int64_t>(batch_.steps, 1) : 1;
    to.gradients[i].assign(static_cast<size_t>(steps * count * lanes() * bytes), std::byte{0});
  }
}

int64_t CompiledRun::GivenBytes() const {
  if (!batch_.program->adjoint) return 0;
  int64_t numbers = 0;
  for (const GivenNumbers& given : given_) numbers += given.count;
  return numbers * lanes() * BytesOf(CarrierOfRole(*batch_.program, Role::kGradient));
}

void CompiledRun::StartGiven(Worker& worker, int64_t first, int64_t steps) const {
  if (!sums_) return;
  const int64_t bytes = BytesOf(CarrierOfRole(*batch_.program, Role::kGradient));
  worker.given_first = first;
  worker.given.resize(given_.size());
  for (size_t k = 0; k < worker.given.size(); ++k) {
    const int64_t count = steps * given_[k].count * lanes();
    worker.meter.Add(count / 8);
    worker.given[k].assign(static_cast<size_t>(count * bytes), std::byte{0});
  }
}

void CompiledRun::TakeGiven(Worker& worker, int64_t group, int64_t entry) {
  if (!sums_) return;
  const auto take = [&]<class T>(T) {
    for (size_t k = 0; k < worker.given.size(); ++k) {
      const plan::OuterProduct* const product = given_[k].product;
      const int64_t each = given_[k].count * lanes();
      const T* const numbers = reinterpret_cast<const T*>(worker.given[k].data());
      const int64_t count =
          each == 0 ? 0 : static_cast<int64_t>(worker.given[k].size() / sizeof(T)) / each;
      for (int64_t step = 0; step < count; ++step) {
        const T* const of_step = numbers + step * each;
        if (product != nullptr) {
          sums_->GiveProduct(group, k, entry + step, of_step, product->rows, lanes(), worker.meter);
        } else {
          sums_->Give(group, k, entry + step, of_step, lanes(), 1, worker.meter);
        }
      }
    }
  };
  if (CarrierOfRole(*batch_.program, Role::kGradient) == Carrier::kF64) {
    take(double{});
  } else {
    take(float{});
  }
}

// The caller's cotangents of steps [first, first + count), scaled and rounded to role adjoint.
void CompiledRun::LoadSent(Worker& worker, int64_t group, int64_t first, int64_t count) const {
  const Program& program = batch_.program->program;
  const Format format = batch_.program->policy[Role::kAdjoint].format;
  const Carrier carrier = CarrierOfRole(*batch_.program, Role::kAdjoint);
  worker.sent.resize(plan_.sent.size());
  for (size_t k = 0; k < plan_.sent.size(); ++k) {
    const plan::Sent& sent = plan_.sent[k];
    const size_t index = static_cast<size_t>(sent.index);
    const bool is_export = sent.kind == SentKind::kTrajectoryExport;
    const bool is_final = sent.kind == SentKind::kFinalState;
    const ValueId id = is_export ? program.exports[index].value
                                 : program.inputs[static_cast<size_t>(states_[index])].value;
    const int64_t elements = ElementCount(program[id].type.shape);
    const std::vector<double>& from = is_export  ? batch_.cotangents.trajectory_export[index]
                                      : is_final ? batch_.cotangents.final_state[index]
                                                 : batch_.cotangents.trajectory_state[index];
    const int64_t entries = is_export ? batch_.steps : is_final ? 1 : batch_.steps + 1;
    const int64_t columns = is_final ? 1 : count;
    LaneMemory& to = worker.sent[k];
    to.assign(static_cast<size_t>(columns * elements * lanes() * BytesOf(carrier)), std::byte{0});
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t entry = is_final ? 0 : first + column;
      if (entry >= entries) continue;
      for (int64_t lane = 0; lane < lanes(); ++lane) {
        const int64_t row = std::min(group * lanes() + lane, batch_.instances - 1);
        for (int64_t e = 0; e < elements; ++e) {
          worker.meter.Add(kConversionWork);
          const double x = from[static_cast<size_t>((row * entries + entry) * elements + e)];
          WriteReal(to.data(), carrier, (column * elements + e) * lanes() + lane,
                    precision::RoundTo(format, x * seed_));
        }
      }
    }
  }
}

void CompiledRun::CallAdjoint(GroupFunction code, const plan::Function& function, Worker& worker,
                              int64_t group, std::byte* states, int64_t first, int64_t count,
                              int64_t column) {
  Reversed& reversed = reversed_[static_cast<size_t>(group)];
  LoadSent(worker, group, first, count);
  TapedArgs args;
  static_cast<GroupArgs&>(args) = ArgsOf(worker, group, first, count, 0);
  args.owner = &worker.tape;
  worker.fields.clear();
  for (size_t k = 0; k < plan_.fields.size(); ++k) {
    worker.fields.push_back(k < travelling_ ? states + layout_.offset(k)
                                            : reversed.fields.data() + layout_.offset(k) -
                                                  groups_.field_bytes());
  }
  worker.sent_lists.clear();
  for (const LaneMemory& values : worker.sent) {
    worker.sent_lists.push_back(values.data());
  }
  worker.gradients.clear();
  worker.connected.clear();
  size_t which = 0;  // of what BlockSums wants
  for (size_t i = 0; i < forms_.size(); ++i) {
    std::byte* sum = reversed.gradients[i].data();
    const bool begun = which < worker.given.size() && first >= worker.given_first;
    if (sums_ && begun && sums_->wanted()[which].input == static_cast<int32_t>(i)) {
      const int64_t step =
          given_[which].count * lanes() * BytesOf(CarrierOfRole(*batch_.program, Role::kGradient));
      sum = worker.given[which++].data() + (first - worker.given_first) * step;
    }
    if (forms_[i].sums_per_step && !reversed.gradients[i].empty()) {
      const int64_t steps = std::max<int64_t>(batch_.steps, 1);
      const int64_t each = static_cast<int64_t>(reversed.gradients[i].size()) / steps;
      sum += std::min(first, steps - 1) * each;
    }
    worker.gradients.push_back(sum);
    worker.connected.push_back(reversed.connected[i].data());
  }
  args.fields = worker.fields.data();
  args.health = reversed.health.data();
  args.seed = seed_;
  args.sent = worker.sent_lists.data();
  args.gradients = worker.gradients.data();
  args.connected = worker.connected.data();
  args.backward = worker.backward.data() + column;
  args.take_cotangents = TakeCotangents;
  args.frames = worker.frames.data() + column;
  args.tape = worker.tape.data();
  args.tape_capacity = static_cast<int64_t>(worker.tape.size());
  args.grow = GrowTape;
  Invoke(code, function, worker, group, args);
}

absl::Status CompiledRun::StartAdjoint(double seed_scale, const InstanceWeights& over) {
  const NumericalProgram& program = *batch_.program;
  if (!program.adjoint) return absl::FailedPreconditionError("the program has no adjoint");
  seed_ = precision::RoundTo(program.policy[Role::kObjective].format, seed_scale);
  if (absl::Status taken = TakeCode(Part::kAdjoint); !taken.ok()) return taken;
  Publish();  // while that of the forward run is what counts
  reversed_.clear();
  reversed_.resize(static_cast<size_t>(groups()));
  started_ = {};
  sums_.reset();
  if (!BlockSums::WantedOf(program).empty()) {
    const absl::Status made = UntilStopped([&] {
      WorkMeter meter(options_.stop);
      sums_.emplace(program, over, lanes(), seed_scale, meter);
    });
    if (!made.ok()) return made;
    sums_->Open(1);
  }
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (!worker) continue;
    worker->ranges = {};
    worker->of_replay.group = worker->of_reverse.group = -1;
  }
  const absl::Status ended = ForGroups([this](Worker& worker, int64_t group) {
    MakeReversed(group);
    TakeFields(worker, group);
    worker.backward.resize(1);
    worker.frames.resize(1);
    StartGiven(worker, batch_.steps, 1);
    CallAdjoint(adjoint_->reverse_terminal, plan_.reverse_terminal, worker, group,
                worker.replayed.data(), batch_.steps, 1, 0);
    TakeGiven(worker, group, 0);
    if (sums_) sums_->Ended(group, worker.meter);
  });
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker) started_.Merge(CountsOf(worker->ranges));
  }
  if (ended.ok()) is_published_ = false;
  return ended;
}

// A reversal moves a copy of the fields: the group keeps the state that it is in.
void CompiledRun::TakeFields(Worker& worker, int64_t group) const {
  const std::byte* const fields = groups_.fields(group);
  worker.replayed.assign(fields, fields + groups_.field_bytes());
}

// The first step of each segment: its tapes fit a near cache, so that the reversed steps find them
// there. The last segment is as long as it can be, as it alone runs once.
std::vector<int64_t> CompiledRun::SegmentsOf(int64_t first, int64_t count) const {
  std::vector<int64_t> starts;
  const int64_t given = GivenBytes();
  int64_t bytes = 0;
  for (int64_t t = first + count; t-- > first;) {
    const int64_t own = tape_bytes_[static_cast<size_t>(t)] + given;
    if (bytes > 0 && bytes + own > kSegmentBytes) {
      starts.push_back(t + 1);
      bytes = 0;
    }
    bytes += own;
  }
  starts.push_back(first);
  std::reverse(starts.begin(), starts.end());
  return starts;
}

// Runs the segments once to have the states at their starts, then each with a tape, backwards.
void CompiledRun::ReverseRange(Worker& worker, int64_t group, int64_t first, int64_t count,
                               const std::vector<int64_t>& starts) {
  TakeFields(worker, group);
  const size_t bytes = worker.replayed.size();
  const size_t states = (starts.size() - 1) * bytes;
  if (worker.starts.size() < states) {
    worker.starts = {};  // growing would hold the old ones beside the new ones
    worker.starts.resize(states);
  }
  const auto end_of = [&](size_t k) {
    return k + 1 < starts.size() ? starts[k + 1] : first + count;
  };
  const auto replay = [&](size_t k) {
    CallAdjoint(adjoint_->replay, plan_.replay, worker, group, worker.replayed.data(), starts[k],
                end_of(k) - starts[k], starts[k] - first);
  };
  for (size_t k = 0; k + 1 < starts.size(); ++k) {
    std::memcpy(worker.starts.data() + k * bytes, worker.replayed.data(), bytes);
    replay(k);
  }
  for (size_t k = starts.size(); k-- > 0;) {
    if (k + 1 < starts.size()) {
      std::memcpy(worker.replayed.data(), worker.starts.data() + k * bytes, bytes);
    }
    replay(k);
    StartGiven(worker, starts[k], end_of(k) - starts[k]);
    ReverseSegment(worker, group, starts[k], end_of(k) - starts[k], starts[k] - first);
    TakeGiven(worker, group, starts[k] - first);
  }
  if (sums_) sums_->Ended(group, worker.meter);
}

void CompiledRun::ReverseSegment(Worker& worker, int64_t group, int64_t first, int64_t count,
                                 int64_t column) {
  Reversed& reversed = reversed_[static_cast<size_t>(group)];
  const bool wants = code_.when_near_zero == NearZeroUse::kAlways || reversed.near_zero;
  if (wants && worker.near_zero == nullptr) worker.near_zero = code_.near_zero();
  const Kernel* const code =
      wants && worker.near_zero != nullptr ? worker.near_zero.get() : adjoint_.get();
  if (worker.workspace.size() < static_cast<size_t>(code->workspace)) {
    worker.workspace.resize(static_cast<size_t>(code->workspace));
  }
  const RunTimer timer(*code);
  const NearZeroWatch watch;
  std::byte* const states = worker.replayed.data();
  int64_t left = count;
  if (code->reverse_last != nullptr && first + count == batch_.steps) {
    --left;
    CallAdjoint(code->reverse_last, plan_.reverse_last, worker, group, states, first + left, 1,
                column + left);
  }
  if (left > 0)
    CallAdjoint(code->reverse, plan_.reverse, worker, group, states, first, left, column);
  const NearZeroUse use = code_.when_near_zero;
  if (use != NearZeroUse::kWhenMet && use != NearZeroUse::kWhenRead) return;
  reversed.near_zero = code == adjoint_.get() ? watch.Met(use) : HoldsTinyCotangents(group);
}

// Not zero, and so small that a product with a usual number may be subnormal.
bool CompiledRun::HoldsTinyCotangents(int64_t group) const {
  const Reversed& reversed = reversed_[static_cast<size_t>(group)];
  for (size_t k = travelling_; k < plan_.fields.size(); ++k) {
    const plan::Field& field = plan_.fields[k];
    const bool is_f32 = field.carrier == Carrier::kF32;
    if (!is_f32 && field.carrier != Carrier::kF64) continue;
    const double tiny = is_f32 ? 0x1p-100 : 0x1p-970;
    const std::byte* const from =
        reversed.fields.data() + layout_.offset(k) - groups_.field_bytes();
    for (int64_t i = 0; i < field.count * lanes(); ++i) {
      const double x = std::abs(ReadReal(from, field.carrier, i));
      if (x > 0.0 && x < tiny) return true;
    }
  }
  return false;
}

absl::StatusOr<AdjointChunk> CompiledRun::Adjoint(int64_t first, int64_t count) {
  if (absl::Status taken = TakeCode(Part::kAdjoint); !taken.ok()) return taken;
  for (std::unique_ptr<Worker>& worker : workers_) {
    if (!worker) worker = NewWorker();
    worker->backward.assign(static_cast<size_t>(count), BackwardColumn{});
    worker->frames.assign(static_cast<size_t>(count), 0);
    worker->ranges = {};
    worker->near_zero = nullptr;
  }
  const std::vector<int64_t> starts = SegmentsOf(first, count);
  // At its size at once: growing would hold the old one beside the new one.
  const size_t tape = static_cast<size_t>(LargestSegment(first, count, starts));
  for (std::unique_ptr<Worker>& worker : workers_) {
    if (worker->tape.size() >= tape) continue;
    worker->tape = {};
    worker->tape.resize(tape);
  }
  if (sums_) sums_->Open(count);
  const absl::Status ended = ForGroups(
      [&](Worker& worker, int64_t group) { ReverseRange(worker, group, first, count, starts); });
  if (!ended.ok()) return ended;
  AdjointChunk chunk;
  chunk.steps.resize(static_cast<size_t>(count));
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (!records_) break;
    for (size_t t = 0; t < chunk.steps.size(); ++t) {
      chunk.steps[t].Merge(BackwardOf(worker->backward[t]));
    }
    chunk.ranges.Merge(CountsOf(worker->ranges));
  }
  if (records_) chunk.ranges.Merge(std::exchange(started_, {}));
  is_published_ = false;
  return chunk;
}

absl::Status CompiledRun::FinishAdjoint() {
  if (sums_) sums_->Open(1);
  const absl::Status ended = ForGroups([this](Worker& worker, int64_t group) {
    TakeFields(worker, group);
    worker.backward.resize(std::max<size_t>(worker.backward.size(), 1));
    worker.frames.resize(std::max<size_t>(worker.frames.size(), 1));
    SetSentStates(group, worker.replayed.data(), worker.meter);
    StartGiven(worker, 0, 1);
    CallAdjoint(adjoint_->reverse_initial, plan_.reverse_initial, worker, group,
                worker.replayed.data(), 0, 1, 0);
    TakeGiven(worker, group, 0);
    if (sums_) sums_->Ended(group, worker.meter);
  });
  if (!ended.ok()) return ended;
  is_published_ = false;
  return UntilStopped([this] { PublishGradients(); });
}

// [instances][steps where the input has them][shape].
void CompiledRun::PublishGradients() {
  WorkMeter meter(options_.stop);
  const Program& program = batch_.program->program;
  const Carrier carrier = CarrierOfRole(*batch_.program, Role::kGradient);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const int64_t count = ElementCount(program[program.inputs[i].value].type.shape);
    const bool sums = program.inputs[i].weights;
    const int64_t steps = forms_[i].sums_per_step && !sums ? batch_.steps : 1;
    gradients_[i].clear();
    connected_[i].assign(static_cast<size_t>(batch_.instances), 0);
    if (!batch_.program->adjoint_spec->wanted[i]) continue;
    if (!sums) gradients_[i].reserve(static_cast<size_t>(batch_.instances * steps * count));
    for (int64_t row = 0; row < batch_.instances; ++row) {
      const Reversed& from = reversed_[static_cast<size_t>(row / lanes())];
      const int64_t lane = row % lanes();
      for (int64_t k = 0; k < (sums ? 0 : steps * count); ++k) {
        meter.Add(kConversionWork);
        gradients_[i].push_back(
            precision::Canonical(ReadReal(from.gradients[i].data(), carrier, k * lanes() + lane)));
      }
      // A run of no steps has no entry that could receive anything.
      const bool has_entries = steps * count > 0;
      connected_[i][static_cast<size_t>(row)] =
          has_entries && from.connected[i][static_cast<size_t>(lane)] != 0 ? 1 : 0;
    }
  }
}

// The tapes of the segment that needs most.
int64_t CompiledRun::LargestSegment(int64_t first, int64_t count,
                                    const std::vector<int64_t>& starts) const {
  int64_t largest = 0;
  for (size_t k = 0; k < starts.size(); ++k) {
    const int64_t end = k + 1 < starts.size() ? starts[k + 1] : first + count;
    int64_t bytes = 0;
    for (int64_t t = starts[k]; t < end; ++t) bytes += tape_bytes_[static_cast<size_t>(t)];
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::shared_ptr<const ForwardCounts> CompiledRun::Counts() const {
  if (!batch_.program->adjoint) return nullptr;
  auto counts = std::make_shared<CompiledCounts>();
  counts->program = batch_.program;
  counts->shape = code_.shape;
  counts->travelling_bytes = groups_.field_bytes();
  counts->tape_bytes = tape_bytes_;
  return counts;
}

absl::StatusOr<bool> CompiledRun::TakeCounts(const CompiledCounts& counts) {
  const bool same_layout =
      counts.shape.lanes() == lanes() && counts.travelling_bytes == groups_.field_bytes();
  if (!same_layout) return false;
  tape_bytes_ = counts.tape_bytes;
  if (counts.program->fingerprint != batch_.program->fingerprint) {
    const std::optional<double> bound = plan::TapeBound(*counts.program, *batch_.program);
    if (!bound) return false;
    for (int64_t& bytes : tape_bytes_) {
      bytes = static_cast<int64_t>(std::ceil(*bound * static_cast<double>(bytes)));
    }
  }
  // A run that starts takes it there.
  if (absl::Status taken = TakeCode(Part::kForward); !taken.ok()) return taken;
  return true;
}

int64_t CompiledRun::AdjointBytes(int64_t first, int64_t count) const {
  const std::vector<int64_t> starts = SegmentsOf(first, count);
  const int64_t states = static_cast<int64_t>(starts.size()) * groups_.field_bytes();
  int64_t longest = 1;
  for (size_t k = 0; k + 1 < starts.size(); ++k) {
    longest = std::max(longest, starts[k + 1] - starts[k]);
  }
  longest = std::max(longest, first + count - starts.back());
  const int64_t own = LargestSegment(first, count, starts) + states + longest * GivenBytes();
  return own * pool_.threads() + count * code_.weights.waiting;
}

}  // namespace simgrad::sim::compiled
