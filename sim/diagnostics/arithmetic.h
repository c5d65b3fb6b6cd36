// Rows of what rounding did to the numbers of operations, as an answer tells them.
//
// Maths: docs/semantics.md, "Arithmetic". Errors: none. Threads: plain data.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "precision/policy.h"
#include "sim/op/arithmetic_counter.h"

namespace simgrad::sim {

struct OperationArithmetic {
  precision::Role role = precision::Role::kDynamics;
  std::string operation;  // its name; empty: every operation of the role
  std::string label;      // a line of the caller's; may be empty
  std::string site;       // its own, else of the loop around it; may be empty
  ArithmeticCounts counts;
  bool operator==(const OperationArithmetic&) const = default;
};

// The most operations that an answer tells. Rows of roles count the others too.
inline constexpr size_t kMostArithmeticRows = 256;

// One run: every role that gave a number; then the operations, those that lost most first, in the
// order of role, operation, label, site where they lost as much.
struct Arithmetic {
  std::vector<OperationArithmetic> forward;
  std::vector<OperationArithmetic> adjoint;
  bool operator==(const Arithmetic&) const = default;
};

// Counts of operations, to be told.
class ArithmeticTable {
 public:
  // Stays where it is.
  ArithmeticCounts& Of(precision::Role role, std::string_view operation, std::string_view label,
                       std::string_view site);
  std::vector<OperationArithmetic> Rows() const;

 private:
  using Key = std::tuple<precision::Role, std::string, std::string, std::string>;
  std::map<Key, ArithmeticCounts> rows_;
};

}  // namespace simgrad::sim
