// The forward run: the steps of a chunk, and what they record.
#include <algorithm>
#include <limits>
#include <utility>

#include "precision/format.h"
#include "precision/selection.h"
#include "sim/backend/compiled/group/exact_margins.h"
#include "sim/backend/compiled/run/compiled_run.h"
#include "sim/backend/compiled/run/state_sample.h"
#include "sim/backend/empty_chunk.h"
#include "sim/backend/step_columns.h"

namespace simgrad::sim::compiled {

void CompiledRun::CopyOut(const Value& value, size_t field, int64_t group, Tensor& tensor,
                          int64_t columns, int64_t column, WorkMeter& meter) const {
  const plan::Field& f = plan_.fields[field];
  const std::byte* const from = groups_.fields(group) + layout_.offset(field);
  const int64_t live = std::min<int64_t>(lanes(), batch_.instances - group * lanes());
  const auto each = [&](const auto& copy) {
    for (int64_t lane = 0; lane < live; ++lane) {
      const int64_t row = (group * lanes() + lane) * columns + column;
      InPieces(meter, f.count, kConversionWork, [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) copy(row * f.count + e, e * lanes() + lane);
      });
    }
  };
  const auto as_they_are = [&]<class Real>(Real) {
    const Real* const in = reinterpret_cast<const Real*>(from);
    Real* const out = reinterpret_cast<Real*>(tensor.bytes.data());
    each([&](int64_t to, int64_t i) { out[to] = precision::Canonical(in[i]); });
  };
  if (value.type.element != ElementType::kReal) {
    each([&](int64_t to, int64_t i) { tensor.SetInt(to, ReadInteger(from, f.carrier, i)); });
  } else if (f.carrier == plan::Carrier::kF32 && tensor.dtype == DType::kF32) {
    as_they_are(float{});
  } else if (f.carrier == plan::Carrier::kF64 && tensor.dtype == DType::kF64) {
    as_they_are(double{});
  } else {
    each([&](int64_t to, int64_t i) {
      tensor.Set(to, precision::Canonical(ReadReal(from, f.carrier, i)));
    });
  }
}

// The recorded states and exports after a step.
void CompiledRun::Record(ForwardChunk& chunk, int64_t group, int64_t columns, int64_t column,
                         WorkMeter& meter) const {
  const Program& program = batch_.program->program;
  for (size_t k = 0; k < options_.record_states.size(); ++k) {
    const int32_t input = options_.record_states[k];
    const auto field = std::find(states_.begin(), states_.end(), input) - states_.begin();
    CopyOut(program[program.inputs[static_cast<size_t>(input)].value], static_cast<size_t>(field),
            group, chunk.states[k], columns, column, meter);
  }
  for (size_t k = 0; k < options_.record_exports.size(); ++k) {
    const size_t item = static_cast<size_t>(options_.record_exports[k]);
    CopyOut(program[program.exports[item].value], states_.size() + item, group, chunk.exports[k],
            columns, column, meter);
  }
}

bool CompiledRun::IsSampled(int64_t t) const {
  return (options_.stride > 0 && (t + 1) % options_.stride == 0) || t + 1 == batch_.steps;
}

void CompiledRun::ClearColumns(Worker& worker, const ForwardChunk& chunk) const {
  TerminationColumn termination{};
  constexpr ExtremeMargin kNone = {~uint64_t{0}, ~uint64_t{0}};
  termination.tested_min = 0xFFF0000000000000u;  // the ordered keys of +inf and -inf
  termination.tested_max = 0x000FFFFFFFFFFFFFu;
  termination.absolute = termination.ulps = kNone;
  termination.iterations_min = ~uint32_t{0};
  EventColumn event{};
  event.absolute = event.ulps = kNone;
  const size_t steps = static_cast<size_t>(chunk.diagnostics.steps);
  worker.terminations.assign(steps * plan_.terminations.size(), termination);
  worker.events.assign(steps * plan_.events.size(), event);
  const MarginWatch watch = NewWatch();
  worker.termination_watches.assign(worker.terminations.size(), watch);
  worker.event_watches.assign(worker.events.size(), watch);
  worker.ranges = {};
  worker.additions.assign(plan_.additions.size(), {});
  worker.sampled = {};
  worker.sampled.states = chunk.diagnostics.states;
  worker.sampled.sampled_steps = chunk.diagnostics.sampled_steps;
  const size_t samples = worker.sampled.sampled_steps.size();
  worker.event_margins.assign(CountsEventMargins() ? samples * plan_.events.size() : 0, {});
}

