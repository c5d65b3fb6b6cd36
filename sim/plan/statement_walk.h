// Walks over the statements of a plan: the registers that each reads, and its memory.
//
// Threads: pure.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// Calls visit(Register&) for every register that the statement itself reads, without its body.
template <typename S, typename Visit>
void EachOperand(S& s, const Visit& visit) {
  for (auto& r : s.operands) visit(r);
  for (auto& term : s.index.terms) visit(term.first);
  for (auto* r : {&s.index.moved, &s.extra, &s.where, &s.iteration, &s.element, &s.frame}) {
    if (*r != kNoRegister) visit(*r);
  }
}

// Calls visit(Statement&) for each statement of a block and of the blocks in it, outer ones first.
template <typename Block, typename Visit>
void EachStatement(Block& block, const Visit& visit) {
  for (auto& s : block) {
    visit(s);
    EachStatement(s.body, visit);
  }
}

inline bool ReadsBuffer(const Statement& s) {
  return s.code == Code::kLoad || s.code == Code::kExactSum;
}
inline bool WritesBuffer(const Statement& s) { return s.code == Code::kStore; }

// Calls visit(Function&) for each function of a plan.
template <typename P, typename Visit>
void EachFunction(P& plan, const Visit& visit) {
  for (auto* function :
       {&plan.start, &plan.step, &plan.finish, &plan.replay, &plan.reverse_terminal,
        &plan.reverse_last, &plan.reverse, &plan.reverse_initial}) {
    visit(*function);
  }
}

}  // namespace simgrad::sim::plan
