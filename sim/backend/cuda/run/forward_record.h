// The records of forward launches beside the states: columns, per-instance arrays, trajectories.
//
// A chunk of steps is cut into launches so that their records stay within a bound. One object holds
// the record of one launch. Two objects take turns: one is written while the other's record travels
// to the host (Send) and is copied into its place in the chunk (Take).
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/run/staging.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cuda {

// Memory that is taken once and grows when more is asked for; what lay in it is lost then.
class Scratch {
 public:
  absl::StatusOr<void*> Of(Device& device, Stream& stream, int64_t bytes,
                           MemoryKind kind = MemoryKind::kDevice);

 private:
  Buffer buffer_;
};

template <class T>
int64_t Bytes(int64_t count) {
  return count * static_cast<int64_t>(sizeof(T));
}

class ForwardRecord {
 public:
  // Launches are on `stream`; `copies` is another, for the way to the host.
  ForwardRecord(Device& device, Stream& stream, Stream& copies, const Batch& batch,
                const RunOptions& options);

  // The most steps of one launch of `blocks` blocks whose records stay within the bound, at
  // least 1.
  int64_t StepsPerLaunch(int64_t blocks) const;

  // Points the arguments at memory for a launch of args.count steps on `blocks` blocks.
  absl::Status Prepare(int64_t blocks, KernelArgs& args);
  // Sends what the launch and its merge write to the host; does not wait.
  absl::Status Send(const KernelArgs& args);
  // Waits for it and puts it into the chunk, which starts at `chunk_first`, and into `tape_units`
  // by step. Before the next Prepare.
  absl::Status Take(std::span<const uint64_t> sorted_ids, ForwardChunk& chunk, int64_t chunk_first,
                    std::span<uint64_t> tape_units);
  // Whether the launch that was taken last changed the health of an instance.
  bool health_changed() const { return health_changed_; }
  // The launch that was sent last.
  const KernelArgs& sent() const { return sent_; }
  // Second pass of level `instances`. Between the two a launch with kValuesPass writes the values.
  absl::Status PrepareValues(KernelArgs& args, const ForwardChunk& chunk, int64_t chunk_first);
  absl::Status ReadValues(ForwardChunk& chunk);

 private:
  struct Trajectory {
    MemoryType memory_type;
    int64_t elements;
    Scratch memory;
    void* data = nullptr;
    size_t part = 0;
  };
  // Memory of one termination site at level `instances`.
  struct SiteArrays {
    Scratch iterations, reasons, value_counts, values, value_starts;
    InstanceSiteView view = {};
    size_t iterations_part = 0, reasons_part = 0, counts_part = 0;
    std::vector<int64_t> starts;
    int64_t total = 0;
  };

  absl::StatusOr<void*> Take(Scratch& scratch, int64_t bytes) {
    return scratch.Of(device_, stream_, bytes);
  }
  absl::Status PrepareColumns(int64_t blocks, KernelArgs& args);
  absl::Status PrepareTrajectories(KernelArgs& args);
  absl::Status PrepareInstances(KernelArgs& args);
  absl::Status SendViews(KernelArgs& args);
  void TakeColumns(std::span<const uint64_t> sorted_ids, int64_t column,
                   StepDiagnostics& diagnostics);
  void TakeTrajectories(const std::vector<Trajectory>& trajectories, int64_t column,
                        std::vector<Tensor>& tensors) const;
  void TakeInstances(int64_t column, ForwardChunk& chunk) const;
  int64_t Sampled(int64_t first, int64_t count) const;
  // The histograms of margins of events in a launch.
  int64_t EventMargins(const KernelArgs& args) const;

  Device& device_;
  Stream& stream_;
  Stream& copies_;
  const Batch& batch_;
  const RunOptions& options_;
  size_t terminations_ = 0, events_ = 0, real_states_ = 0, additions_ = 0;
  Scratch partial_termination_, partial_event_, partial_state_, termination_, event_, state_;
  Scratch ranges_, addition_counts_, event_margins_, views_, state_pointers_, export_pointers_;
  std::vector<Trajectory> states_, exports_;  // by RunOptions::record_...
  std::vector<int32_t> state_places_;         // of recorded states among the states
  std::vector<SiteArrays> sites_;
  Staging staging_;
  KernelArgs sent_ = {};
  bool health_changed_ = false;
  size_t termination_part_ = 0, event_part_ = 0, state_part_ = 0, ranges_part_ = 0, units_part_ = 0;
  size_t additions_part_ = 0, margins_part_ = 0;
};

}  // namespace simgrad::sim::cuda
