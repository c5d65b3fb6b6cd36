#include "sim/plan/cut.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "sim/plan/place.h"
#include "sim/plan/statement_walk.h"
#include "sim/plan/structure.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

constexpr int32_t kNowhere = -1;
constexpr int32_t kEverywhere = -2;

// Calls visit(Register&) for every register that a statement or its body reads.
template <typename S, typename Visit>
void EachOperandWithin(S& s, const Visit& visit) {
  EachOperand(s, visit);
  EachStatement(s.body, [&](auto& nested) { EachOperand(nested, visit); });
}

bool TouchesBuffer(const Statement& s) {
  return s.code == Code::kDeclare || ReadsBuffer(s) || WritesBuffer(s);
}

class Cutter {
 public:
  Cutter(Function& function, const CutLimits& limits, WorkMeter& meter)
      : function_(function), limits_(limits), meter_(meter) {}

  // Nothing changes where no cut can be made.
  void Run() {
    ChoosePieces();
    if (begins_.size() < 2) return;
    FindCrossings();
    if (!can_cross_) return;
    PassThroughMemory();
    Place(function_);
    Split();
  }

 private:
  size_t PieceCount() const { return begins_.size(); }
  size_t EndOf(size_t piece) const {
    return piece + 1 < begins_.size() ? begins_[piece + 1] : function_.statements.size();
  }
  Buffer& BufferAt(BufferId id) { return function_.buffers[static_cast<size_t>(id)]; }

  void ChoosePieces() {
    int64_t own = 0;
    std::set<int32_t> open;  // sites that tested and did not end their run
    begins_.push_back(0);
    for (size_t i = 0; i < function_.statements.size(); ++i) {
      const Statement& s = function_.statements[i];
      meter_.Add(1);
      const int64_t more = 1 + StatementsOf(s.body);
      if (own > 0 && own + more > limits_.piece && open.empty()) {
        begins_.push_back(i);
        own = 0;
      }
      own += more;
      const auto follow = [&](const Statement& of) {
        if (of.code == Code::kTest) open.insert(of.site);
        if (of.code == Code::kRun) open.erase(of.site);
      };
      follow(s);
      EachStatement(s.body, follow);
    }
  }

  // ---- what pieces read of one another ----

  void FindCrossings() {
    const size_t registers = function_.registers.size();
    made_in_.assign(registers, kNowhere);
    maker_.assign(registers, kNowhere);
    crosses_.assign(registers, false);
    shared_.assign(registers, false);
    touched_in_.assign(function_.buffers.size(), kNowhere);
    for (size_t piece = 0; piece < PieceCount(); ++piece) {
      const int32_t here = static_cast<int32_t>(piece);
      for (size_t i = begins_[piece]; i < EndOf(piece); ++i) {
        Statement& s = function_.statements[i];
        meter_.Add(1 + StatementsOf(s.body));
        FindShared(s);
        EachStatement(s.body, [&](const Statement& nested) { FindShared(nested); });
        EachOperandWithin(s, [&](Register r) {
          const int32_t made = made_in_[static_cast<size_t>(r)];
          if (made != kNowhere && made != here) crosses_[static_cast<size_t>(r)] = true;
        });
        const auto touch = [&](const Statement& of) {
          if (!TouchesBuffer(of)) return;
          int32_t& in = touched_in_[static_cast<size_t>(of.buffer)];
          in = in == kNowhere || in == here ? here : kEverywhere;
        };
        touch(s);
        EachStatement(s.body, touch);
        if (s.result == kNoRegister || s.result == function_.frame) continue;
        made_in_[static_cast<size_t>(s.result)] = here;
        maker_[static_cast<size_t>(s.result)] = static_cast<int32_t>(i);
      }
    }
    for (size_t r = 0; r < registers; ++r) {
      if (!crosses_[r] || !shared_[r] || IsMadeAgain(Maker(static_cast<Register>(r)))) continue;
      can_cross_ = can_cross_ && function_.registers[r] == Carrier::kI64;
    }
  }

  // Registers that a statement reads as one number of all lanes.
  void FindShared(const Statement& s) {
    const auto is_shared = [&](Register r) {
      if (r != kNoRegister) shared_[static_cast<size_t>(r)] = true;
    };
    for (const auto& [r, stride] : s.index.terms) is_shared(r);
    is_shared(s.frame);
    is_shared(s.element);
    const bool keeps = s.shared && s.code == Code::kKeep;
    const bool stores = s.code == Code::kStore && BufferAt(s.buffer).shared;
    if (s.code != Code::kEach && !keeps && !stores) return;
    for (Register r : s.operands) is_shared(r);
  }

  const Statement& Maker(Register r) const {
    return function_.statements[static_cast<size_t>(maker_[static_cast<size_t>(r)])];
  }

