#include "sim/backend/cuda/text/function_cuts.h"

namespace simgrad::sim::cuda {
namespace {

using plan::BufferId;
using plan::Register;
using plan::Statement;

constexpr int kNowhere = -1;
constexpr int kSeveral = -2;

int64_t SizeOf(const std::vector<Statement>& statements) {
  int64_t size = 0;
  for (const Statement& s : statements) size += 1 + SizeOf(s.body);
  return size;
}

void Use(int piece, int& home) { home = home == kNowhere || home == piece ? piece : kSeveral; }

}  // namespace

FunctionCuts::FunctionCuts(const plan::Function& function, int64_t longest)
    : longest_(longest),
      register_home_(function.registers.size(), kNowhere),
      buffer_home_(function.buffers.size(), kNowhere) {
  UseRegister(function.frame, 0);
  CutBlock(function.statements, 0);
}

const std::vector<FunctionCuts::Cut>* FunctionCuts::Of(const std::vector<Statement>& block) const {
  const auto cuts = cuts_.find(&block);
  return cuts == cuts_.end() ? nullptr : &cuts->second;
}

bool FunctionCuts::IsShared(Register r) const {
  return register_home_[static_cast<size_t>(r)] == kSeveral;
}

bool FunctionCuts::IsSharedBuffer(BufferId id) const {
  return buffer_home_[static_cast<size_t>(id)] == kSeveral;
}

void FunctionCuts::UseRegister(Register r, int piece) {
  if (r != plan::kNoRegister) Use(piece, register_home_[static_cast<size_t>(r)]);
}

void FunctionCuts::UseBuffer(BufferId id, int piece) {
  if (id != plan::kNoBuffer) Use(piece, buffer_home_[static_cast<size_t>(id)]);
}

void FunctionCuts::UseIn(const Statement& s, int piece) {
  for (Register r : {s.result, s.extra, s.where, s.iteration, s.element, s.frame}) {
    UseRegister(r, piece);
  }
  for (Register r : s.operands) UseRegister(r, piece);
  for (const auto& [r, stride] : s.index.terms) UseRegister(r, piece);
  UseRegister(s.index.moved, piece);
  UseBuffer(s.buffer, piece);
  CutBlock(s.body, piece);
}

// Statements that stand side by side, up to the budget, are a piece; what is longer alone is cut
// inside.
void FunctionCuts::CutBlock(const std::vector<Statement>& statements, int piece) {
  if (SizeOf(statements) <= longest_ || piece != 0) {
    for (const Statement& s : statements) UseIn(s, piece);
    return;
  }
  std::vector<Cut>& cuts = cuts_[&statements];
  int64_t size = 0;
  bool joins = false;
  for (size_t k = 0; k < statements.size(); ++k) {
    const int64_t own = 1 + SizeOf(statements[k].body);
    if (own > longest_) {
      joins = false;
      UseIn(statements[k], 0);
      continue;
    }
    joins = joins && size + own <= longest_;
    if (!joins) {
      cuts.push_back({k, k, pieces_++});
      size = 0;
    }
    joins = true;
    size += own;
    cuts.back().end = k + 1;
    UseIn(statements[k], cuts.back().piece);
  }
}

}  // namespace simgrad::sim::cuda
