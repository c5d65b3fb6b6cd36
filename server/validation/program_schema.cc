#include "server/validation/program_schema.h"

#include <utility>

namespace simgrad::server::validation {

void FieldTable::Add(FieldSchema field) {
  places_[field.kind].try_emplace(field.name, fields_.size());
  fields_.push_back(std::move(field));
}

const FieldSchema* FieldTable::Find(v1::InputKind kind, const std::string& name) const {
  const auto of_kind = places_.find(kind);
  if (of_kind == places_.end()) return nullptr;
  const auto place = of_kind->second.find(name);
  return place == of_kind->second.end() ? nullptr : &fields_[place->second];
}

std::string NamesOf(const FieldTable& fields, v1::InputKind kind) {
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
