#include "server/conversion/answer_bounds.h"

#include <algorithm>
#include <map>
#include <string>

#include "server/conversion/diagnostics_blocks.h"
#include "sim/program/loop.h"

namespace simgrad::server::conversion {
namespace {

// How often the loops around it may enter each loop in one step, by its site.
void CountEntries(const sim::Region& region, double entries, std::map<std::string, double>& out) {
  for (const sim::Op& op : region.ops) {
    double inside = entries;
    if (op.code == sim::OpCode::kWhile && !sim::IsBranch(op)) {
      out[op.attributes.site] = entries;
    }
    // A region of a `cond` records nothing: its one turn is none of the loops around.
    if (!sim::IsBranch(op)) inside *= static_cast<double>(sim::RunsAtCap(op));
    for (const sim::Region& nested : op.regions) CountEntries(nested, inside, out);
  }
}

std::map<std::string, double> EntriesOf(const sim::Work& work) {
  std::map<std::string, double> entries;
  CountEntries(work.batch.program->program.step, 1, entries);
  return entries;
}

// The most tests of a site by one instance in one step.
double TestsOf(const sim::Site& site, const std::map<std::string, double>& entries) {
  const auto found = entries.find(site.name);
  if (found == entries.end()) return 0;
  return found->second * static_cast<double>(site.max_iter + 1) *
         static_cast<double>(site.elements);
}

// The bytes of one step: of one instance at the loop that takes most, and of all instances.
struct StepBytes {
  double instance_record = 0;
  double all = 0;
};

StepBytes StepBytesOf(const sim::Work& work, const std::vector<Recorded>& recorded) {
  StepBytes bytes;
  const double instances = static_cast<double>(work.batch.instances);
  for (const Recorded& field : recorded) {
    bytes.all += instances *
                 static_cast<double>(sim::ElementCount(field.shape) * sim::DTypeSize(field.dtype));
  }
  const std::map<std::string, double> entries = EntriesOf(work);
  const bool has_level = work.batch.program->program.level != sim::TestLevel::kDeclared;
  // Every stride-th step is sampled, and the last.
  const double sampled =
      std::min(1.0, 1.0 / std::max(1, work.options.stride) +
                        1 / std::max(1.0, static_cast<double>(work.batch.steps)));
  for (const sim::Site& site : work.batch.program->sites) {
    const bool loop = site.kind == sim::SiteKind::kTermination;
    bytes.all += static_cast<double>(DiagnosticsBytes(loop ? 1 : 0, loop ? 0 : 1, 1));
    if (!loop && has_level) bytes.all += sizeof(sim::MarginHistogram) * sampled;
    if (!loop || work.options.recording != sim::Recording::kInstances) continue;
    // Count, reason, number of values, and the values.
    const double values = TestsOf(site, entries);
    bytes.instance_record = std::max(bytes.instance_record, 9 + 8 * values);
    bytes.all += instances * (9 + 8 * values);
  }
  return bytes;
}

}  // namespace

double MostTests(const sim::Work& work) {
  const std::map<std::string, double> entries = EntriesOf(work);
  double tests = 0;
  for (const sim::Site& site : work.batch.program->sites) {
    if (site.kind == sim::SiteKind::kTermination) tests += TestsOf(site, entries);
  }
  return tests * static_cast<double>(work.batch.instances) * static_cast<double>(work.batch.steps);
}

int64_t MostChunkSteps(const sim::Work& work, const std::vector<Recorded>& recorded,
                       const AnswerLimits& limits) {
  const StepBytes bytes = StepBytesOf(work, recorded);
  const double in_a_message =
      static_cast<double>(limits.max_payload_bytes) / std::max(bytes.instance_record, 1.0);
  const double waiting = static_cast<double>(limits.max_queued_bytes) / std::max(bytes.all, 1.0);
  return static_cast<int64_t>(std::clamp(std::min(in_a_message, waiting), 1.0, 1e15));
}

int64_t AnswerBytes(const sim::Work& work, const std::vector<Recorded>& recorded,
                    v1::ProgramDetail program, const AnswerLimits& limits) {
  const double instances = static_cast<double>(work.batch.instances);
  const double steps = static_cast<double>(work.batch.steps);
  const double step = StepBytesOf(work, recorded).all;
  const double chunk =
      step * static_cast<double>(std::min(work.batch.steps, sim::MostStepsOfAChunk(work)));
  // A vector that grows holds up to twice its numbers, and its messages hold them again.
  double bytes = 3 * chunk;
  double waiting = step * (steps + 1);
  if (program == v1::PROGRAM_DETAIL_TEXT) {
    const auto text = static_cast<double>(work.batch.program->text.size());
    waiting += text;
    // A piece of it is a message before it is bytes.
    bytes += std::min(text, static_cast<double>(limits.max_payload_bytes));
  }
  bytes += std::min(waiting, static_cast<double>(limits.max_queued_bytes));
  bytes += instances * 64;  // values, signatures, health
  // The reverse pass, by step and as messages.
  if (work.gradient && work.gradient->tell_steps) {
    bytes += 2 * steps * static_cast<double>(sizeof(sim::BackwardStep));
  }
  return bytes < 4e18 ? static_cast<int64_t>(bytes) : int64_t{4'000'000'000'000'000'000};
}

}  // namespace simgrad::server::conversion
