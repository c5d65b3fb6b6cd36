// What forward launches write beside the states: columns, per-instance arrays, trajectories.
//
// A chunk of steps is cut into launches so that their records stay within a bound; each launch's
// records are read into its place of the chunk.
// Errors: those of device.h. Threads: as a Stream.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cuda {

// Memory that is taken once and grows when more is asked for; what lay in it is lost then.
class Scratch {
 public:
  absl::StatusOr<void*> Of(Device& device, Stream& stream, int64_t bytes);

 private:
  Buffer buffer_;
};

// The format in which a value of the program leaves an executor.
DType DTypeOfValue(const NumericalProgram& program, const Value& value);
// Numbers in memory of a carrier, canonical NaNs, into a tensor from element `at` on.
void CopyNumbers(Carrier carrier, const uint8_t* from, int64_t count, Tensor& to, int64_t at);
// The carrier of a value in fields and trajectories.
Carrier CarrierOfValue(const NumericalProgram& program, const Value& value);

class ForwardRecord {
 public:
  ForwardRecord(Device& device, Stream& stream, const Batch& batch, const RunOptions& options);

  // All zero, with the places of `count` steps.
  ForwardChunk EmptyChunk(int64_t first, int64_t count) const;
  // The most steps of one launch of `blocks` blocks whose records stay within the bound, at
  // least 1.
  int64_t StepsPerLaunch(int64_t blocks) const;

  // Points the arguments at memory for a launch of args.count steps on `blocks` blocks.
  absl::Status Prepare(int64_t blocks, KernelArgs& args);
  // Reads what the launch and its merge wrote into the chunk, which starts at `chunk_first`.
  absl::Status Read(const KernelArgs& args, std::span<const uint64_t> sorted_ids,
                    int64_t chunk_first, ForwardChunk& chunk);
  // Second pass of level `instances`. Between the two a launch with kValuesPass writes the values.
  absl::Status PrepareValues(KernelArgs& args, const ForwardChunk& chunk, int64_t chunk_first);
  absl::Status ReadValues(ForwardChunk& chunk);

 private:
  struct Trajectory {
    Carrier carrier;
    int64_t elements;
    Scratch memory;
    void* data = nullptr;
  };
  // Memory of one termination site at level `instances`.
  struct SiteArrays {
    Scratch iterations, reasons, value_counts, values, value_starts;
    InstanceSiteView view = {};
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
  absl::Status ReadColumns(const KernelArgs& args, std::span<const uint64_t> sorted_ids,
                           int64_t column, StepDiagnostics& diagnostics);
  absl::Status ReadTrajectories(const std::vector<Trajectory>& trajectories, const KernelArgs& args,
                                int64_t column, std::vector<Tensor>& tensors);
  absl::Status ReadInstances(const KernelArgs& args, int64_t column, ForwardChunk& chunk);
  int64_t Sampled(int64_t first, int64_t count) const;

  Device& device_;
  Stream& stream_;
  const Batch& batch_;
  const RunOptions& options_;
  size_t terminations_ = 0, events_ = 0, real_states_ = 0;
  Scratch partial_termination_, partial_event_, partial_state_, termination_, event_, state_;
  Scratch ranges_, views_, state_pointers_, export_pointers_;
  std::vector<Trajectory> states_, exports_;  // by RunOptions::record_...
  std::vector<int32_t> state_places_;         // of recorded states among the states
  std::vector<SiteArrays> sites_;
};

}  // namespace simgrad::sim::cuda
