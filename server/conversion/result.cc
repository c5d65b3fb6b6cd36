#include "server/conversion/result.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/rounding.h"
#include "server/conversion/enum_names.h"
#include "server/validation/program_schema.h"

namespace simgrad::server::conversion {
namespace {

// The most operands that a certificate tells. A sum over a long axis has more; its element and
// operation are enough to find the non-finite one, and a certificate must not be larger than the
// answer.
constexpr size_t kMaxCertificateOperands = 256;

template <class T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void WriteTensor(const sim::Tensor& tensor, v1::Tensor& out) {
  out.set_dtype(ToProto(tensor.dtype));
  out.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  out.set_inline_(BytesOf(tensor.bytes));
}

void WriteHealth(const std::vector<sim::InstanceHealth>& health, v1::InstanceHealth& out) {
  std::string* ok = out.mutable_ok();
  ok->reserve(health.size());
  for (size_t i = 0; i < health.size(); ++i) {
    ok->push_back(health[i].ok ? 1 : 0);
    if (health[i].ok) continue;
    out.add_index(static_cast<int64_t>(i));
    out.add_phase(std::string(sim::PhaseName(health[i].phase)));
    out.add_step(health[i].step);
    out.add_stopped(health[i].stopped);
  }
}

void WriteHalts(const std::vector<std::string>& names,
                const std::vector<std::optional<sim::Halt>>& halts, v1::InstanceHealth& out) {
  out.mutable_halts()->Add(names.begin(), names.end());
  for (size_t i = 0; i < halts.size(); ++i) {
    if (!halts[i]) continue;
    out.add_halted_index(static_cast<int64_t>(i));
    out.add_halted_by(halts[i]->halt);
    out.add_halted_step(halts[i]->step);
    out.add_halted_error(halts[i]->error);
  }
}

void WriteCertificate(const sim::BirthCertificate& certificate, v1::BirthCertificate& out) {
  out.set_phase(std::string(sim::PhaseName(certificate.phase)));
  out.set_step(certificate.step);
  out.set_operation(certificate.operation);
  out.set_label(certificate.label);
  out.set_value(certificate.value_name);
  out.set_site(certificate.site);
  out.set_role(std::string(precision::RoleName(certificate.role)));
  out.set_format(std::string(precision::FormatName(certificate.format)));
  out.set_instance_id(certificate.instance_id);
  out.set_element(certificate.element);
  out.set_iteration(certificate.iteration);
  const size_t told = std::min(certificate.operands.size(), kMaxCertificateOperands);
  out.mutable_operands()->Add(certificate.operands.begin(), certificate.operands.begin() + told);
  out.set_result(certificate.result);
  out.set_non_finite_class(std::string(sim::NonFiniteClassName(certificate.non_finite_class)));
}

// A field of the answer that may travel in pieces.
struct Splittable {
  std::string name;
  int64_t bytes = 0;
  std::function<std::string()> take;  // leaves it empty
};

std::string TakeTensor(v1::Tensor& tensor) {
  std::string data = std::move(*tensor.mutable_inline_());
  tensor.clear_content();
  return data;
}

std::vector<Splittable> SplittableOf(v1::RolloutResult& result) {
  std::vector<Splittable> fields;
  const auto add = [&](const std::string& name, std::string* data) {
    fields.push_back({name, static_cast<int64_t>(data->size()),
                      [data] { return std::exchange(*data, std::string()); }});
  };
  for (v1::NamedTensor& state : *result.mutable_final_state()) {
    fields.push_back({"final_state." + state.name(),
                      static_cast<int64_t>(state.tensor().inline_().size()),
                      [&state] { return TakeTensor(*state.mutable_tensor()); }});
  }
  if (!result.values().empty()) add("values", result.mutable_values());
  if (!result.path_signatures().empty()) add("path_signatures", result.mutable_path_signatures());
  for (v1::FirstEvent& event : *result.mutable_first_events()) {
    add("first_events." + event.site(), event.mutable_steps());
  }
  // The lists of failed instances grow with them too; whole, as a message of its own.
  fields.push_back({"health", static_cast<int64_t>(result.health().ByteSizeLong()), [&result] {
                      std::string data = result.health().SerializeAsString();
                      result.clear_health();
                      return data;
                    }});
  return fields;
}

// Largest first, so that few fields are split.
std::vector<v1::TensorPiece> Split(std::vector<Splittable> fields, int64_t size,
                                   int64_t max_bytes) {
  std::stable_sort(fields.begin(), fields.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::vector<v1::TensorPiece> pieces;
  for (const Splittable& field : fields) {
    if (size <= max_bytes || field.bytes == 0) break;
    size -= field.bytes;
    for (v1::TensorPiece& piece : Pieces(field.name, field.take(), max_bytes)) {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

void WriteTree(const std::vector<precision::AlignedNode>& tree, sim::DType dtype,
               v1::InputGradient& out) {
  for (const precision::AlignedNode& node : tree) {
    sim::Tensor values = sim::Tensor::Zeros(dtype, {static_cast<int64_t>(node.values.size())});
    for (size_t k = 0; k < node.values.size(); ++k) {
      values.Set(static_cast<int64_t>(k), node.values[k]);
    }
    v1::TreeNode* message = out.add_tree();
    message->set_level(node.block.level);
    message->set_index(node.block.index);
    message->set_dtype(ToProto(dtype));
    message->set_value(values.bytes.data(), values.bytes.size());
  }
}

bool HoldsNonFinite(const sim::Tensor& tensor) {
  for (int64_t k = 0; k < tensor.count(); ++k) {
    if (!std::isfinite(tensor.Get(k))) return true;
  }
  return false;
}

// Warns if the loss scale takes cotangents beyond the format of the adjoint: in a step, where casts
// are counted, or before it, where a scaled gradient is not finite.
std::vector<std::string> LossScaleWarnings(const sim::Work& work, const sim::WorkResult& result) {
  std::vector<std::string> warnings;
  if (result.loss_scale == 1.0) return warnings;
  const sim::NumericalProgram& program = *work.batch.program;
  const precision::Format format = program.policy[precision::Role::kAdjoint].format;
  const std::string name(precision::FormatName(format));
  if (result.skipped && !std::isfinite(precision::RoundTo(format, result.loss_scale))) {
    warnings.push_back(absl::StrCat("the loss scale ", result.loss_scale, " is beyond ", name,
                                    ", the format of role adjoint; the largest power of two is ",
                                    std::exp2(std::ilogb(precision::Traits(format).max_finite))));
  }
  uint64_t beyond = result.adjoint_ranges.overflows[static_cast<size_t>(precision::Role::kAdjoint)];
  beyond += result.nonfinite_cotangents;
  if (beyond > 0) {
    warnings.push_back(absl::StrCat(beyond, " cotangents overflowed ", name,
                                    ", the format of role adjoint, or were not finite, at loss ",
                                    "scale ", result.loss_scale));
  }
  if (result.overflowed > 0) {
    warnings.push_back(absl::StrCat(result.overflowed, " instances are left out whose cotangents ",
                                    "are not finite at loss scale ", result.loss_scale));
  }
  if (result.skipped && warnings.empty()) {
    // It went beyond the format between the last cast and the gradient.
    std::vector<std::string> inputs;
    for (const sim::InputGradient& gradient : result.gradients) {
      if (HoldsNonFinite(gradient.gradient)) {
        inputs.push_back(program.program.inputs[gradient.input].name);
      }
    }
    warnings.push_back(absl::StrCat("a scaled gradient", inputs.empty() ? "" : " of ",
                                    absl::StrJoin(inputs, ", "), " was not finite at loss scale ",
                                    result.loss_scale, "; certificates say where that was born"));
  }
  return warnings;
}

// Warns of each implicit derivative that was taken at a point that is no solution.
std::vector<std::string> UnconvergedWarnings(const sim::WorkResult& result) {
  std::vector<std::string> warnings;
  for (const sim::Unconverged& loop : result.unconverged) {
    warnings.push_back(absl::StrCat(loop.runs, " runs of loop '", loop.site,
                                    "' are unconverged: they ended at its cap, so the implicit "
                                    "derivative is not that of a solution"));
  }
  return warnings;
}

// Warnings where the solver of an implicit derivative gave up.
std::vector<std::string> CappedWarnings(const sim::WorkResult& result) {
  std::vector<std::string> warnings;
  for (const sim::AdjointSolves& solves : result.adjoint_solves) {
    if (solves.capped == 0) continue;
    warnings.push_back(absl::StrCat(solves.capped, " solves at '", solves.site,
                                    "' ended at their cap above the tolerance; adjoint_solves has "
                                    "the largest residual"));
  }
  return warnings;
}

// A sum is in the accumulator; what one instance gave is in the format, and is not rounded before it is
// added.
sim::DType DTypeOfNodes(const precision::RoleSetting& setting) {
  using precision::Format;
  const Format format = setting.format;
  const Format accumulator = setting.accumulator;
  if (format == accumulator) return sim::DTypeOf(format);
  const bool is_f64 = format == Format::kF64 || accumulator == Format::kF64;
  return sim::DTypeOf(is_f64 ? Format::kF64 : Format::kF32);
}

void WriteArithmetic(const std::vector<sim::OperationArithmetic>& rows,
                     google::protobuf::RepeatedPtrField<v1::Arithmetic>& out) {
  for (const sim::OperationArithmetic& row : rows) {
    v1::Arithmetic* message = out.Add();
    message->set_role(std::string(precision::RoleName(row.role)));
    message->set_operation(row.operation);
    message->set_label(row.label);
    message->set_site(row.site);
    message->set_results(row.counts.results);
    message->set_underflows(row.counts.underflows);
    message->set_overflows(row.counts.overflows);
    message->set_additions(row.counts.additions);
    message->set_absorbed(row.counts.absorbed);
  }
}

}  // namespace

v1::RolloutResult RolloutResultToProto(const sim::Work& work, const sim::WorkResult& result) {
  v1::RolloutResult out;
  const sim::NumericalProgram& program = *work.batch.program;
  const std::vector<int32_t> states = program.program.InputsOf(sim::InputKind::kState);
  for (size_t i = 0; i < result.final_states.size(); ++i) {
    v1::NamedTensor* state = out.add_final_state();
    state->set_name(program.program.inputs[states[i]].name);
    WriteTensor(result.final_states[i], *state->mutable_tensor());
  }
  if (!program.objective.empty()) {
    out.set_value(result.value);
    out.set_values(BytesOf(result.values));
  }
  out.set_path_signatures(BytesOf(result.path_signatures));
  out.set_batch_path_signature(result.batch_path_signature);
  WriteHealth(result.health, *out.mutable_health());
  WriteHalts(program.halts, result.halts, *out.mutable_health());
  size_t event = 0;
  for (const sim::Site& site : program.sites) {
    if (site.kind != sim::SiteKind::kEvent || event >= result.first_event_steps.size()) continue;
    v1::FirstEvent* first = out.add_first_events();
    first->set_site(site.name);
    first->set_steps(BytesOf(result.first_event_steps[event++]));
  }
  for (const sim::BirthCertificate& certificate : result.certificates) {
    WriteCertificate(certificate, *out.add_certificates());
  }
  WriteArithmetic(result.arithmetic.forward, *out.mutable_arithmetic());
  (*out.mutable_phase_seconds())["forward"] = result.seconds.forward;
  if (work.arithmetic_instances > 0) {
    (*out.mutable_phase_seconds())["arithmetic"] = result.seconds.arithmetic;
  }
  if (work.gradient) {
    (*out.mutable_phase_seconds())["recompute"] = result.seconds.recompute;
    (*out.mutable_phase_seconds())["adjoint"] = result.seconds.adjoint;
  }
  return out;
}

v1::GradientResult GradientResultToProto(const sim::Work& work, const sim::WorkResult& result) {
  v1::GradientResult out;
  *out.mutable_rollout() = RolloutResultToProto(work, result);
  const sim::NumericalProgram& program = *work.batch.program;
  const sim::DType tree_dtype = DTypeOfNodes(program.policy[precision::Role::kGradient]);
  for (const sim::InputGradient& gradient : result.gradients) {
    const sim::Input& input = program.program.inputs[gradient.input];
    v1::InputGradient* message = out.add_gradients();
    message->set_kind(ToProto(input.kind));
    message->set_name(input.name);
    WriteTensor(gradient.gradient, *message->mutable_gradient());
    message->set_connected(gradient.connected);
    message->set_gated_by(gradient.gated_by);
    message->set_zero(gradient.magnitudes.zero);
    message->set_smallest(gradient.magnitudes.smallest);
    message->set_largest(gradient.magnitudes.largest);
    WriteTree(gradient.tree, tree_dtype, *message);
  }
  out.set_loss_scale(result.loss_scale);
  out.set_skipped(result.skipped);
  out.set_left_out(result.left_out);
  if (result.norm) out.set_norm(*result.norm);
  for (const sim::AdjointSolves& solves : result.adjoint_solves) {
    v1::AdjointSolves* message = out.add_adjoint_solves();
    message->set_site(solves.site);
    message->set_solves(solves.solves);
    message->set_turns(solves.turns);
    message->set_most_turns(solves.most_turns);
    message->set_capped(solves.capped);
    message->set_residual(solves.residual);
  }
  WriteArithmetic(result.arithmetic.adjoint, *out.mutable_arithmetic());
  for (auto& warnings :
       {LossScaleWarnings(work, result), UnconvergedWarnings(result), CappedWarnings(result)}) {
    for (const std::string& warning : warnings) out.add_warnings(warning);
  }
  return out;
}

std::vector<v1::TensorPiece> SplitOff(v1::RolloutResult& result, int64_t max_bytes) {
  const int64_t size = static_cast<int64_t>(result.ByteSizeLong());
  if (size <= max_bytes) return {};
  return Split(SplittableOf(result), size, max_bytes);
}

std::vector<v1::TensorPiece> SplitOff(v1::GradientResult& result, int64_t max_bytes) {
  const int64_t size = static_cast<int64_t>(result.ByteSizeLong());
  if (size <= max_bytes) return {};
  std::vector<Splittable> fields = SplittableOf(*result.mutable_rollout());
  for (v1::InputGradient& gradient : *result.mutable_gradients()) {
    const std::string input =
        absl::StrCat(validation::KindName(gradient.kind()), ".", gradient.name());
    fields.push_back({absl::StrCat("gradient.", input),
                      static_cast<int64_t>(gradient.gradient().inline_().size()),
                      [&gradient] { return TakeTensor(*gradient.mutable_gradient()); }});
    for (int i = 0; i < gradient.tree_size(); ++i) {
      std::string& value = *gradient.mutable_tree(i)->mutable_value();
      fields.push_back({absl::StrCat("tree.", input, ".", i), static_cast<int64_t>(value.size()),
                        [&value] { return std::exchange(value, std::string()); }});
    }
  }
  return Split(std::move(fields), size, max_bytes);
}

std::vector<v1::TensorPiece> SplitOff(v1::Comparison& comparison, int64_t max_bytes) {
  const int64_t size = static_cast<int64_t>(comparison.ByteSizeLong());
  if (size <= max_bytes) return {};
  std::vector<Splittable> fields;
  const auto add = [&](const char* name, std::string* data) {
    fields.push_back({name, static_cast<int64_t>(data->size()),
                      [data] { return std::exchange(*data, std::string()); }});
  };
  add("comparison.first_steps", comparison.mutable_first_steps());
  add("comparison.first_sites", comparison.mutable_first_sites());
  add("comparison.first_elements", comparison.mutable_first_elements());
  return Split(std::move(fields), size, max_bytes);
}

std::string GradientField(const sim::Input& input) {
  return absl::StrCat("gradient.", validation::KindName(ToProto(input.kind)), ".", input.name);
}

std::vector<v1::TensorPiece> Pieces(const std::string& field, const std::string& data,
                                    int64_t max_bytes) {
  std::vector<v1::TensorPiece> pieces;
  const int64_t size = static_cast<int64_t>(data.size());
  for (int64_t offset = 0; offset < size; offset += max_bytes) {
    pieces.push_back(PieceAt(offset, field, data, max_bytes));
  }
  return pieces;
}

v1::TensorPiece PieceAt(int64_t offset, const std::string& field, const std::string& data,
                        int64_t max_bytes) {
  const int64_t size = static_cast<int64_t>(data.size());
  const int64_t count = std::min(max_bytes, size - offset);
  v1::TensorPiece piece;
  piece.set_field(field);
  piece.set_offset(offset);
  piece.set_data(data.data() + offset, static_cast<size_t>(count));
  piece.set_last(offset + count == size);
  return piece;
}

}  // namespace simgrad::server::conversion
