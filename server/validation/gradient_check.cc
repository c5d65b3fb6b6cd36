#include "server/validation/gradient_check.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "server/validation/tensor_check.h"
#include "sim/program/field_error.h"

namespace simgrad::server::validation {
namespace {

using Tensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;
using Names = google::protobuf::RepeatedPtrField<std::string>;

absl::StatusOr<const FieldSchema*> Real(const FieldSchema& declared, const std::string& path) {
  if (declared.element == v1::ELEMENT_TYPE_REAL) return &declared;
  return InvalidField(path, absl::StrCat("'", declared.name, "' is not real and has no cotangent"));
}

// The state called `name`, which the field `path` holds.
absl::StatusOr<const FieldSchema*> FindState(const std::string& name, const ProgramSchema& schema,
                                             const std::string& path) {
  const FieldSchema* state = schema.inputs.Find(v1::INPUT_KIND_STATE, name);
  if (state != nullptr) return Real(*state, path);
  return InvalidField(path, absl::StrCat("unknown state '", name, "'; the world has: ",
                                         NamesOf(schema.inputs, v1::INPUT_KIND_STATE)));
}

// The state, else the observable, called `name`, which the field `path` holds.
absl::StatusOr<const FieldSchema*> FindRecorded(const std::string& name,
                                                const ProgramSchema& schema,
                                                const std::string& path) {
  const FieldSchema* field = schema.inputs.Find(v1::INPUT_KIND_STATE, name);
  if (field == nullptr) field = schema.observables.Find(v1::INPUT_KIND_UNSPECIFIED, name);
  if (field != nullptr) return Real(*field, path);
  return InvalidField(
      path,
      absl::StrCat("unknown state or observable '", name,
                   "'; states: ", NamesOf(schema.inputs, v1::INPUT_KIND_STATE),
                   "; observables: ", NamesOf(schema.observables, v1::INPUT_KIND_UNSPECIFIED)));
}

absl::Status CheckCotangent(const FieldSchema& declared, const v1::NamedTensor& sent,
                            const std::vector<int64_t>& leading, const std::string& path) {
  if (!IsRealDType(sent.tensor().dtype())) {
    return InvalidField(path + ".tensor.dtype", absl::StrCat("a cotangent is real, not ",
                                                             DTypeLabel(sent.tensor().dtype())));
  }
  std::vector<int64_t> right = leading;
  right.insert(right.end(), declared.shape.begin(), declared.shape.end());
  const auto& shape = sent.tensor().shape();
  if (!std::equal(right.begin(), right.end(), shape.begin(), shape.end())) {
    return InvalidField(path + ".tensor.shape",
                        absl::StrCat("the cotangent of '", declared.name, "' has shape [",
                                     absl::StrJoin(right, ", "), "], not ", ShapeText(shape)));
  }
  return absl::OkStatus();
}

absl::Status CheckFinalStates(const Tensors& list, const ProgramSchema& schema, int64_t instances) {
  for (int i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("cotangents[0].final_state[", i, "]");
    const auto state = FindState(list[i].name(), schema, path + ".name");
    if (!state.ok()) return state.status();
    if (absl::Status status = CheckCotangent(**state, list[i], {instances}, path); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTrajectory(const Tensors& list, const ProgramSchema& schema, int64_t instances,
                             int64_t steps) {
  for (int i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("cotangents[0].trajectory[", i, "]");
    const auto field = FindRecorded(list[i].name(), schema, path + ".name");
    if (!field.ok()) return field.status();
    const int64_t times = (*field)->kind == v1::INPUT_KIND_STATE ? steps + 1 : steps;
    if (absl::Status status = CheckCotangent(**field, list[i], {instances, times}, path);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

// `find`: FindState or FindRecorded.
template <class Find>
absl::Status CheckNames(const Names& names, const ProgramSchema& schema, const std::string& field,
                        Find find) {
  std::set<std::string_view> seen;
  for (int i = 0; i < names.size(); ++i) {
    const std::string path = absl::StrCat(field, "[", i, "]");
    const auto found = find(names[i], schema, path);
    if (!found.ok()) return found.status();
    if (seen.insert(names[i]).second) continue;
    return InvalidField(path, absl::StrCat("'", names[i], "' stands twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckWrt(const google::protobuf::RepeatedPtrField<v1::InputName>& wrt,
                      const ProgramSchema& schema) {
  std::set<std::pair<int, std::string>> seen;
  for (int i = 0; i < wrt.size(); ++i) {
    const v1::InputName& name = wrt[i];
    const std::string path = absl::StrCat("wrt[", i, "]");
    if (name.kind() == v1::INPUT_KIND_UNSPECIFIED || !v1::InputKind_IsValid(name.kind())) {
      return InvalidField(
          absl::StrCat(path, ".kind"),
          absl::StrCat("must be state, param or control, not the number ", name.kind()));
    }
    const FieldSchema* input = schema.inputs.Find(name.kind(), name.name());
    if (input == nullptr || !input->differentiable) {
      std::string known;
      for (const FieldSchema& field : schema.inputs) {
        if (!field.differentiable) continue;
        absl::StrAppend(&known, known.empty() ? "" : ", ", KindName(field.kind), ".", field.name);
      }
      return InvalidField(path,
                          absl::StrCat("no differentiable ", KindName(name.kind()), " is called '",
                                       name.name(), "'; the world has: ", known));
    }
    if (!seen.insert({name.kind(), name.name()}).second) {
      return InvalidField(path, absl::StrCat("'", name.name(), "' stands twice"));
    }
  }
  return absl::OkStatus();
}

// The limits of each loop are checked where the program is known.
absl::Status CheckLoops(const google::protobuf::RepeatedPtrField<v1::LoopDerivative>& loops) {
  for (int i = 0; i < loops.size(); ++i) {
    const std::string path = absl::StrCat("loops[", i, "]");
    if (loops[i].how_case() == v1::LoopDerivative::HOW_NOT_SET) {
      return InvalidField(path, "say truncated or implicit; a loop is unrolled without this");
    }
    const std::string& solver = loops[i].implicit().solver();
    if (!solver.empty() && solver != "lu" && solver != "iteration" && solver != "gmres") {
      return InvalidField(
          path + ".implicit.solver",
          absl::StrCat("unknown solver '", solver, "'; one of lu, iteration, gmres"));
    }
    // `restart` is refused with the other numbers, in sim/program/loop_choice.cc.
    const bool has_tol = loops[i].implicit().tol() != 0;
    if (solver == "lu" && (has_tol || loops[i].implicit().max_iter() != 0)) {
      return InvalidField(absl::StrCat(path, ".implicit.", has_tol ? "tol" : "max_iter"),
                          "is of solvers iteration and gmres; lu takes no turns, leave it out");
    }
  }
  return absl::OkStatus();
}

bool SendsCotangents(const v1::GradientRequest& request) {
  return request.cotangents_size() > 0 && CheckNotEmpty(request.cotangents(0)).ok();
}

}  // namespace

absl::Status CheckNotEmpty(const v1::Cotangent& cotangent) {
  if (cotangent.final_state_size() + cotangent.trajectory_size() > 0) return absl::OkStatus();
  return InvalidField("cotangents[0]", "is empty; send final_state or trajectory, or leave it out");
}

absl::Status OfCotangent(int index, const absl::Status& status) {
  constexpr std::string_view kFirst = "cotangents[0]";
  const std::string field = sim::FieldOf(status);
  if (index == 0 || field.rfind(kFirst, 0) != 0) return status;
  std::string message(status.message());
  if (message.rfind(field + ": ", 0) == 0) message.erase(0, field.size() + 2);
  const std::string own = absl::StrCat("cotangents[", index, "]", field.substr(kFirst.size()));
  return WithReason(sim::FieldError(own, message), ReasonOf(status));
}

absl::Status CheckGradientMessage(const v1::GradientRequest& request, sim::WorkMeter& meter) {
  if (request.cotangents_size() > 1) {
    return NotSupported("cotangents[1]", "this server takes one cotangent per request");
  }
  if (!v1::InstanceReduction_IsValid(request.reduction())) {
    return InvalidField("reduction",
                        absl::StrCat("unknown value ", static_cast<int>(request.reduction()),
                                     "; one of ALL, FINITE_ONLY"));
  }
  // A norm that is infinite asks for the norm alone.
  if (request.has_clip_norm() && !(request.clip_norm() > 0)) {
    return InvalidField("clip_norm", absl::StrCat("must be positive, is ", request.clip_norm(),
                                                  "; leave it out to clip nothing"));
  }
  if (request.spec().objective().empty() && !SendsCotangents(request)) {
    return InvalidField("spec.objective", "name an objective, or send cotangents");
  }
  if (request.cotangents_size() > 0) {
    absl::Status status = CheckNotEmpty(request.cotangents(0));
    if (!status.ok()) return status;
  }
  if (absl::Status status = CheckLoops(request.loops()); !status.ok()) return status;
  if (request.cotangents_size() == 0) return absl::OkStatus();
  for (int i = 0; i < request.cotangents(0).final_state_size(); ++i) {
    if (request.cotangents(0).final_state(i).per_step()) {
      return InvalidField(absl::StrCat("cotangents[0].final_state[", i, "].per_step"),
                          "a final state has no axis for steps");
    }
  }
  for (int i = 0; i < request.cotangents(0).trajectory_size(); ++i) {
    if (request.cotangents(0).trajectory(i).per_step()) {
      return InvalidField(absl::StrCat("cotangents[0].trajectory[", i, "].per_step"),
                          "a trajectory always has its axis for times; leave it out");
    }
  }
  absl::Status status =
      CheckTensors(request.cotangents(0).final_state(), "cotangents[0].final_state", meter);
  if (!status.ok()) return status;
  return CheckTensors(request.cotangents(0).trajectory(), "cotangents[0].trajectory", meter);
}

absl::Status CheckGradient(const v1::GradientRequest& request, const ProgramSchema& schema,
                           int64_t instances) {
  if (request.cotangents_size() > 0) {
    const v1::Cotangent& sent = request.cotangents(0);
    absl::Status status = CheckFinalStates(sent.final_state(), schema, instances);
    if (status.ok()) {
      status = CheckTrajectory(sent.trajectory(), schema, instances, request.spec().steps());
    }
    if (!status.ok()) return status;
  }
  return CheckWrt(request.wrt(), schema);
}

absl::Status CheckDescribedAdjoint(const v1::DescribeProgramRequest& request,
                                   const ProgramSchema& schema) {
  if (!request.adjoint()) {
    for (const auto& [size, field] :
         {std::pair(request.wrt_size(), "wrt"),
          {request.cotangent_final_state_size(), "cotangent_final_state"},
          {request.cotangent_trajectory_size(), "cotangent_trajectory"},
          {request.loops_size(), "loops"}}) {
      if (size > 0) return InvalidField(field, "shapes an adjoint; set `adjoint`, or leave it out");
    }
    return absl::OkStatus();
  }
  if (request.objective().empty() && request.cotangent_final_state_size() == 0 &&
      request.cotangent_trajectory_size() == 0) {
    return InvalidField("objective", "an adjoint needs an objective, or cotangents");
  }
  absl::Status status =
      CheckNames(request.cotangent_final_state(), schema, "cotangent_final_state", FindState);
  if (status.ok()) {
    status =
        CheckNames(request.cotangent_trajectory(), schema, "cotangent_trajectory", FindRecorded);
  }
  if (status.ok()) status = CheckLoops(request.loops());
  return status.ok() ? CheckWrt(request.wrt(), schema) : status;
}

absl::Status CheckKeep(const v1::KeepOptions& keep, const ProgramSchema& schema) {
  absl::Status status =
      CheckNames(keep.cotangent_final_state(), schema, "keep.cotangent_final_state", FindState);
  if (status.ok()) {
    status =
        CheckNames(keep.cotangent_trajectory(), schema, "keep.cotangent_trajectory", FindRecorded);
  }
  if (status.ok()) status = sim::InField("keep", CheckLoops(keep.loops()));
  return status.ok() ? sim::InField("keep", CheckWrt(keep.wrt(), schema)) : status;
}

}  // namespace simgrad::server::validation
