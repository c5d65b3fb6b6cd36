#include "sim/backend/check_batch.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/simplify.h"

namespace simgrad::sim {
namespace {

absl::Status CheckBinding(const Batch& batch, size_t i) {
  const Program& program = batch.program->program;
  const Input& input = program.inputs[i];
  const Binding& binding = batch.inputs[i];
  const auto name = [&] {
    return absl::StrCat(std::string(InputKindName(input.kind)), ".", input.name);
  };
  const int64_t count = ElementCount(program[input.value].type.shape);
  if (input.kind == InputKind::kConfig || input.kind == InputKind::kStep) return absl::OkStatus();
  if (!IsBound(batch, i)) {
    const bool empty = count == 0 || (binding.per_instance && batch.instances == 0) ||
                       (binding.per_step && batch.steps == 0);
    if (!input.used || input.default_value || empty) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name(), " has no default and was not sent"));
  }
  const bool varies = input.kind == InputKind::kControl || input.kind == InputKind::kData;
  if (binding.per_step && !varies) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " is per step; only controls and data may be"));
  }
  if (binding.per_instance && input.weights) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), " is declared weights, which all instances share; send it without instances"));
  }
  const int64_t expected =
      count * (binding.per_instance ? batch.instances : 1) * (binding.per_step ? batch.steps : 1);
  if (binding.tensor.count() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(name(), " has ", binding.tensor.count(),
                                                   " elements; ", expected, " are needed"));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const std::vector<uint64_t>& ids, const WorkMeter::StopCallback& stop) {
  // They mostly ascend.
  const auto not_less = [](uint64_t a, uint64_t b) { return a >= b; };
  if (std::adjacent_find(ids.begin(), ids.end(), not_less) == ids.end()) return absl::OkStatus();
  std::vector<uint64_t> sorted = ids;
  const absl::Status ended = UntilStopped([&] {
    WorkMeter meter(stop);
    SortInPieces(meter, sorted.begin(), sorted.end(), std::less<>());
  });
  if (!ended.ok()) return ended;
  const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
  if (twin == sorted.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("instance id ", *twin, " occurs twice"));
}

// `sent` holds one array per state or export, each empty or of `entries` values of its shape.
absl::Status CheckSent(const std::vector<std::vector<double>>& sent, const std::string& what,
                       const std::vector<int64_t>& counts, int64_t entries) {
  if (sent.empty()) return absl::OkStatus();
  if (sent.size() != counts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cotangents.", what, " has ", sent.size(), " arrays, not ", counts.size()));
  }
  for (size_t k = 0; k < sent.size(); ++k) {
    const int64_t size = static_cast<int64_t>(sent[k].size());
    if (size == 0 || size == counts[k] * entries) continue;
    return absl::InvalidArgumentError(absl::StrCat("cotangents.", what, "[", k, "] has ", size,
                                                   " elements; ", counts[k] * entries,
                                                   " are needed"));
  }
  return absl::OkStatus();
}

absl::Status CheckCotangents(const Batch& batch) {
  const Cotangents& sent = batch.cotangents;
  if (sent.final_state.empty() && sent.trajectory_state.empty() && sent.trajectory_export.empty()) {
    return absl::OkStatus();
  }
  const Program& program = batch.program->program;
  std::vector<int64_t> states;
  std::vector<int64_t> exports;
  for (int32_t i : program.InputsOf(InputKind::kState)) {
    states.push_back(
        ElementCount(program[program.inputs[static_cast<size_t>(i)].value].type.shape));
  }
  for (const Export& item : program.exports) {
    exports.push_back(ElementCount(program[item.value].type.shape));
  }
  const int64_t n = batch.instances;
  absl::Status status = CheckSent(sent.final_state, "final_state", states, n);
  status.Update(
      CheckSent(sent.trajectory_state, "trajectory_state", states, n * (batch.steps + 1)));
  status.Update(CheckSent(sent.trajectory_export, "trajectory_export", exports, n * batch.steps));
  return status;
}

}  // namespace

absl::Status CheckBatch(const Batch& batch, const WorkMeter::StopCallback& stop) {
  if (batch.program == nullptr) return absl::InvalidArgumentError("the batch has no program");
  const Program& program = batch.program->program;
  if (batch.instances < 0 || batch.steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat("instances ", batch.instances, " and steps ",
                                                   batch.steps, " must not be negative"));
  }
  if (static_cast<int64_t>(batch.instance_ids.size()) != batch.instances) {
    return absl::InvalidArgumentError(absl::StrCat(batch.instance_ids.size(), " instance ids for ",
                                                   batch.instances, " instances"));
  }
  if (absl::Status distinct = CheckIds(batch.instance_ids, stop); !distinct.ok()) {
    return distinct;
  }
  if (batch.inputs.size() != program.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        batch.inputs.size(), " bindings for ", program.inputs.size(), " inputs of the program"));
  }
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    if (absl::Status fits = CheckBinding(batch, i); !fits.ok()) return fits;
  }
  if (absl::Status fits = CheckSteps(batch); !fits.ok()) return fits;
  return CheckCotangents(batch);
}

absl::Status CheckSteps(const Batch& batch) {
  const Program& program = batch.program->program;
  if (batch.steps > 0 || program.objectives.empty()) return absl::OkStatus();
  const Objective& objective = program.objectives.front();
  std::vector<bool> live(program.values.size(), false);
  MarkUses(objective.terminal, live);
  const size_t states = program.InputsOf(InputKind::kState).size();
  for (size_t k = states; k < objective.terminal.args.size(); ++k) {
    const ValueId read = objective.terminal.args[k];
    if (read == ValueId::kNone || !live[Index(read)]) continue;
    return FieldError("steps", absl::StrCat("must be at least 1, is ", batch.steps, ": objective '",
                                            objective.name, "' reads ",
                                            program.exports[k - states].name, " of the last step"));
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim
