// Says which operations decide, which name a path has for each, and which of them it leaves out.
//
// Threads: one object, one thread. Cost: linear in the program, at construction and
// in all calls of ColumnOf together.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/path_layout.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Whether an operation chooses the pivots of its matrix, or tells of them: lu, lu_permutation and
// lu_pivots, if they are given none.
bool HasPivots(const Op& op);
// The pivots of an operation of which HasPivots holds: of a matrix in the format that a role or a
// site gives. Operations of one key in one region have the same.
using PivotsKey = std::tuple<ValueId, Role, std::string>;
PivotsKey PivotsOf(const Op& op);

// By value, whether a conversion to an integer that decides gives it: one in `region`, a region of the
// program, that reaches a predicate, a choice or a place.
std::vector<bool> DecidingConversions(const Program& program, const Region& region,
                                      PassBudget& budget);

// Whether an operation decides by reals outside of sites. `converts`: DecidingConversions.
bool DecidesByReals(const Program& program, const Op& op, const std::vector<bool>& converts);

// Adds a lu_permutation to each region that factors a matrix and does not say the order of its rows.
void NamePivots(Program& program, PassBudget& budget);

// The decisions of `initial` and `step` of a program behind NamePivots.
class PathDecisions {
 public:
  // The program and the budget outlive the object; the program keeps the operations that it has.
  PathDecisions(const Program& program, PassBudget& budget);

  bool Decides(const Op& op) const;
  // A column without its place; gives each name once. `where` is in front of a name without a site.
  PathColumn ColumnOf(const Op& op, std::string_view where);
  // The pivots that the operation decides; null: it decides something else.
  const PivotsKey* PivotsBy(const Op& op) const;

  // Values inside the test of a loop that its exports hang on.
  static std::unordered_set<size_t> BehindExports(const Op& loop);
  // Whether an operation of that test only stops the loop.
  static bool OnlyStops(const Op& op, const std::unordered_set<size_t>& behind_exports);

 private:
  void Read(const Region& region);
  std::string Unique(const std::string& name);
  std::string NameOfUnlisted(const Op& op, std::string_view where);
  void ReadMost(const Op& op);
  int64_t MostOf(const Op& op) const;

  const Program& program_;
  PassBudget& budget_;
  std::vector<bool> converts_;                     // by value: a conversion that decides gives it
  std::unordered_map<size_t, int64_t> most_;       // by result of argmax, ...: its largest number
  std::unordered_set<size_t> chosen_;              // what a choice passes on
  std::unordered_map<size_t, PivotsKey> pivots_;   // by result of what decides them
  std::set<std::string> sites_;                    // of the world
  std::set<std::string> given_;                    // names of columns
  std::unordered_map<std::string, int64_t> next_;  // by name: the last number behind it
  std::unordered_map<std::string, std::string> clear_;  // by name: the one that no site has
};

}  // namespace simgrad::sim
