// The state of one verification (verify.h): the values in scope, and the sizes counted so far.
//
// Used by verify.cc (tables, inputs, objectives), verify_operations.cc (regions and their
// operations) and verify_loops.cc only.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/program/halts.h"
#include "sim/program/loop.h"
#include "sim/program/verify.h"

namespace simgrad::sim::internal {

// The field of an element of a list.
inline std::string At(std::string_view list, size_t index) {
  return absl::StrCat(std::string(list), "[", index, "]");
}

// How far a value may be used, and what it hangs on.
struct Known {
  bool defined = false;
  int scope = 0;                   // index into Verifier::open_, at definition
  bool from_real_compare = false;  // hangs on an anonymous comparison of reals
  bool free_in_mapped = false;     // literal, config, step: usable inside a mapped loop as it is
};

class Verifier {
 public:
  Verifier(const Program& program, const ProgramLimits& limits, PassBudget& budget)
      : program_(program), limits_(limits), budget_(budget), known_(program.values.size()) {}

  absl::Status Run();

 private:
  enum class Kind { kInitial, kStep, kStage, kTerminal };
  // One open region: its values are usable until it closes.
  struct Open {
    bool mapped = false;  // sees nothing from outside, but what is free_in_mapped
    std::vector<ValueId> defined;
  };
  bool InTable(ValueId id) const {
    return static_cast<int32_t>(id) >= 0 && Index(id) < program_.values.size();
  }

  absl::Status CheckTables();
  absl::Status CheckValue(const Value& value, const std::string& field);
  absl::Status CountName(const std::string& name, const std::string& field);
  absl::Status CountOperands(size_t count, const std::string& field);
  absl::Status CheckSizes(const Op& op, const std::string& field);
  absl::Status CheckName(const std::string& name, const std::string& field);
  absl::Status CheckInputs();
  absl::Status CheckInputType(const Input& input, const std::string& field);
  absl::Status Define(ValueId id, const std::string& field);
  absl::Status Use(ValueId id, const std::string& field);
  void Close();
  absl::Status TopRegion(const Region& region, const std::string& field,
                         const std::vector<Type>& arg_types, Kind kind);
  absl::Status CheckStates(const Region& region, const std::string& field);
  absl::Status OpenRegion(const Region& region, const std::string& field,
                          const std::vector<Type>& types, bool mapped);
  absl::Status UseYields(const Region& region, const std::string& field);
  absl::Status Ops(const Region& region, const std::string& field, int64_t depth,
                   int64_t iterations);
  absl::Status CheckOp(const Op& op, const std::string& field, int64_t depth, int64_t iterations);
  absl::Status CheckContext(const Op& op, const std::string& field);
  absl::Status CheckNumbers(const Op& op, const std::string& field);
  absl::Status CheckHalt(const Op& op, const std::string& field);
  absl::Status CheckDraw(const Op& op, const std::string& field) const;
  absl::Status Results(const Op& op, const std::string& field);
  absl::Status CheckNamedTest(const Op& op, const std::string& field);
  absl::Status CheckSite(const Op& op, const std::string& field);
  absl::Status MayEnterLoop(ValueId id, const std::string& field) const;
  absl::Status CheckCap(int64_t cap, int64_t lowest, const std::string& field, int64_t& iterations);
  absl::Status CheckFor(const Op& op, const std::string& field, int64_t depth, int64_t iterations);
  absl::Status LoopResults(const Op& op, const std::string& field);
  absl::Status CheckWhile(const Op& op, const std::string& field, int64_t depth,
                          int64_t iterations);
  absl::Status CheckCond(const Op& op, const std::string& field, int64_t depth, int64_t iterations);
  absl::Status CheckCall(const Op& op, const std::string& field, int64_t depth, int64_t iterations);
  absl::Status CheckVjp(const Op& op, const std::string& field, int64_t depth, int64_t iterations);
  absl::Status CheckTest(const Op& op, const std::string& field, const std::vector<Type>& inner,
                         const WhileCounts& counts, int64_t depth, int64_t iterations,
                         std::vector<Type>& exports);
  absl::Status CheckBody(const Op& op, const std::string& field, const std::vector<Type>& inner,
                         const WhileCounts& counts, const std::vector<Type>& exports, int64_t depth,
                         int64_t iterations);
  absl::Status CheckWork() const;
  absl::Status CheckExports();
  absl::Status CheckObjectives();
  absl::Status CheckStanding(const Region& terminal, const std::string& field);

  const Program& program_;
  const ProgramLimits& limits_;
  PassBudget& budget_;
  std::vector<Known> known_;
  std::set<ValueId> ever_;
  std::vector<Open> open_;
  std::set<std::string> sites_;
  std::vector<bool> export_taint_;
  int in_vjp_ = 0;  // vjp regions around
  int halts_ = 0;
  Kind kind_ = Kind::kStep;
  int64_t operations_ = 0;
  int64_t elements_ = 0;
  int64_t operands_ = 0;
  int64_t name_bytes_ = 0;
  int64_t literal_elements_ = 0;
};

}  // namespace simgrad::sim::internal
