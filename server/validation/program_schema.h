// The schema that a request is checked against: the fields that a program declares.
//
// Plain data, made from a program by server/conversion/schema.h; so the checks here know messages
// only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "simgrad/v1/program.pb.h"

namespace simgrad::server::validation {

struct FieldSchema {
  v1::InputKind kind = v1::INPUT_KIND_UNSPECIFIED;  // of an input
  std::string name;
  v1::ElementType element = v1::ELEMENT_TYPE_REAL;
  std::vector<int64_t> shape;  // of one instance at one step
  bool differentiable = false;
  bool weights = false;  // all instances share it
};

// Fields in the program's order, found by kind and name in constant time.
class FieldTable {
 public:
  void Add(FieldSchema field);
  // Null where there is none.
  const FieldSchema* Find(v1::InputKind kind, const std::string& name) const;
  const FieldSchema& operator[](size_t i) const { return fields_[i]; }
  std::vector<FieldSchema>::const_iterator begin() const { return fields_.begin(); }
  std::vector<FieldSchema>::const_iterator end() const { return fields_.end(); }

 private:
  std::vector<FieldSchema> fields_;
  std::map<v1::InputKind, std::unordered_map<std::string, size_t>> places_;
};

struct ProgramSchema {
  FieldTable inputs;
  FieldTable observables;
  std::vector<std::string> objectives;
};

// "a, b, c" of the names of one kind, for messages; "none" where there is none.
std::string NamesOf(const FieldTable& fields, v1::InputKind kind);

// state, param, ...
std::string KindName(v1::InputKind kind);

}  // namespace simgrad::server::validation
