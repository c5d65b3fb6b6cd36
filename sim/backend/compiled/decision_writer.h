// Writes what is recorded of decisions: tests, ends of runs, events, and the path signatures.
//
// Maths: docs/semantics.md, "Decisions" and "Margins". Counts go to the columns of the step
//   (sim/backend/columns.h) at once. A margin is compared with what its site has seen in this step,
//   in the width of its carrier, and evaluated in full where it may matter (exact_margins.h).
// Cost: of a test some 12 vector instructions for each part, of a run 60 and 30 for each outcome
//   that differs. Threads: one per module.
#pragma once

#include <vector>

#include "sim/backend/compiled/exact_margins.h"
#include "sim/backend/compiled/lane_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// The values of one statement that records, every one a vector per part.
struct Told {
  std::vector<Vectors> operands;
  Vectors extra;                   // empty: none
  Vectors mask;                    // lanes for which it happens
  Vectors where;                   // of these, where; empty: everywhere
  Vectors iteration;               // i64; empty: 0
  llvm::Value* element = nullptr;  // i64, the same for all lanes; null: 0
};

class DecisionWriter : private LaneBuilder {
 public:
  DecisionWriter(const LaneBuilder& lanes, const plan::Plan& plan, const plan::Function& function);

  // Around the steps of a function.
  void Begin();
  void BeginStep(llvm::Value* column, llvm::Value* time);
  void End();

  void Test(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra, const Told& told);
  void Run(const plan::Statement& s, const Told& told);
  void Decide(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra, const Told& told);

 private:
  // The operands of the last test of a site's run: [lane], of the lanes that are in one.
  struct LastTest {
    int tests = 0;  // statements
    precision::Format format = precision::Format::kF64;
    plan::Carrier carrier = plan::Carrier::kF64;
    plan::Carrier extra_carrier = plan::Carrier::kF64;
    bool has_extra = false;
    Vectors rhs, extra;  // variables
  };
  // The operands of a comparison: integers in 64 bits.
  struct Compared {
    MarginKind kind;
    plan::Carrier carrier = plan::Carrier::kF64;
    Vectors lhs, rhs, extra;
    Vectors tests;  // numbers of deciding tests; empty: none
  };

  void FindTests(const std::vector<plan::Statement>& statements);
  Compared ComparedBy(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra,
                      const Told& told);
  void Margins(const Compared& compared, bool is_event, llvm::Value* column, llvm::Value* watch,
               const Vectors& mask, const Vectors& stopped);
  void NoteMargins(const Compared& compared, bool is_event, llvm::Value* column, llvm::Value* watch,
                   const Vectors& lanes, const Vectors& stopped);
  llvm::Value* MayMatter(const Compared& compared, llvm::Value* watch, size_t part);
  llvm::Value* IsKnownZero(const Compared& compared, llvm::Value* watch, size_t part);
  llvm::Value* PowerOf(const Compared& compared, size_t part);
  llvm::Value* FromWatch(llvm::Value* watch, uint64_t offset, llvm::Type* type);
  llvm::Value* BitsIn(llvm::Value* x);
  void TellTested(const plan::Statement& s, const Vectors& mask, const Told& told);
  void LastMargins(const LastTest& last, const Told& told, llvm::Value* column);
  // Counts margins in a histogram: column + offset.
  void CountMargins(const LastTest& kind, const Compared& compared, const Vectors& mask,
                    llvm::Value* column, uint64_t offset);
  void EventMargins(const plan::Statement& s, const Compared& compared, const Vectors& mask);
  Vectors Buckets(const LastTest& last, const Compared& compared);
  Vectors NarrowBuckets(const LastTest& last, const Compared& compared, const Vectors& counts);
  void TestedExtremes(const Vectors& tested, const Vectors& mask, llvm::Value* column,
                      llvm::Value* watch);
  void Outcomes(size_t site, const Told& told, llvm::Value* column);
  void CountOutcome(const plan::RecordedSite& site, llvm::Value* ran, llvm::Value* reason,
                    llvm::Value* count, llvm::Value* column);
  // The hash of what all lanes share, or null where loops around differ; then for each lane.
  llvm::Value* SharedPrefix(uint64_t site, const Told& told);
  Vectors Prefixes(uint64_t site, const Told& told);
  void Sign(const Vectors& mask, const Vectors& hashes);
  llvm::Value* Row(Member member, int32_t site, size_t sites, uint64_t bytes);

  const plan::Plan& plan_;
  const plan::Function& written_;
  llvm::Value* column_ = nullptr;
  llvm::Value* time_ = nullptr;
  std::vector<LastTest> last_;  // by termination site
  Vectors ranks_, signatures_;
};

}  // namespace simgrad::sim::compiled
