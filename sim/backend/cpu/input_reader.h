// Brings what callers send into a machine: inputs, initial states, cotangents.
//
// Errors: none; the batch has been checked (sim/backend/check_batch.h). All of it is counted by the
// machine's meter, which may end it.
#pragma once

#include "sim/backend/cpu/compile.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cpu {

// The rows of the batch that a block stands for; padding repeats the last.
struct BlockRows {
  int64_t first = 0;
  int64_t lanes = 0;
  int64_t width = 0;
};

class InputReader {
 public:
  explicit InputReader(const Batch& batch) : batch_(batch) {}

  static std::vector<InputForm> FormsOf(const Batch& batch);
  // Literals and shared inputs that do not change.
  void LoadUniform(Machine& machine) const;
  // Inputs of the block that do not change.
  void LoadConstant(Machine& machine, const BlockRows& rows) const;
  // Inputs of step t; at T the terminal cost sees those of the last step.
  void LoadStep(Machine& machine, const BlockRows& rows, int64_t t) const;
  // States as sent, rounded to role state.
  void LoadStates(Machine& machine, const BlockRows& rows) const;

 private:
  bool IsSent(size_t input) const;
  void Load(Machine& machine, size_t input, const BlockRows& rows, int64_t t) const;

  const Batch& batch_;
};

// to[element][lane] = x * scale rounded to `role`, then to the slot's format, where x = from[(row
// of the batch * entries + entry) * elements + element]; the product is one of f64.
void LoadReals(const std::vector<double>& from, double scale, Format role, const Slot& slot,
               const BlockRows& rows, int64_t entries, int64_t entry, std::byte* to,
               WorkMeter& meter);

}  // namespace simgrad::sim::cpu
