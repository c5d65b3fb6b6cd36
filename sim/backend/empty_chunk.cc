#include "sim/backend/empty_chunk.h"

#include "sim/backend/value_tensors.h"
#include "sim/program/additions.h"

namespace simgrad::sim {

ForwardChunk EmptyChunk(const Batch& batch, const RunOptions& options, int32_t stride,
                        int64_t first, int64_t count) {
  ForwardChunk chunk;
  const Program& p = batch.program->program;
  const std::vector<Site>& sites = batch.program->sites;
  if (options.recording != Recording::kNone) {
    chunk.diagnostics = StepDiagnostics::For(sites, RealStates(p), first, count, batch.steps,
                                             stride, p.level != TestLevel::kDeclared);
    for (const AdditionSite& site : AdditionsOf(*batch.program).sites) {
      chunk.diagnostics.additions.push_back({.role = site.role});
    }
  }
  if (options.recording == Recording::kInstances) {
    const size_t cells = static_cast<size_t>(count * batch.instances);
    chunk.instance_sites.resize(CountOf(sites, SiteKind::kTermination));
    for (InstanceSite& site : chunk.instance_sites) {
      site.iterations.assign(cells, 0);
      site.reasons.assign(cells, 0);
      site.value_counts.assign(cells, 0);
      site.values.resize(static_cast<size_t>(batch.instances));
    }
  }
  const auto trajectory = [&](ValueId id) { return ZerosFor(p[id], {batch.instances, count}); };
  for (int32_t input : options.record_states) {
    chunk.states.push_back(trajectory(p.inputs[static_cast<size_t>(input)].value));
  }
  for (int32_t index : options.record_exports) {
    chunk.exports.push_back(trajectory(p.exports[static_cast<size_t>(index)].value));
  }
  return chunk;
}

}  // namespace simgrad::sim
