// Gives every real value its format, and writes the casts between roles into the program.
//
// Each operation computes in the format of its role (of its site, where the policy names that);
// operands that come in another format are cast; inputs and literals are rounded once, from their
// exact number to the format in which they are used. A cast stands in the region where its operand
// is defined, casts of inputs at the top; so a loop does not repeat them. Source: docs/numerics.md
// sections 2, 3 and 8.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "precision/policy.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class PrecisionAssigner {
 public:
  // `program` outlives the assigner. State inputs get the format of role state, all others the
  // exact carrier f64.
  PrecisionAssigner(Program& program, const precision::Policy& policy, PassBudget& budget);

  // Formats of the arguments of a top-level region; kNone is skipped.
  void SetFormat(ValueId value, Role role);
  // Assigns `region`; its real yields are cast into `role`.
  void AssignRegion(Region& region, Role role);

 private:
  // What a cast is known by.
  struct Cast {
    ValueId source;
    Format format;
    Overflow overflow;
    Role role;
    bool operator==(const Cast&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Cast& cast) {
      return H::combine(std::move(hash), cast.source, cast.format, cast.overflow, cast.role);
    }
  };
  // A region being rewritten.
  struct Frame {
    std::vector<Op> ops;
    absl::flat_hash_map<Cast, ValueId> casts;  // to their results
  };

  precision::RoleSetting SettingAt(Role role, const std::string& site) const;
  precision::RoleSetting SettingOf(const Op& op) const;
  void Visit(Op op);
  void VisitCast(Op& op);
  void VisitTape(Op& op);
  void VisitWhile(Op& op);
  void VisitFor(Op& op);
  void VisitVjp(Op& op);
  void VisitOps(Region& region);
  void Define(const Op& op);
  void SetReal(ValueId value, Format format);
  ValueId Bring(ValueId value, const precision::RoleSetting& setting, const Op& user);
  // As Bring, for the next state: where its role saturates, a value that has its format already is
  // clamped too.
  ValueId Store(ValueId value, const Op& user);
  void Push(Frame& frame, Op op);
  ValueId AddLike(ValueId value, int frame, ValueId where, Format format);
  ValueId CastOf(ValueId value, const precision::RoleSetting& setting, const Op& user);
  void BringAll(std::vector<ValueId>& values, size_t first, size_t count,
                const precision::RoleSetting& setting, const Op& user);
  ValueId LiteralIn(ValueId value, Format format);
  bool IsReal(ValueId id) const;
  bool IsLiteral(ValueId id) const { return literal_of_.contains(id); }

  Program& program_;
  const precision::Policy& policy_;
  // For each site that the policy names: the policy with what it says of that site alone.
  absl::flat_hash_map<std::string, precision::Policy> policy_of_;
  PassBudget& budget_;
  std::vector<Frame> frames_;
  // By value; grown as casts are added.
  std::vector<int> frame_of_;
  std::vector<ValueId> where_of_;
  std::vector<bool> is_outside_;  // inputs other than states
  std::vector<bool> is_stored_;   // states, and what was clamped into role state
  absl::flat_hash_map<ValueId, Op> literal_of_;
};

}  // namespace simgrad::sim
