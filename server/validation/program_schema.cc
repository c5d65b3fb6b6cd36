#include "server/validation/program_schema.h"

namespace simgrad::server::validation {

const FieldSchema* FindField(const std::vector<FieldSchema>& fields, v1::InputKind kind,
                             const std::string& name) {
  for (const FieldSchema& field : fields) {
    if (field.kind == kind && field.name == name) return &field;
  }
  return nullptr;
}

std::string NamesOf(const std::vector<FieldSchema>& fields, v1::InputKind kind) {
  std::string names;
  for (const FieldSchema& field : fields) {
    if (field.kind == kind) names += (names.empty() ? "" : ", ") + field.name;
  }
  return names.empty() ? "none" : names;
}

std::string KindName(v1::InputKind kind) {
  switch (kind) {
    case v1::INPUT_KIND_STATE:
      return "state";
    case v1::INPUT_KIND_PARAM:
      return "param";
    case v1::INPUT_KIND_CONTROL:
      return "control";
    case v1::INPUT_KIND_DATA:
      return "data";
    case v1::INPUT_KIND_CONFIG:
      return "config";
    case v1::INPUT_KIND_STEP:
      return "step";
    default:
      return "observable";
  }
}

}  // namespace simgrad::server::validation
