#include "sim/backend/cuda/run/forward_record.h"

#include <algorithm>
#include <utility>

#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/run/numbers.h"
#include "sim/program/additions.h"

namespace simgrad::sim::cuda {
namespace {

// The most bytes of records of one launch; two are alive at once. Without this limit the columns of
// blocks on a large device would take gigabytes.
constexpr int64_t kLaunchBytes = int64_t{128} << 20;

const Value& StateValue(const Program& p, int32_t input) {
  return p[p.inputs[static_cast<size_t>(input)].value];
}
const Value& ExportValue(const Program& p, int32_t index) {
  return p[p.exports[static_cast<size_t>(index)].value];
}

}  // namespace

absl::StatusOr<void*> Scratch::Of(Device& device, Stream& stream, int64_t bytes, MemoryKind kind) {
  if (buffer_.data() != nullptr && bytes <= buffer_.bytes()) return buffer_.data();
  // Work that still runs may use the old memory.
  if (absl::Status status = stream.Wait(); !status.ok()) return status;
  buffer_ = Buffer();
  absl::StatusOr<Buffer> larger = device.Allocate(bytes, kind);
  if (!larger.ok()) return larger.status();
  buffer_ = std::move(*larger);
  return buffer_.data();
}

ForwardRecord::ForwardRecord(Device& device, Stream& stream, Stream& copies, const Batch& batch,
                             const RunOptions& options)
    : device_(device), stream_(stream), copies_(copies), batch_(batch), options_(options) {
  const Program& p = batch.program->program;
  terminations_ = CountOf(batch.program->sites, SiteKind::kTermination);
  events_ = CountOf(batch.program->sites, SiteKind::kEvent);
  real_states_ = RealStates(p);
  additions_ = AdditionsOf(*batch.program).sites.size();
  const std::vector<int32_t> inputs = p.InputsOf(InputKind::kState);
  const auto add = [&](std::vector<Trajectory>& list, const Value& value) {
    Trajectory& trajectory = list.emplace_back();
    trajectory.memory_type = MemoryTypeOf(value);
    trajectory.elements = ElementCount(value.type.shape);
  };
  for (int32_t input : options.record_states) {
    add(states_, StateValue(p, input));
    const auto place = std::find(inputs.begin(), inputs.end(), input);
    state_places_.push_back(static_cast<int32_t>(place - inputs.begin()));
  }
  for (int32_t index : options.record_exports) add(exports_, ExportValue(p, index));
  if (options.recording == Recording::kInstances) sites_.resize(terminations_);
}

int64_t ForwardRecord::StepsPerLaunch(int64_t blocks) const {
  int64_t step = 1;
  if (options_.recording != Recording::kNone) {
    step += blocks * (Bytes<TerminationColumn>(static_cast<int64_t>(terminations_)) +
                      Bytes<EventColumn>(static_cast<int64_t>(events_)) +
                      Bytes<StateColumn>(static_cast<int64_t>(real_states_)));
    if (batch_.program->program.level != TestLevel::kDeclared) {
      step += Bytes<MarginColumn>(static_cast<int64_t>(events_));
    }
  }
  for (const auto* list : {&states_, &exports_}) {
    for (const Trajectory& trajectory : *list) {
      step += batch_.instances * trajectory.elements * MemoryTypeBytes(trajectory.memory_type);
    }
  }
  step += static_cast<int64_t>(sites_.size()) * batch_.instances * 9;
  return std::max<int64_t>(1, kLaunchBytes / step);
}

int64_t ForwardRecord::Sampled(int64_t first, int64_t count) const {
  int64_t sampled = 0;
  for (int64_t t = first; t < first + count; ++t) {
    sampled += (t + 1) % options_.stride == 0 || t + 1 == batch_.steps ? 1 : 0;
  }
  return sampled;
}

int64_t ForwardRecord::EventMargins(const KernelArgs& args) const {
  const bool counts = batch_.program->program.level != TestLevel::kDeclared;
  return counts ? args.samples * static_cast<int64_t>(events_) : 0;
}

absl::Status ForwardRecord::PrepareColumns(int64_t blocks, KernelArgs& args) {
  const int64_t terminations = static_cast<int64_t>(terminations_) * args.count;
  const int64_t events = static_cast<int64_t>(events_) * args.count;
  const int64_t samples = static_cast<int64_t>(real_states_) * args.samples;
  absl::Status status;
  const auto take = [&](Scratch& scratch, int64_t count, auto*& to) {
    if (!status.ok() || count == 0) return;
    using T = std::remove_reference_t<decltype(*to)>;
    const absl::StatusOr<void*> data = Take(scratch, Bytes<T>(count));
    status = data.status();
    if (status.ok()) to = static_cast<T*>(*data);
  };
  take(partial_termination_, blocks * terminations, args.termination_partial);
  take(partial_event_, blocks * events, args.event_partial);
  take(partial_state_, blocks * samples, args.state_partial);
  take(termination_, terminations, args.termination);
  take(event_, events, args.event);
  take(state_, samples, args.state);
  take(ranges_, 1, args.ranges);
  if (status.ok()) status = stream_.Fill(args.ranges, 0, Bytes<RangeColumn>(1));
  const int64_t additions = static_cast<int64_t>(additions_);
  take(addition_counts_, additions, args.additions);
  if (status.ok() && additions > 0) {
    status = stream_.Fill(args.additions, 0, Bytes<AdditionColumn>(additions));
  }
  const int64_t margins = EventMargins(args);
  take(event_margins_, margins, args.event_margins);
  if (status.ok() && margins > 0) {
    status = stream_.Fill(args.event_margins, 0, Bytes<MarginColumn>(margins));
  }
  return status;
}

absl::Status ForwardRecord::PrepareTrajectories(KernelArgs& args) {
  for (auto* list : {&states_, &exports_}) {
    for (Trajectory& trajectory : *list) {
      const absl::StatusOr<void*> data =
          Take(trajectory.memory, args.count * batch_.instances * trajectory.elements *
                                      MemoryTypeBytes(trajectory.memory_type));
      if (!data.ok()) return data.status();
      trajectory.data = *data;
    }
  }
  const Program& p = batch_.program->program;
  const auto send = [&](Scratch& scratch, const std::vector<void*>& pointers,
                        void* const*& to) -> absl::Status {
    const int64_t bytes = Bytes<void*>(static_cast<int64_t>(pointers.size()));
    const absl::StatusOr<void*> data = Take(scratch, bytes);
    if (!data.ok()) return data.status();
    to = static_cast<void* const*>(*data);
    return bytes == 0 ? absl::OkStatus() : stream_.ToDevice(*data, pointers.data(), bytes);
  };
  std::vector<void*> states(p.InputsOf(InputKind::kState).size(), nullptr);
  for (size_t k = 0; k < states_.size(); ++k) {
    states[static_cast<size_t>(state_places_[k])] = states_[k].data;
  }
  std::vector<void*> exports(p.exports.size(), nullptr);
  for (size_t k = 0; k < exports_.size(); ++k) {
    exports[static_cast<size_t>(options_.record_exports[k])] = exports_[k].data;
  }
  absl::Status status;
  if (!states_.empty()) status = send(state_pointers_, states, args.state_trajectory);
  if (status.ok() && !exports_.empty()) {
    status = send(export_pointers_, exports, args.export_trajectory);
  }
  return status;
}

absl::Status ForwardRecord::SendViews(KernelArgs& args) {
  std::vector<InstanceSiteView> views;
  for (const SiteArrays& site : sites_) views.push_back(site.view);
  const int64_t bytes = Bytes<InstanceSiteView>(static_cast<int64_t>(views.size()));
  const absl::StatusOr<void*> data = Take(views_, bytes);
  if (!data.ok()) return data.status();
  args.instance_site = static_cast<const InstanceSiteView*>(*data);
  return bytes == 0 ? absl::OkStatus() : stream_.ToDevice(*data, views.data(), bytes);
}

absl::Status ForwardRecord::PrepareInstances(KernelArgs& args) {
  const int64_t cells = args.count * batch_.instances;
  for (SiteArrays& site : sites_) {
    site.view = {};
    absl::Status status;
    const auto take = [&](Scratch& scratch, auto*& to) {
      if (!status.ok()) return;
      using T = std::remove_reference_t<decltype(*to)>;
      const absl::StatusOr<void*> data = Take(scratch, Bytes<T>(cells));
      status = data.status();
      if (!status.ok()) return;
      to = static_cast<T*>(*data);
      // Instances that stand still and sites that are not reached keep this zero.
      status = stream_.Fill(*data, 0, Bytes<T>(cells));
    };
    take(site.iterations, site.view.iterations);
    take(site.reasons, site.view.reasons);
    take(site.value_counts, site.view.value_counts);
    if (!status.ok()) return status;
  }
  return SendViews(args);
}

absl::Status ForwardRecord::Prepare(int64_t blocks, KernelArgs& args) {
  args.samples = Sampled(args.first_step, args.count);
  args.blocks = blocks;
  absl::Status status;
  if (options_.recording != Recording::kNone) status = PrepareColumns(blocks, args);
  if (status.ok()) status = PrepareTrajectories(args);
  if (status.ok() && !sites_.empty()) status = PrepareInstances(args);
  return status;
}

}  // namespace simgrad::sim::cuda
