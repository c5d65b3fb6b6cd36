// Compares runs with the first of them, the reference, while they go on.
//
// The reference's path, last states, values, signatures and gradients are kept; of another run what it does
// otherwise is counted as its chunks come.
// Cost: of a chunk, a look at the bytes of its path, and more for each decision that differs.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/conversion/work.h"
#include "sim/engine.h"
#include "sim/program/path_difference.h"
#include "sim/work_meter.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

class RunComparison {
 public:
  // Before each run, the reference first. All have as many instances.
  void Begin(std::shared_ptr<const sim::NumericalProgram> program, int64_t instances,
             int64_t steps);
  // `recorded`: the fields of the chunk.
  void Add(const std::vector<Recorded>& recorded, const sim::ForwardChunk& chunk);
  // After a run. None: it was the reference. Throws sim::StopRequested.
  std::optional<v1::Comparison> End(const sim::WorkResult& result, sim::WorkMeter& meter);

 private:
  // By site of a world, in the order of the program: turns of a loop, elements for which a test held.
  using Counts = std::vector<std::pair<std::string, uint64_t>>;
  struct Run {
    std::shared_ptr<const sim::NumericalProgram> program;
    int64_t steps = 0;
    Counts counts;
    const sim::PathLayout* path() const { return program->path ? &*program->path : nullptr; }
  };

  // Why decisions are not compared one by one; empty: they are.
  std::string Unlike() const;
  void AddCounts(const sim::StepDiagnostics& diagnostics);
  void KeepRows(const sim::Tensor& rows, int64_t first_step, int64_t steps);
  void CompareRows(const sim::Tensor& rows, int64_t first_step, int64_t steps);
  void TellPaths(v1::Comparison& comparison) const;
  void TellSites(v1::Comparison& comparison) const;

  bool is_reference_ = true;
  int64_t instances_ = 0;
  Run reference_, run_;
  std::map<std::string, sim::Tensor> fields_;  // the reference's, as in FieldDifference
  std::vector<uint64_t> signatures_;           // the reference's
  std::vector<uint8_t> rows_;                  // of the reference's path: [instances][steps][bytes]
  // This run's:
  std::optional<sim::PathDifference> difference_;
  std::vector<int64_t> first_steps_, first_elements_;
  std::vector<int32_t> first_sites_;
  std::vector<uint64_t> flips_;  // by column
};

// How far arrays of one shape are from each other; here for its test. Throws sim::StopRequested.
v1::FieldDifference DifferenceOf(const std::string& field, const sim::Tensor& reference,
                                 const sim::Tensor& other, sim::WorkMeter& meter);

}  // namespace simgrad::server::conversion
