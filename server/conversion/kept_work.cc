#include "server/conversion/kept_work.h"

namespace simgrad::server::conversion {
namespace {

using Tensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

void AddShapes(const Tensors& from, Tensors& to) {
  for (const v1::NamedTensor& sent : from) {
    v1::NamedTensor* tensor = to.Add();
    tensor->set_name(sent.name());
    tensor->set_per_step(sent.per_step());
    tensor->mutable_tensor()->set_dtype(sent.tensor().dtype());
    *tensor->mutable_tensor()->mutable_shape() = sent.tensor().shape();
  }
}

// Copies the fields that shape a gradient, without the world and the numbers.
void CopyNames(const v1::RolloutSpec& from, v1::RolloutSpec& to) {
  to.set_steps(from.steps());
  to.set_objective(from.objective());
  AddShapes(from.initial(), *to.mutable_initial());
  AddShapes(from.params(), *to.mutable_params());
  AddShapes(from.controls(), *to.mutable_controls());
  AddShapes(from.data(), *to.mutable_data());
}

}  // namespace

v1::GradientRequest KeptGradient(const v1::KeepOptions& keep, const v1::RolloutSpec& spec,
                                 const sim::Program& program) {
  v1::GradientRequest gradient;
  CopyNames(spec, *gradient.mutable_spec());
  *gradient.mutable_wrt() = keep.wrt();
  *gradient.mutable_loops() = keep.loops();
  v1::Cotangent* cotangent = gradient.add_cotangents();
  for (const std::string& name : keep.cotangent_final_state()) {
    cotangent->add_final_state()->set_name(name);
  }
  for (const std::string& name : keep.cotangent_trajectory()) {
    cotangent->add_trajectory()->set_name(name);
  }
  if (cotangent->final_state_size() > 0) return gradient;
  for (int32_t input : program.InputsOf(sim::InputKind::kState)) {
    if (!program.IsReal(program.inputs[input].value)) continue;
    cotangent->add_final_state()->set_name(program.inputs[input].name);
  }
  return gradient;
}

v1::GradientRequest GradientOfVjp(const v1::VjpRequest& request, const v1::RolloutSpec& spec) {
  v1::GradientRequest gradient;
  CopyNames(spec, *gradient.mutable_spec());
  *gradient.mutable_wrt() = request.wrt();
  *gradient.mutable_loops() = request.loops();
  gradient.set_reduction(request.reduction());
  gradient.set_return_tree(request.return_tree());
  if (request.has_clip_norm()) gradient.set_clip_norm(request.clip_norm());
  if (request.cotangents_size() > 0) gradient.add_cotangents();
  return gradient;
}

v1::RolloutSpec WithoutContents(const v1::RolloutSpec& spec) {
  v1::RolloutSpec kept;
  CopyNames(spec, kept);
  if (spec.world().source_case() == v1::World::kName) *kept.mutable_world() = spec.world();
  *kept.mutable_policy() = spec.policy();
  kept.mutable_diagnostics()->set_level(spec.diagnostics().level());
  kept.set_chunk_steps(spec.chunk_steps());
  kept.set_seed(spec.seed());
  kept.mutable_path()->set_record(spec.path().record());
  if (spec.path().has_forced()) {
    kept.mutable_path()->mutable_forced()->set_structure(spec.path().forced().structure());
  }
  return kept;
}

bool SameCotangents(const sim::AdjointSpec& a, const sim::AdjointSpec& b) {
  return a.final_state == b.final_state && a.trajectory_state == b.trajectory_state &&
         a.trajectory_export == b.trajectory_export;
}

int64_t CotangentBytes(const std::vector<sim::Cotangents>& cotangents) {
  size_t numbers = 0;
  for (const sim::Cotangents& one : cotangents) {
    for (const auto* arrays : {&one.final_state, &one.trajectory_state, &one.trajectory_export}) {
      for (const std::vector<double>& array : *arrays) numbers += array.size();
    }
  }
  return 8 * static_cast<int64_t>(numbers);
}

}  // namespace simgrad::server::conversion
