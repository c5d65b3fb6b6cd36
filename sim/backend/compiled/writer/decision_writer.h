// Writes what is recorded of decisions: tests, ends of runs, events, and the path signatures.
//
// Maths: docs/semantics.md, "Decisions". Counts go to the columns of the step
//   (sim/backend/columns.h) at once, margins as margin_writer.h says.
// Cost: of a test its margin, of a run 60 vector instructions and 30 for each outcome that differs.
// Threads: one per module.
#pragma once

#include <vector>

#include "sim/backend/compiled/group/event_layout.h"
#include "sim/backend/compiled/writer/margin_writer.h"
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

class DecisionWriter : private MarginWriter {
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
  struct LastTest : MarginCarriers {
    int tests = 0;       // statements
    Vectors rhs, extra;  // variables
  };

  void FindTests(const std::vector<plan::Statement>& statements);
  Compared ComparedBy(const plan::Statement& s, plan::Carrier of, plan::Carrier of_extra,
                      const Told& told);
  void TellTested(const plan::Statement& s, const Vectors& mask, const Told& told);
  void LastMargins(const LastTest& last, const Told& told, llvm::Value* column);
  void EventMargins(const plan::Statement& s, const Compared& compared, const Vectors& mask);
  llvm::Value* LastEvent(const plan::Statement& s, const Told& told);
  Vectors ChangedEvents(const plan::Statement& s, const Told& told, const Vectors& values);
  Vectors ChangedChoices(const plan::Statement& s, const Told& told);
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
  const EventLayout events_;
  llvm::Value* column_ = nullptr;
  llvm::Value* time_ = nullptr;
  std::vector<LastTest> last_;  // by termination site
  Vectors signatures_;
};

}  // namespace simgrad::sim::compiled
