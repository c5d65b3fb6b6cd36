#include "sim/plan/invariants.h"

#include <utility>

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::plan {
namespace {

// The work of one statement, in element-operations (work_meter.h).
constexpr int64_t kStatementWork = 64;

// Begins with all statements of the function's own block as invariant, and takes away those that
// are not, with all that hang on them.
class Finder {
 public:
  Finder(const std::vector<bool>& is_steady, Function& function)
      : is_steady_(is_steady),
        function_(function),
        varies_(function.statements.size(), false),
        makers_(function.registers.size(), kNone),
        buffers_(function.buffers.size()),
        is_inside_(function.buffers.size(), false) {}

  void Run() {
    const size_t count = function_.statements.size();
    for (size_t k = 0; k < count; ++k) Note(k, function_.statements[k], false);
    for (size_t k = 0; k < count; ++k) NoteReaders(k, function_.statements[k]);
    for (size_t k = 0; k < count; ++k) {
      if (MustVary(function_.statements[k], false)) Vary(k);
    }
    while (!open_.empty()) {
      const size_t k = open_.back();
      open_.pop_back();
      Spread(k);
    }
    for (size_t k = 0; k < count; ++k) {
      Statement& s = function_.statements[k];
      s.invariant = s.code == Code::kEach && !varies_[k];
    }
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  // The statements of the function's own block that store and load a local, by their places.
  struct Users {
    std::vector<size_t> stores, loads;
  };

  const Buffer& BufferOf(const Statement& s) const {
    return function_.buffers[static_cast<size_t>(s.buffer)];
  }
  bool IsLocal(const Statement& s) const { return BufferOf(s).kind == BufferKind::kLocal; }

  void Note(size_t k, const Statement& s, bool in_loop) {
    if (s.code == Code::kDeclare) is_inside_[static_cast<size_t>(s.buffer)] = in_loop;
    if (s.result != kNoRegister) makers_[static_cast<size_t>(s.result)] = k;
    if (ReadsBuffer(s)) buffers_[static_cast<size_t>(s.buffer)].loads.push_back(k);
    if (WritesBuffer(s)) buffers_[static_cast<size_t>(s.buffer)].stores.push_back(k);
    for (const Statement& inner : s.body) Note(k, inner, true);
  }

  // Registers of the own block that a statement reads hang on their makers.
  void NoteReaders(size_t k, const Statement& s) {
    if (readers_.empty()) readers_.resize(function_.statements.size());
    EachOperand(s, [&](Register r) {
      const size_t maker = makers_[static_cast<size_t>(r)];
      if (maker == kNone) {
        Vary(k);  // it is given: the frame
      } else if (maker != k) {
        readers_[maker].push_back(k);
      }
    });
    for (const Statement& inner : s.body) NoteReaders(k, inner);
  }

  // Whether the statement itself, or one inside it, changes from step to step or leaves a trace.
  bool MustVary(const Statement& s, bool in_loop) const {
    if (!MayRepeat(s, in_loop)) return true;
    for (const Statement& inner : s.body) {
      if (MustVary(inner, true)) return true;
    }
    return false;
  }

  bool MayRepeat(const Statement& s, bool in_loop) const {
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
      case Code::kConstant:
      case Code::kCall:
      case Code::kDeclare:
      case Code::kEach:
        return true;
      case Code::kExactSum:
      case Code::kLoad: {
        const Buffer& buffer = BufferOf(s);
        if (buffer.kind == BufferKind::kInput)
          return is_steady_[static_cast<size_t>(buffer.number)];
        return buffer.kind == BufferKind::kTable || IsOwnMemory(s.buffer);
      }
      case Code::kStore:
        return in_loop && IsOwnMemory(s.buffer);
      case Code::kLook:
      case Code::kRange:
        return in_loop;
      case Code::kTime:
      case Code::kRepeat:
      case Code::kLeave:
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
      case Code::kSeed:
      case Code::kTake:
        return false;
    }
    return false;
  }

  // Whether it is a local with a place of its own, which no other memory takes. A local of one
  // number is a register, and no register outlives a call: only loops may have it inside.
  bool IsOwnMemory(BufferId id) const {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
    return buffer.kind == BufferKind::kLocal && !buffer.shared && !buffer.placed &&
           (buffer.count > 1 || is_inside_[static_cast<size_t>(id)]);
  }

  void Vary(size_t k) {
    if (varies_[k]) return;
    varies_[k] = true;
    open_.push_back(k);
  }

  void Spread(size_t k) {
    for (size_t reader : readers_[k]) Vary(reader);
    EachStored(function_.statements[k], [&](Users& users) {
      for (const std::vector<size_t>* list : {&users.stores, &users.loads}) {
        for (size_t user : *list) Vary(user);
      }
      users = {};  // all of them vary now
    });
  }

  template <typename Visit>
  void EachStored(const Statement& s, const Visit& visit) {
    if (WritesBuffer(s) && IsLocal(s)) visit(buffers_[static_cast<size_t>(s.buffer)]);
    for (const Statement& inner : s.body) EachStored(inner, visit);
  }

  const std::vector<bool>& is_steady_;
  Function& function_;
  std::vector<bool> varies_;                  // by statement of the own block
  std::vector<size_t> makers_;                // by register: the statement that makes it
  std::vector<std::vector<size_t>> readers_;  // by statement: those that read its registers
  std::vector<Users> buffers_;
  std::vector<bool> is_inside_;  // by buffer: a loop declares it
  std::vector<size_t> open_;     // vary, what hangs on them is not told yet
};

}  // namespace

void MarkInvariants(const std::vector<bool>& is_steady, Function& function) {
  Finder(is_steady, function).Run();
}

Plan MarkInvariants(Plan plan, const Program& program, const std::vector<bool>& has_steps,
                    WorkMeter& meter) {
  std::vector<bool> is_steady;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const InputKind kind = program.inputs[i].kind;
    const bool moves = kind == InputKind::kState || kind == InputKind::kStep;
    const bool may_have_steps = kind == InputKind::kControl || kind == InputKind::kData;
    is_steady.push_back(!moves && !(has_steps.empty() ? may_have_steps : has_steps[i]));
  }
  for (Function* function : {&plan.step, &plan.replay, &plan.reverse}) {
    EachStatement(function->statements, [&](Statement&) { meter.Add(kStatementWork); });
    MarkInvariants(is_steady, *function);
  }
  return plan;
}

}  // namespace simgrad::sim::plan
