// Step diagnostics as messages: blocks that stay below a size, coalesced for a slow reader.
//
// Blocks of one answer are contiguous and none is missing. Several appended ranges of steps become
// one block; a range too large for a message becomes several, and its role ranges travel with the
// last.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/program/additions.h"
#include "sim/program/numerical_program.h"
#include "simgrad/v1/diagnostics.pb.h"

namespace simgrad::server::conversion {

// Names of the columns, in the order of the simulation's vectors.
struct ColumnNames {
  std::vector<std::string> terminations;
  std::vector<std::string> events;
  std::vector<std::string> event_kinds;  // empty where the program states no level
  std::vector<std::string> states;       // real ones
  std::vector<std::string> tests;        // by number, from 1 on (sim/program/decision_margin.h)
  std::vector<sim::AdditionSite> additions;
};
ColumnNames ColumnNamesOf(const sim::NumericalProgram& program);

// Bytes of the diagnostics of so many steps, sampled states aside.
int64_t DiagnosticsBytes(int64_t terminations, int64_t events, int64_t steps);

// A block of no steps: only names and kinds, for an answer without steps.
v1::DiagnosticsBlock EmptyBlock(const ColumnNames& names);

// Waits between the worker that appends and the stream that takes.
class PendingDiagnostics {
 public:
  PendingDiagnostics(ColumnNames names, int64_t max_block_bytes)
      : names_(std::move(names)), max_block_bytes_(max_block_bytes) {}

  void Append(const sim::StepDiagnostics& next);
  bool empty() const { return pending_.steps == 0; }
  int64_t bytes() const;  // that what was appended takes
  // Gives everything appended so far, block by block, each for the time of the call; then it is
  // empty.
  void Take(const std::function<void(const v1::DiagnosticsBlock&)>& give);

 private:
  void Encode(int64_t begin, int64_t end, bool last, v1::DiagnosticsBlock& block) const;

  ColumnNames names_;
  int64_t max_block_bytes_;
  sim::StepDiagnostics pending_;
};

// Level instances: what each instance did in a chunk, in pieces by instances.
std::vector<v1::DiagnosticsBlock> InstanceBlocks(const ColumnNames& names, int64_t first_step,
                                                 int64_t steps, int64_t instances,
                                                 const std::vector<sim::InstanceSite>& sites,
                                                 int64_t max_block_bytes);

// The reverse pass; `ranges` with the last block.
std::vector<v1::BackwardBlock> BackwardBlocks(const std::vector<sim::BackwardStep>& steps,
                                              const sim::RangeCounts& ranges,
                                              int64_t max_block_bytes);

}  // namespace simgrad::server::conversion