  // Whether a statement reads nothing that changes within a step, so that a piece may repeat it.
  bool IsMadeAgain(const Statement& s) const {
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
      case Code::kConstant:
      case Code::kTime:
      case Code::kSeed:
        return true;
      case Code::kLoad: {
        const BufferKind kind = function_.buffers[static_cast<size_t>(s.buffer)].kind;
        return (kind == BufferKind::kInput || kind == BufferKind::kTable) &&
               s.index.terms.empty() && s.index.moved == kNoRegister;
      }
      case Code::kCall:
      case Code::kDeclare:
      case Code::kStore:
      case Code::kEach:
      case Code::kRepeat:
      case Code::kLeave:
      case Code::kExactSum:
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
      case Code::kRecall:
      case Code::kTake:
        return false;
    }
    return false;
  }

  // ---- through memory ----

  void PassThroughMemory() {
    for (size_t id = 0; id < touched_in_.size(); ++id) {
      Buffer& buffer = function_.buffers[id];
      if (touched_in_[id] == kEverywhere && buffer.kind == BufferKind::kLocal) buffer.placed = true;
    }
    std::vector<Statement> before = std::move(function_.statements);
    const std::vector<size_t> begins = std::move(begins_);
    begins_.clear();
    std::unordered_map<Register, Statement> again;
    std::unordered_map<Register, BufferId> memory;
    std::vector<Statement>& after = function_.statements;
    after.clear();
    for (size_t piece = 0; piece < begins.size(); ++piece) {
      begins_.push_back(after.size());
      std::unordered_map<Register, Register> here;  // of an earlier piece, in this one
      const size_t end = piece + 1 < begins.size() ? begins[piece + 1] : before.size();
      for (size_t i = begins[piece]; i < end; ++i) {
        Statement& s = before[i];
        meter_.Add(1);
        EachOperandWithin(s, [&](Register& r) {
          const int32_t made = made_in_[static_cast<size_t>(r)];
          if (made == kNowhere || made == static_cast<int32_t>(piece)) return;
          const auto [at, is_new] = here.try_emplace(r, kNoRegister);
          if (is_new) {
            const Carrier carrier = function_.registers[static_cast<size_t>(r)];
            at->second = function_.AddRegister(carrier);
            made_in_.push_back(kNowhere);
            after.push_back(Fetched(r, at->second, again, memory));
          }
          r = at->second;
        });
        const Register made = s.result;
        const bool crosses = made != kNoRegister && crosses_[static_cast<size_t>(made)];
        const bool is_made_again = crosses && IsMadeAgain(s);
        if (is_made_again) again.emplace(made, s);
        after.push_back(std::move(s));
        if (crosses && !is_made_again) memory.emplace(made, Kept(made));
      }
    }
  }

  // Puts a register of the piece into memory.
  BufferId Kept(Register r) {
    const BufferId id = function_.AddBuffer({.kind = BufferKind::kLocal,
                                             .carrier = function_.registers[static_cast<size_t>(r)],
                                             .shared = shared_[static_cast<size_t>(r)],
                                             .placed = true,
                                             .name = Cat("piece", r)});
    function_.statements.push_back({.code = Code::kDeclare, .buffer = id});
    function_.statements.push_back({.code = Code::kStore, .operands = {r}, .buffer = id});
    return id;
  }

  static Statement Fetched(Register r, Register as,
                           const std::unordered_map<Register, Statement>& again,
                           const std::unordered_map<Register, BufferId>& memory) {
    if (const auto found = again.find(r); found != again.end()) {
      Statement copy = found->second;
      copy.result = as;
      return copy;
    }
    return {.code = Code::kLoad, .result = as, .buffer = memory.at(r)};
  }

  // ---- pieces ----

  void Split() {
    std::vector<Register> registers(function_.registers.size(), kNoRegister);
    std::vector<BufferId> buffers(function_.buffers.size(), kNoBuffer);
    std::vector<Statement> statements = std::move(function_.statements);
    function_.statements.clear();
    for (size_t piece = 0; piece < PieceCount(); ++piece) {
      const size_t end = piece + 1 < PieceCount() ? begins_[piece + 1] : statements.size();
      Function& to = function_.pieces.emplace_back();
      to.name = Cat(function_.name, ".", piece);
      std::vector<Register> own_registers;
      std::vector<BufferId> own_buffers;
      const auto rename = [&](Register& r) {
        Register& mine = registers[static_cast<size_t>(r)];
        if (mine == kNoRegister) {
          own_registers.push_back(r);
          mine = to.AddRegister(function_.registers[static_cast<size_t>(r)]);
        }
        if (r == function_.frame) to.frame = mine;
        r = mine;
      };
      const auto rename_all = [&](Statement& s) {
        EachOperand(s, rename);
        if (s.result != kNoRegister) rename(s.result);
        if (s.buffer == kNoBuffer) return;
        BufferId& mine = buffers[static_cast<size_t>(s.buffer)];
        if (mine == kNoBuffer) {
          own_buffers.push_back(s.buffer);
          mine = to.AddBuffer(BufferAt(s.buffer));
        }
        s.buffer = mine;
      };
      for (size_t i = begins_[piece]; i < end; ++i) {
        meter_.Add(1);
        rename_all(statements[i]);
        EachStatement(statements[i].body, rename_all);
        to.statements.push_back(std::move(statements[i]));
      }
      for (Register r : own_registers) registers[static_cast<size_t>(r)] = kNoRegister;
      for (BufferId id : own_buffers) buffers[static_cast<size_t>(id)] = kNoBuffer;
    }
    function_.registers.clear();
    function_.buffers.clear();
    function_.frame = kNoRegister;
  }

  Function& function_;
  const CutLimits& limits_;
  WorkMeter& meter_;
  std::vector<size_t> begins_;    // by piece: its first statement
  std::vector<int32_t> made_in_;  // by register of a statement that is in no body: its piece
  std::vector<int32_t> maker_;    // and the statement
  std::vector<bool> crosses_, shared_;
  std::vector<int32_t> touched_in_;  // by buffer: the piece
  bool can_cross_ = true;
};

}  // namespace

Plan CutLargeFunctions(Plan plan, const CutLimits& limits, WorkMeter& meter) {
  EachFunction(plan, [&](Function& function) {
    if (StatementsOf(function) > limits.whole) Cutter(function, limits, meter).Run();
  });
  return plan;
}

}  // namespace simgrad::sim::plan
