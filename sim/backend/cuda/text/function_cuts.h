// Cuts a long function into pieces that are functions of the text, and says what pieces share.
//
// The time of a compiler grows faster than the length of a function, so pieces are not inlined.
// Not plan/cut.h: those pieces run one after the other and share values through buffers of the
// workspace. These are called from inside the function, also in its loops, and share registers and
// arrays through a struct; the plan stays as it is.
// Errors: none. Cost: linear, times the depth of loops. Threads: pure. The function outlives its cuts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

class FunctionCuts {
 public:
  // The statements [begin, end) of a block, which are piece `piece`.
  struct Cut {
    size_t begin = 0;
    size_t end = 0;
    int piece = 0;
  };

  // A block of more than `longest` statements is cut, those of bodies included.
  FunctionCuts(const plan::Function& function, int64_t longest);

  // The cuts of a block, in order; null: it is not cut.
  const std::vector<Cut>* Of(const std::vector<plan::Statement>& block) const;
  // Whether several pieces use it.
  bool IsShared(plan::Register r) const;
  bool IsSharedBuffer(plan::BufferId id) const;
  // The number of pieces, with the function itself, which is piece 0; 1: it is whole.
  int pieces() const { return pieces_; }

 private:
  void UseRegister(plan::Register r, int piece);
  void UseBuffer(plan::BufferId id, int piece);
  void UseIn(const plan::Statement& statement, int piece);
  void CutBlock(const std::vector<plan::Statement>& statements, int piece);

  const int64_t longest_;
  std::vector<int> register_home_;  // the piece that uses it, or kSeveral
  std::vector<int> buffer_home_;
  std::map<const std::vector<plan::Statement>*, std::vector<Cut>> cuts_;
  int pieces_ = 1;
};

}  // namespace simgrad::sim::cuda
