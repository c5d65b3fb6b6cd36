#include "sim/backend/reference/read_cotangents.h"

#include <cstdint>

namespace simgrad::sim::reference {
namespace {

void MarkRead(const Region& region, std::vector<bool>& read) {
  for (const Op& op : region.ops) {
    for (ValueId id : op.operands) {
      if (id != ValueId::kNone) read[Index(id)] = true;
    }
    for (const Region& nested : op.regions) {
      MarkRead(nested, read);
      for (ValueId id : nested.yields) {
        if (id != ValueId::kNone) read[Index(id)] = true;
      }
    }
  }
}

class Finder {
 public:
  explicit Finder(const NumericalProgram& program)
      : program_(program), adjoint_(*program.adjoint), read_(program.program.values.size()) {
    for (const Region* region : RegionsOf(adjoint_)) MarkRead(*region, read_);
  }

  ReadCotangents Find() {
    states_ = program_.program.InputsOf(InputKind::kState);
    const size_t n = states_.size(), e = program_.program.exports.size();
    const size_t seeds = program_.stage_cost == ValueId::kNone ? 0 : 1;
    for (size_t j = 0; j < n; ++j) leaving_.push_back(LeavesToGradient(j));
    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t j = 0; j < n; ++j) {
        if (leaving_[j] || !IsReadInStep(seeds + j)) continue;
        leaving_[j] = changed = true;
      }
    }
    ReadCotangents found;
    const size_t first = TerminalOf(program_) == nullptr ? 0 : 1;
    for (size_t j = 0; j < n; ++j) {
      found.final_state.push_back(IsRead(adjoint_.terminal, first + j));
      found.trajectory_state.push_back(IsRead(adjoint_.terminal, first + n + j) ||
                                       IsReadInStep(seeds + n + 2 * e + j));
    }
    for (size_t k = 0; k < e; ++k) {
      found.trajectory_export.push_back(IsReadInStep(seeds + n + e + k));
    }
    return found;
  }

 private:
  // Whether an operation reads the argument, or a slot that leaves takes it where it is read later.
  bool IsRead(const Region& region, size_t arg) const {
    const ValueId id = region.args[arg];
    if (id == ValueId::kNone) return false;
    if (read_[Index(id)]) return true;
    for (size_t k = 0; k < leaving_.size(); ++k) {
      if (region.yields[k] == id && leaving_[k]) return true;
    }
    return false;
  }

  bool IsReadInStep(size_t arg) const {
    return IsRead(adjoint_.inner, arg) || (adjoint_.last && IsRead(*adjoint_.last, arg));
  }

  // Whether the cotangent of z[0] is read, as part of the gradient or by the adjoint of `initial`.
  bool LeavesToGradient(size_t j) const {
    const auto is_wanted = [&](size_t k) {
      return program_.adjoint_spec->wanted[static_cast<size_t>(states_[k])];
    };
    if (!program_.program.HasInitial()) return is_wanted(j);
    const ValueId id = adjoint_.initial.args[j];
    if (id == ValueId::kNone) return false;
    if (read_[Index(id)]) return true;
    for (size_t k = 0; k < states_.size(); ++k) {
      if (adjoint_.initial.yields[k] == id && is_wanted(k)) return true;
    }
    return false;
  }

  const NumericalProgram& program_;
  const Adjoint& adjoint_;
  std::vector<bool> read_;  // by value: by an operation, or by a region of one as its result
  std::vector<int32_t> states_;
  std::vector<bool> leaving_;  // by state: whether what a step yields for z[t] is read
};

}  // namespace

ReadCotangents FindReadCotangents(const NumericalProgram& program) {
  return Finder(program).Find();
}

}  // namespace simgrad::sim::reference
