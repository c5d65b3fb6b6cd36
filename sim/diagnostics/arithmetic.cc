#include "sim/diagnostics/arithmetic.h"

#include <algorithm>
#include <iterator>

namespace simgrad::sim {

ArithmeticCounts& ArithmeticTable::Of(precision::Role role, std::string_view operation,
                                      std::string_view label, std::string_view site) {
  return rows_[Key(role, operation, label, site)];
}

std::vector<OperationArithmetic> ArithmeticTable::Rows() const {
  std::vector<OperationArithmetic> roles;
  std::vector<OperationArithmetic> operations;
  for (const auto& [key, counts] : rows_) {
    const auto& [role, operation, label, site] = key;
    if (counts == ArithmeticCounts{}) continue;
    if (roles.empty() || roles.back().role != role) roles.push_back({.role = role});
    roles.back().counts.Merge(counts);
    operations.push_back({role, operation, label, site, counts});
  }
  std::stable_sort(operations.begin(), operations.end(),
                   [](const auto& a, const auto& b) { return a.counts.lost() > b.counts.lost(); });
  if (operations.size() > kMostArithmeticRows) operations.resize(kMostArithmeticRows);
  std::move(operations.begin(), operations.end(), std::back_inserter(roles));
  return roles;
}

}  // namespace simgrad::sim
