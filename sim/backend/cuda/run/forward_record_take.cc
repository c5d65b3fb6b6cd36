// The way of what forward launches wrote to the host, and into the chunk.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "precision/selection.h"
#include "sim/backend/cuda/run/forward_record.h"
#include "sim/backend/cuda/run/numbers.h"
#include "sim/backend/step_columns.h"

namespace simgrad::sim::cuda {

void ForwardRecord::TakeColumns(std::span<const uint64_t> sorted_ids, int64_t column,
                                StepDiagnostics& diagnostics) {
  const auto terminations = staging_.Part<TerminationColumn>(termination_part_);
  const auto events = staging_.Part<EventColumn>(event_part_);
  const auto states = staging_.Part<StateColumn>(state_part_);
  for (size_t t = 0; t < static_cast<size_t>(sent_.count); ++t) {
    const size_t at = static_cast<size_t>(column) + t;
    for (size_t s = 0; s < terminations_; ++s) {
      diagnostics.terminations[s][at] =
          TerminationOf(terminations[t * terminations_ + s], sorted_ids);
    }
    for (size_t s = 0; s < events_; ++s) {
      diagnostics.events[s][at] = EventOf(events[t * events_ + s], sorted_ids);
    }
  }
  const auto first_sample = std::lower_bound(diagnostics.sampled_steps.begin(),
                                             diagnostics.sampled_steps.end(), sent_.first_step);
  const size_t sample = static_cast<size_t>(first_sample - diagnostics.sampled_steps.begin());
  for (size_t k = 0; k < static_cast<size_t>(sent_.samples); ++k) {
    for (size_t s = 0; s < real_states_; ++s) {
      diagnostics.states[s][sample + k] = RangeOf(states[k * real_states_ + s]);
    }
  }
  MergeEventMargins(staging_.Part<MarginColumn>(margins_part_), sample, diagnostics.event_margins);
  const RangeColumn& ranges = staging_.Part<RangeColumn>(ranges_part_).front();
  diagnostics.ranges.Merge(CountsOf(ranges));
  MergeAdditions(staging_.Part<AdditionColumn>(additions_part_), diagnostics.additions);
  health_changed_ = ranges.health_changes != 0;
}

// From [count][instances][elements] to [instances][steps of the chunk][elements].
void ForwardRecord::TakeTrajectories(const std::vector<Trajectory>& trajectories, int64_t column,
                                     std::vector<Tensor>& tensors) const {
  for (size_t k = 0; k < trajectories.size(); ++k) {
    const Trajectory& trajectory = trajectories[k];
    const int64_t n = trajectory.elements;
    PutNumbers(trajectory.memory_type, staging_.Part<uint8_t>(trajectory.part).data(),
               {batch_.instances, sent_.count, n},
               {.instance = n, .step = batch_.instances * n, .element = 1},
               {.first = column * n, .instance = tensors[k].shape[1] * n, .step = n, .element = 1},
               tensors[k]);
  }
}

void ForwardRecord::TakeInstances(int64_t column, ForwardChunk& chunk) const {
  const int64_t at = column * batch_.instances;
  for (size_t s = 0; s < sites_.size(); ++s) {
    InstanceSite& record = chunk.instance_sites[s];
    const auto take = [&](const auto& part, auto& to) {
      std::copy(part.begin(), part.end(), to.begin() + at);
    };
    take(staging_.Part<uint32_t>(sites_[s].iterations_part), record.iterations);
    take(staging_.Part<uint8_t>(sites_[s].reasons_part), record.reasons);
    take(staging_.Part<uint32_t>(sites_[s].counts_part), record.value_counts);
  }
}

absl::Status ForwardRecord::Send(const KernelArgs& args) {
  staging_.Clear();
  sent_ = args;
  const auto add = [&](const auto* from, int64_t count) {
    return staging_.Add(from, Bytes<std::remove_cvref_t<decltype(*from)>>(count));
  };
  if (options_.recording != Recording::kNone) {
    termination_part_ = add(args.termination, args.count * static_cast<int64_t>(terminations_));
    event_part_ = add(args.event, args.count * static_cast<int64_t>(events_));
    state_part_ = add(args.state, args.samples * static_cast<int64_t>(real_states_));
    ranges_part_ = add(args.ranges, 1);
    additions_part_ = add(args.additions, static_cast<int64_t>(additions_));
    margins_part_ = add(args.event_margins, EventMargins(args));
  }
  const int64_t cells = args.count * batch_.instances;
  for (auto* list : {&states_, &exports_}) {
    for (Trajectory& trajectory : *list) {
      trajectory.part = staging_.Add(
          trajectory.data, cells * trajectory.elements * MemoryTypeBytes(trajectory.memory_type));
    }
  }
  for (SiteArrays& site : sites_) {
    site.iterations_part = add(site.view.iterations, cells);
    site.reasons_part = add(site.view.reasons, cells);
    site.counts_part = add(site.view.value_counts, cells);
  }
  if (args.tape_units != nullptr) {
    units_part_ = add(args.tape_units + args.first_step, args.count);
  }
  return staging_.Send(device_, stream_, copies_);
}

absl::Status ForwardRecord::Take(std::span<const uint64_t> sorted_ids, ForwardChunk& chunk,
                                 int64_t chunk_first, std::span<uint64_t> tape_units) {
  if (absl::Status status = staging_.Arrive(); !status.ok()) return status;
  const int64_t column = sent_.first_step - chunk_first;
  if (options_.recording != Recording::kNone) TakeColumns(sorted_ids, column, chunk.diagnostics);
  TakeTrajectories(states_, column, chunk.states);
  TakeTrajectories(exports_, column, chunk.exports);
  TakeInstances(column, chunk);
  if (sent_.tape_units == nullptr) return absl::OkStatus();
  const auto units = staging_.Part<unsigned long long>(units_part_);
  std::copy(units.begin(), units.end(), tape_units.begin() + sent_.first_step);
  return absl::OkStatus();
}

absl::Status ForwardRecord::PrepareValues(KernelArgs& args, const ForwardChunk& chunk,
                                          int64_t chunk_first) {
  const size_t instances = static_cast<size_t>(batch_.instances);
  const size_t from = static_cast<size_t>(args.first_step - chunk_first) * instances;
  const size_t to = from + static_cast<size_t>(args.count) * instances;
  for (size_t s = 0; s < sites_.size(); ++s) {
    SiteArrays& site = sites_[s];
    std::vector<int64_t> counts(instances, 0);
    for (size_t cell = from; cell < to; ++cell) {
      counts[cell % instances] += chunk.instance_sites[s].value_counts[cell];
    }
    site.starts.assign(instances, 0);
    site.total = 0;
    for (size_t i = 0; i < instances; ++i) {
      site.starts[i] = site.total;
      site.total += counts[i];
    }
    const absl::StatusOr<void*> values = Take(site.values, 8 * site.total);
    if (!values.ok()) return values.status();
    const absl::StatusOr<void*> starts = Take(site.value_starts, 8 * batch_.instances);
    if (!starts.ok()) return starts.status();
    site.view.values = static_cast<double*>(*values);
    site.view.value_starts = static_cast<const int64_t*>(*starts);
    absl::Status status = stream_.ToDevice(*starts, site.starts.data(), 8 * batch_.instances);
    if (!status.ok()) return status;
  }
  return SendViews(args);
}

absl::Status ForwardRecord::ReadValues(ForwardChunk& chunk) {
  for (size_t s = 0; s < sites_.size(); ++s) {
    const SiteArrays& site = sites_[s];
    std::vector<double> values(static_cast<size_t>(site.total));
    absl::Status status =
        stream_.ToHost(values.data(), site.view.values, Bytes<double>(site.total));
    if (!status.ok()) return status;
    for (size_t i = 0; i < site.starts.size(); ++i) {
      const size_t begin = static_cast<size_t>(site.starts[i]);
      const size_t end =
          static_cast<size_t>(i + 1 < site.starts.size() ? site.starts[i + 1] : site.total);
      std::vector<double>& to = chunk.instance_sites[s].values[i];
      for (size_t k = begin; k < end; ++k) to.push_back(precision::Canonical(values[k]));
    }
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim::cuda
