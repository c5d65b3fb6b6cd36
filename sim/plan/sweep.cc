#include "sim/plan/sweep.h"

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::plan {
namespace {

class Sweeper {
 public:
  explicit Sweeper(Function& function)
      : function_(function),
        makers_(function.registers.size(), nullptr),
        stores_(function.buffers.size()),
        is_read_(function.registers.size(), false),
        is_loaded_(function.buffers.size(), false) {}

  void Run() {
    EachStatement(function_.statements, [&](const Statement& s) {
      if (s.result != kNoRegister) makers_[static_cast<size_t>(s.result)] = &s;
      if (s.code == Code::kStore && IsLocal(s)) {
        stores_[static_cast<size_t>(s.buffer)].push_back(&s);
      } else if (IsKept(s)) {
        Read(s);
      }
    });
    while (!open_.empty()) {
      const Statement* const s = open_.back();
      open_.pop_back();
      Read(*s);
    }
    Delete(function_.statements);
  }

 private:
  bool IsLocal(const Statement& s) const {
    return function_.buffers[static_cast<size_t>(s.buffer)].kind == BufferKind::kLocal;
  }

  // Whether the statement stays even if no other reads its result.
  static bool IsKept(const Statement& s) {
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
      case Code::kConstant:
      case Code::kTime:
      case Code::kCall:
      case Code::kDeclare:
      case Code::kLoad:
      case Code::kExactSum:
      case Code::kRecall:
      case Code::kSeed:
        return false;
      case Code::kStore:
      case Code::kEach:
      case Code::kRepeat:
      case Code::kLeave:
      case Code::kLook:
      case Code::kRange:
      case Code::kStored:
      case Code::kAbsorbed:
      case Code::kCommit:
      case Code::kTest:
      case Code::kRun:
      case Code::kDecide:
      case Code::kIf:
      case Code::kPush:
      case Code::kKeep:
      case Code::kTake:
        return true;
    }
    return true;
  }

  void Read(const Statement& s) {
    EachOperand(s, [&](Register r) {
      const size_t at = static_cast<size_t>(r);
      if (is_read_[at]) return;
      is_read_[at] = true;
      // Counters of loops, and the frame that is given, have no operands that matter here.
      const Statement* const maker = makers_[at];
      if (maker != nullptr && !IsKept(*maker)) open_.push_back(maker);
    });
    if (!ReadsBuffer(s)) return;
    const size_t buffer = static_cast<size_t>(s.buffer);
    if (is_loaded_[buffer]) return;
    is_loaded_[buffer] = true;
    open_.insert(open_.end(), stores_[buffer].begin(), stores_[buffer].end());
  }

  bool IsNeeded(const Statement& s) const {
    if (s.code == Code::kDeclare) return is_loaded_[static_cast<size_t>(s.buffer)];
    if (s.code == Code::kStore && IsLocal(s)) return is_loaded_[static_cast<size_t>(s.buffer)];
    if (s.code == Code::kEach || s.code == Code::kIf) return !s.body.empty();
    return IsKept(s) || is_read_[static_cast<size_t>(s.result)];
  }

  void Delete(std::vector<Statement>& block) {
    for (Statement& s : block) Delete(s.body);
    std::erase_if(block, [&](const Statement& s) { return !IsNeeded(s); });
  }

  Function& function_;
  std::vector<const Statement*> makers_;               // by register
  std::vector<std::vector<const Statement*>> stores_;  // by local
  std::vector<bool> is_read_;                          // by register
  std::vector<bool> is_loaded_;                        // by buffer
  std::vector<const Statement*> open_;                 // needed, operands not yet
};

}  // namespace

void Sweep(Function& function) { Sweeper(function).Run(); }

}  // namespace simgrad::sim::plan
