#include "sim/backend/compiled/analysis/statement_cost.h"

#include <algorithm>

namespace simgrad::sim::compiled {

using plan::Code;
using plan::Statement;

int64_t CostOf(const std::vector<Statement>& statements) {
  int64_t cost = 0;
  for (const Statement& s : statements) {
    ++cost;
    if (s.code == Code::kExactSum) cost += s.number;
    if (s.code == Code::kEach && !IsLong(s)) cost += s.number * CostOf(s.body);
    if (s.code == Code::kCommit || s.code == Code::kIf) cost += CostOf(s.body);
  }
  return cost;
}

bool IsLong(const Statement& s) {
  constexpr int64_t kShort = 256;
  return s.code == Code::kEach && (!s.operands.empty() || s.number * CostOf(s.body) > kShort);
}

bool HasLoop(const std::vector<Statement>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Statement& s) {
    return s.code == Code::kEach || s.code == Code::kRepeat || HasLoop(s.body);
  });
}

bool IsArithmetic(const std::vector<Statement>& statements) {
  return std::all_of(statements.begin(), statements.end(), [](const Statement& s) {
    return s.code == Code::kCall || s.code == Code::kLoad || s.code == Code::kStore ||
           s.code == Code::kConstant || s.code == Code::kAbsorbed;
  });
}

bool HasAddition(const std::vector<Statement>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Statement& s) {
    return s.code == Code::kAbsorbed || HasAddition(s.body);
  });
}

namespace {

// `left`: statements that may be written twice besides.
bool IsShort(const std::vector<Statement>& statements, int64_t& left) {
  left -= static_cast<int64_t>(statements.size());
  return left >= 0 && std::all_of(statements.begin(), statements.end(), [&](const Statement& s) {
           const bool is_number = s.code == Code::kNumber || s.code == Code::kInteger ||
                                  s.code == Code::kConstant || s.code == Code::kTime;
           const bool is_work = s.code == Code::kCall || s.code == Code::kDeclare ||
                                s.code == Code::kLoad || s.code == Code::kStore;
           const bool is_record = s.code == Code::kLook || s.code == Code::kRange ||
                                  s.code == Code::kStored || s.code == Code::kAbsorbed;
           return is_number || is_work || is_record ||
                  (s.code == Code::kEach && IsShort(s.body, left));
         });
}

}  // namespace

bool MayBeWrittenTwice(const std::vector<Statement>& statements) {
  constexpr int64_t kTwice = 100;
  int64_t left = kTwice;
  return IsShort(statements, left);
}

int64_t MostCounted(const std::vector<Statement>& statements) {
  int64_t most = 0;
  for (const Statement& s : statements) {
    if (s.code == Code::kRange || s.code == Code::kAbsorbed) most += s.number;
    if (s.code == Code::kStored || s.code == Code::kTake) ++most;
    most += MostCounted(s.body);
  }
  return most;
}

bool HasPush(const std::vector<Statement>& statements) {
  return std::any_of(statements.begin(), statements.end(),
                     [](const Statement& s) { return s.code == Code::kPush || HasPush(s.body); });
}

}  // namespace simgrad::sim::compiled