void CompiledRun::TakeColumns(const Worker& worker, ForwardChunk& chunk) const {
  StepDiagnostics& to = chunk.diagnostics;
  for (size_t t = 0; t < static_cast<size_t>(to.steps); ++t) {
    for (size_t k = 0; k < plan_.terminations.size(); ++k) {
      to.terminations[k][t].Merge(
          TerminationOf(worker.terminations[t * plan_.terminations.size() + k], sorted_ids_));
    }
    for (size_t k = 0; k < plan_.events.size(); ++k) {
      to.events[k][t].Merge(EventOf(worker.events[t * plan_.events.size() + k], sorted_ids_));
    }
  }
  for (size_t k = 0; k < to.states.size(); ++k) {
    for (size_t s = 0; s < to.states[k].size(); ++s)
      to.states[k][s].Merge(worker.sampled.states[k][s]);
  }
  MergeEventMargins(worker.event_margins, 0, to.event_margins);
  to.ranges.Merge(CountsOf(worker.ranges));
  MergeAdditions(worker.additions, to.additions);
}

size_t CompiledRun::SampleOf(const Worker& worker, int64_t t) {
  const std::vector<int64_t>& sampled = worker.sampled.sampled_steps;
  return static_cast<size_t>(std::find(sampled.begin(), sampled.end(), t) - sampled.begin());
}

// The ranges of the real states after step t.
void CompiledRun::Sample(Worker& worker, int64_t group, int64_t t) const {
  const size_t at = SampleOf(worker, t);
  const Program& program = batch_.program->program;
  const int64_t live = std::min<int64_t>(lanes(), batch_.instances - group * lanes());
  size_t real = 0;
  for (size_t k = 0; k < states_.size(); ++k) {
    const Value& value = program[program.inputs[static_cast<size_t>(states_[k])].value];
    if (value.type.element != ElementType::kReal) continue;
    StateRange& range = worker.sampled.states[real++][at];
    const double smallest_normal =
        precision::DoublePowerOfTwo(precision::Traits(*value.format).min_exponent);
    const plan::Field& field = plan_.fields[k];
    const std::byte* const from = groups_.fields(group) + layout_.offset(k);
    // Lanes without an instance are between the others.
    const int64_t rows = live == lanes() ? 1 : field.count;
    const int64_t each = live == lanes() ? field.count * lanes() : live;
    for (int64_t row = 0; row < rows; ++row) {
      const std::byte* const values = from + row * lanes() * BytesOf(field.carrier);
      InPieces(worker.meter, each, 1, [&](int64_t begin, int64_t end) {
        NoteStates(values + begin * BytesOf(field.carrier), field.carrier, end - begin,
                   smallest_normal, range);
      });
    }
  }
}

void CompiledRun::Steps(Worker& worker, int64_t group, int64_t first, int64_t count,
                        ForwardChunk& chunk) {
  const bool writes = !options_.record_states.empty() || !options_.record_exports.empty();
  const bool samples = records_ && options_.recording != Recording::kCounts;
  const bool counts = CountsEventMargins() || (records_ && !plan_.additions.empty());
  const int64_t at_once = writes ? 1 : steps_at_once_;
  const RunTimer timer(*kernel_);
  worker.of_step.group = -1;  // instances that stopped may run again
  for (int64_t done = 0; done < count;) {
    int64_t now = std::min(at_once, count - done);
    if (samples || counts) {
      for (int64_t k = 0; k < now; ++k) {
        // Its additions and margins of events are counted, and no other step's.
        if (IsSampled(first + done + k)) now = counts && k > 0 ? k : k + 1;
      }
    }
    Call(kernel_->step, plan_.step, worker, group, first + done, now, done, &chunk);
    done += now;
    if (samples && IsSampled(first + done - 1)) Sample(worker, group, first + done - 1);
    if (writes) Record(chunk, group, count, done - 1, worker.meter);
  }
}

absl::StatusOr<ForwardChunk> CompiledRun::Forward(int64_t first, int64_t count) {
  if (absl::Status taken = TakeCode(Part::kForward); !taken.ok()) return taken;
  constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  const bool extremes = options_.recording != Recording::kCounts;
  ForwardChunk chunk =
      EmptyChunk(batch_, options_, extremes ? options_.stride : kNever, first, count);
  for (std::unique_ptr<Worker>& worker : workers_) {
    if (!worker) worker = NewWorker();
    worker->tape_bytes.assign(static_cast<size_t>(count), 0);
    if (records_) ClearColumns(*worker, chunk);
  }
  const absl::Status ended =
      ForGroups([&](Worker& worker, int64_t group) { Steps(worker, group, first, count, chunk); });
  if (!ended.ok()) return ended;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (records_) TakeColumns(*worker, chunk);
    for (int64_t t = 0; t < count; ++t) {
      int64_t& bytes = tape_bytes_[static_cast<size_t>(first + t)];
      bytes = std::max(bytes, worker->tape_bytes[static_cast<size_t>(t)]);
    }
  }
  is_published_ = false;
  return chunk;
}

}  // namespace simgrad::sim::compiled
