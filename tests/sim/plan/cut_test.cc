// Pieces of a function: bounds, the same statements in the same order, and nothing read that was not made.
#include "sim/plan/cut.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "sim/plan/make_plan.h"
#include "sim/plan/statement_walk.h"
#include "sim/plan/structure.h"
#include "sim/program/lower.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::plan {
namespace {

constexpr int64_t kPiece = 50;

Plan WholePlan() {
  const Program world = large::LargeProgram(400);
  const auto lowered = Lower(world, tests::PolicyOf({}), "cost", shaped::WantedOf(world, "cost"));
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return PlacedPlan(*lowered, {.decides = true, .looks = true, .ranges = true});
}

std::vector<const Function*> FunctionsOf(const Plan& plan) {
  std::vector<const Function*> functions;
  EachFunction(plan, [&](const Function& function) { functions.push_back(&function); });
  return functions;
}

// What is called, tested and pushed, in order.
std::vector<std::string> ActsOf(const Function& function) {
  std::vector<std::string> acts;
  const auto add = [&](const Statement& s) {
    if (s.code == Code::kCall) acts.push_back(s.function);
    if (s.code == Code::kTest) acts.push_back("test " + std::to_string(s.site));
    if (s.code == Code::kRun) acts.push_back("run " + std::to_string(s.site));
    if (s.code == Code::kPush) acts.push_back("push " + std::to_string(s.number));
  };
  EachStatement(function.statements, add);
  for (const Function& piece : function.pieces) EachStatement(piece.statements, add);
  return acts;
}

// Registers are assigned before they are read, but for the frame.
void ExpectMadeBeforeRead(const Function& piece) {
  std::set<Register> made = {piece.frame};
  EachStatement(piece.statements, [&](const Statement& s) {
    EachOperand(s, [&](Register r) { EXPECT_TRUE(made.count(r)) << piece.name << " " << r; });
    if (s.result != kNoRegister) made.insert(s.result);
  });
}

// A run of statements that may not be cut: from a test to the end of its run.
bool HasOpenRunAfter(const Function& piece, size_t statements) {
  std::set<int32_t> open;
  const auto follow = [&](const Statement& s) {
    if (s.code == Code::kTest) open.insert(s.site);
    if (s.code == Code::kRun) open.erase(s.site);
  };
  for (size_t i = 0; i < statements; ++i) {
    follow(piece.statements[i]);
    EachStatement(piece.statements[i].body, follow);
  }
  return !open.empty();
}

TEST(CutTest, SmallFunctionsStayWhole) {
  const Plan plan = CutLargeFunctions(WholePlan(), {.whole = 1'000'000, .piece = kPiece});
  for (const Function* function : FunctionsOf(plan)) EXPECT_TRUE(function->pieces.empty());
}

TEST(CutTest, PiecesSayWhatTheWholeSaysInItsOrder) {
  const Plan whole = WholePlan();
  const Plan cut = CutLargeFunctions(WholePlan(), {.whole = 0, .piece = kPiece});
  const auto before = FunctionsOf(whole);
  const auto after = FunctionsOf(cut);
  int64_t pieces = 0;
  for (size_t k = 0; k < before.size(); ++k) {
    EXPECT_EQ(ActsOf(*before[k]), ActsOf(*after[k])) << before[k]->name;
    EXPECT_EQ(before[k]->name, after[k]->name);
    EXPECT_GE(StatementsOf(*after[k]), StatementsOf(*before[k]));
    for (const Function& piece : after[k]->pieces) {
      ++pieces;
      ExpectMadeBeforeRead(piece);
    }
  }
  EXPECT_GT(pieces, 50);
}

// Beside what it fetches and keeps. More has a piece where one statement has more, or a run goes on.
TEST(CutTest, MostPiecesKeepTheBound) {
  constexpr int64_t kLarge = 250;  // more than most operations have
  const Plan cut = CutLargeFunctions(WholePlan(), {.whole = 0, .piece = kLarge});
  int64_t within = 0;
  int64_t beyond = 0;
  for (const Function* function : FunctionsOf(cut)) {
    for (const Function& piece : function->pieces) {
      int64_t own = 0;
      for (const Statement& s : piece.statements) {
        const bool passes = s.code == Code::kDeclare || s.code == Code::kStore ||
                            s.code == Code::kLoad || s.code == Code::kNumber ||
                            s.code == Code::kInteger || s.code == Code::kConstant;
        if (!passes) own += 1 + StatementsOf(s.body);
      }
      ++(own <= kLarge ? within : beyond);
    }
  }
  EXPECT_GT(within, 10 * beyond);
}

// A test is remembered until the end of its run, by the code of one piece.
TEST(CutTest, RunsEndWhereTheyWereTested) {
  const Plan cut = CutLargeFunctions(WholePlan(), {.whole = 0, .piece = 1});
  int64_t runs = 0;
  for (const Function& piece : cut.step.pieces) {
    EXPECT_FALSE(HasOpenRunAfter(piece, piece.statements.size())) << piece.name;
    EachStatement(piece.statements, [&](const Statement& s) { runs += s.code == Code::kRun; });
  }
  EXPECT_GT(runs, 0);
}

}  // namespace
}  // namespace simgrad::sim::plan
