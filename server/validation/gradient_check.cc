#include "server/validation/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "server/validation/tensor_check.h"

namespace simgrad::server::validation {
namespace {

using Tensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

absl::Status CheckCotangent(const FieldSchema& declared, const v1::NamedTensor& sent,
                            const std::vector<int64_t>& leading, const std::string& path) {
  if (declared.element != v1::ELEMENT_TYPE_REAL) {
    return InvalidField(path + ".name",
                        absl::StrCat("'", declared.name, "' is not real and has no cotangent"));
  }
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
    const FieldSchema* state = schema.inputs.Find(v1::INPUT_KIND_STATE, list[i].name());
    if (state == nullptr) {
      return InvalidField(path + ".name",
                          absl::StrCat("unknown state '", list[i].name(), "'; the world has: ",
                                       NamesOf(schema.inputs, v1::INPUT_KIND_STATE)));
    }
    if (absl::Status status = CheckCotangent(*state, list[i], {instances}, path); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTrajectory(const Tensors& list, const ProgramSchema& schema, int64_t instances,
                             int64_t steps) {
  for (int i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("cotangents[0].trajectory[", i, "]");
    int64_t times = steps + 1;
    const FieldSchema* field = schema.inputs.Find(v1::INPUT_KIND_STATE, list[i].name());
    if (field == nullptr) {
      field = schema.observables.Find(v1::INPUT_KIND_UNSPECIFIED, list[i].name());
      times = steps;
    }
    if (field == nullptr) {
      return InvalidField(
          path + ".name",
          absl::StrCat("unknown state or observable '", list[i].name(),
                       "'; states: ", NamesOf(schema.inputs, v1::INPUT_KIND_STATE),
                       "; observables: ", NamesOf(schema.observables, v1::INPUT_KIND_UNSPECIFIED)));
    }
    if (absl::Status status = CheckCotangent(*field, list[i], {instances, times}, path);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWrt(const v1::GradientRequest& request, const ProgramSchema& schema) {
  std::set<std::pair<int, std::string>> seen;
  for (int i = 0; i < request.wrt_size(); ++i) {
    const v1::InputName& name = request.wrt(i);
    const std::string path = absl::StrCat("wrt[", i, "]");
    if (name.kind() == v1::INPUT_KIND_UNSPECIFIED) {
      return InvalidField(absl::StrCat(path, ".kind"), "must be state, param or control");
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

bool SendsCotangents(const v1::GradientRequest& request) {
  return request.cotangents_size() > 0 && (request.cotangents(0).final_state_size() > 0 ||
                                           request.cotangents(0).trajectory_size() > 0);
}

}  // namespace

absl::Status CheckGradientMessage(const v1::GradientRequest& request) {
  if (request.return_tree()) {
    return NotSupported("return_tree", "this server returns sums, not the nodes of their trees");
  }
  if (request.cotangents_size() > 1) {
    return NotSupported("cotangents[1]", "this server takes one cotangent per request");
  }
  if (!v1::InstanceReduction_IsValid(request.reduction())) {
    return InvalidField("reduction",
                        absl::StrCat("unknown value ", static_cast<int>(request.reduction()),
                                     "; one of ALL, FINITE_ONLY"));
  }
  if (request.spec().objective().empty() && !SendsCotangents(request)) {
    return InvalidField("spec.objective", "name an objective, or send cotangents");
  }
  if (request.cotangents_size() > 0 && !SendsCotangents(request)) {
    return InvalidField("cotangents[0]",
                        "is empty; send final_state or trajectory, or leave it out");
  }
  for (int i = 0; i < request.weights_size(); ++i) {
    if (!std::isfinite(request.weights(i))) {
      return InvalidField(absl::StrCat("weights[", i, "]"),
                          absl::StrCat("must be finite, not ", request.weights(i)));
    }
  }
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
      CheckTensors(request.cotangents(0).final_state(), "cotangents[0].final_state");
  if (!status.ok()) return status;
  return CheckTensors(request.cotangents(0).trajectory(), "cotangents[0].trajectory");
}

absl::Status CheckGradient(const v1::GradientRequest& request, const ProgramSchema& schema,
                           int64_t instances) {
  if (request.weights_size() > 0 && request.weights_size() != instances) {
    return InvalidField("weights",
                        absl::StrCat("has ", request.weights_size(),
                                     " entries; send none or one per instance (", instances, ")"));
  }
  if (request.cotangents_size() > 0) {
    const v1::Cotangent& sent = request.cotangents(0);
    absl::Status status = CheckFinalStates(sent.final_state(), schema, instances);
    if (status.ok()) {
      status = CheckTrajectory(sent.trajectory(), schema, instances, request.spec().steps());
    }
    if (!status.ok()) return status;
  }
  return CheckWrt(request, schema);
}

}  // namespace simgrad::server::validation
