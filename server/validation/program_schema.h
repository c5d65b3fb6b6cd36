// What a request is checked against: the fields that a program declares.
//
// Plain data, made from a program by server/conversion/schema.h; so the checks here know messages
// only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simgrad/v1/program.pb.h"

namespace simgrad::server::validation {

struct FieldSchema {
  v1::InputKind kind = v1::INPUT_KIND_UNSPECIFIED;  // of an input
  std::string name;
  v1::ElementType element = v1::ELEMENT_TYPE_REAL;
  std::vector<int64_t> shape;  // of one instance at one step
  bool differentiable = false;
};

struct ProgramSchema {
  std::vector<FieldSchema> inputs;
  std::vector<FieldSchema> observables;
  std::vector<std::string> objectives;
};

// Null where there is none.
const FieldSchema* FindField(const std::vector<FieldSchema>& fields, v1::InputKind kind,
                             const std::string& name);

// "a, b, c" of the names of one kind, for messages; "none" where there is none.
std::string NamesOf(const std::vector<FieldSchema>& fields, v1::InputKind kind);

// state, param, ...
std::string KindName(v1::InputKind kind);

}  // namespace simgrad::server::validation
