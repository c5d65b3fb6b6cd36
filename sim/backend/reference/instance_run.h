// One instance of a batch: its states, its steps forward, and their reverse.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/backend/reference/adjoint_runner.h"
#include "sim/backend/reference/decisions.h"
#include "sim/backend/reference/read_cotangents.h"

namespace simgrad::sim::reference {

// The state that travels with an instance from step to step; a checkpoint is a copy of it.
struct InstanceState {
  std::vector<Array> states;   // by state input
  std::vector<Array> exports;  // of the last step that counted
  double cost = 0.0;
  InstanceHealth health;
  PathState path;
};

// The sinks that a step reports to. Null: not counted.
struct StepSinks {
  bool decide = false;  // count decisions into `column` and the path
  StepColumn column;
  RangeCounts* ranges = nullptr;
  std::vector<AdditionCounts>* additions = nullptr;
};

class InstanceRun {
 public:
  InstanceRun(const Batch& batch, const Layouts& layouts, int64_t row, double near_band_ulps,
              WorkMeter::StopCallback stop = {});

  void Start();
  // Runs step t; a stopped instance stands still.
  void Step(int64_t t, const StepSinks& sinks);
  void Finish();

  // From now on arithmetic is counted there; null: it is not.
  void CountInto(ArithmeticTable* table) { arithmetic_ = table; }

  // Reverse. AdjointSteps expects the states to be those at `first`.
  void StartAdjoint(double seed_scale);
  void AdjointSteps(int64_t first, int64_t count, AdjointChunk& chunk);
  void FinishAdjoint();
  // Forgets what the last of these calls gave to weights.
  void EndWeights();

  const InstanceState& state() const { return state_; }
  // Sets the state of a checkpoint, or of the replay of a certificate.
  void set_state(InstanceState state) { state_ = std::move(state); }
  const std::vector<GradientSum>& gradients() const { return gradients_; }
  // The first non-finite value of the whole run, forward and adjoint.
  const InstanceHealth& health() const {
    return adjoint_health_ ? *adjoint_health_ : state_.health;
  }
  const std::optional<BirthCertificate>& certificate() const { return watch_.certificate(); }
  // The most bytes that the reversal of a step which ran holds of what its steps computed.
  int64_t most_kept() const { return most_kept_; }
  // Bytes of the values of step t, counted when it ran.
  int64_t TapeBytes(int64_t t) const { return tape_bytes_[static_cast<size_t>(t)]; }
  const std::vector<int64_t>& tape_bytes() const { return tape_bytes_; }
  void set_tape_bytes(std::vector<int64_t> bytes) { tape_bytes_ = std::move(bytes); }

 private:
  // The frames of one executed region with its inputs.
  struct Taped {
    Frame inputs;
    Frame region;
  };
  const Program& program() const { return program_.program; }
  Frame InputFrame(int64_t t, const std::vector<Array>& states) const;
  Array ReadInput(size_t input, int64_t t) const;
  std::vector<Array> SentStates() const;
  void CheckInputs(int64_t t);
  std::unique_ptr<Taped> RunTaped(const Region& region, int64_t t, const std::vector<Array>& states,
                                  const std::vector<Array>& args, RunSinks sinks);
  std::vector<Array> TerminalArgs() const;
  void AddCost(ValueId value, const Frame& frame);
  // After a cost that counts was added to `before`.
  void CountCost(double before, ValueId value, const Frame& frame) const;
  // The counts of operations that stand in no text: sums of costs, gradients of states. Null: none.
  ArithmeticCounts* CountsOf(Role role, std::string_view operation, std::string_view label) const;
  Slot SentSlot(const std::vector<double>& sent, int64_t entry, const Type& type,
                const std::string& name, bool is_read);
  std::vector<Slot> SentStateSlots(const std::vector<std::vector<double>>& sent, int64_t entries,
                                   int64_t entry, const std::vector<bool>& read);
  std::vector<Slot> StepSlots(int64_t t);
  // Begins what is given to weights in `entries` steps from `first` on.
  void StartWeights(int64_t first, int64_t entries);
  void NoteCotangents(BackwardStep& step, RangeCounts& ranges) const;
  AdjointRunner Reverse(RangeCounts* ranges, int64_t t);

  const Batch& batch_;
  const NumericalProgram& program_;
  const Layouts& layouts_;
  size_t row_;
  std::vector<int32_t> state_inputs_;
  mutable WorkMeter meter_;
  NonFiniteWatch watch_;
  DecisionRecorder decisions_;
  ArithmeticTable* arithmetic_ = nullptr;
  InstanceState state_;
  std::vector<int64_t> tape_bytes_;
  int64_t most_kept_ = 0;
  std::vector<GradientSum> gradients_;
  std::optional<InstanceHealth> adjoint_health_;
  double seed_ = 0.0;
  RangeCounts started_;                  // of what enters at z[T]; told with the steps before it
  std::vector<Slot> cotangents_;         // of the states at the step reached
  std::vector<Slot> export_cotangents_;  // of the last step, from the terminal cost
  ReadCotangents read_;
};

// The format a state is stored in.
Format StateFormat(const NumericalProgram& program, int32_t state_input);

// Counts per-element facts of a state after a step.
void NoteState(const Array& state, Format format, StateRange& range);

}  // namespace simgrad::sim::reference
