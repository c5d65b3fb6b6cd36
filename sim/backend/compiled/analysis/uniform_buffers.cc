#include "sim/backend/compiled/analysis/uniform_buffers.h"

#include <algorithm>

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::compiled {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Code;
using plan::Function;
using plan::Register;
using plan::Statement;

class Finder {
 public:
  Finder(const Function& function, const std::vector<InputForm>& inputs)
      : function_(function),
        inputs_(inputs),
        is_uniform_(function.buffers.size(), false),
        differs_(function.registers.size(), true) {}

  std::vector<bool> Find() {
    for (size_t id = 0; id < is_uniform_.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      is_uniform_[id] = buffer.kind == BufferKind::kLocal && buffer.count > 1 &&
                        buffer.offset >= 0 && buffer.offset < function_.kept;
    }
    // An exact sum reads vectors.
    plan::EachStatement(function_.statements, [&](const Statement& s) {
      if (s.code == Code::kExactSum) is_uniform_[static_cast<size_t>(s.buffer)] = false;
    });
    constexpr int kWalks = 8;
    for (int walk = 0; walk < kWalks; ++walk) {
      changed_ = false;
      Walk(function_.statements);
      if (!changed_) return is_uniform_;
    }
    return std::vector<bool>(is_uniform_.size(), false);
  }

 private:
  void Walk(const std::vector<Statement>& block) {
    for (const Statement& s : block) {
      if (s.result != plan::kNoRegister) differs_[static_cast<size_t>(s.result)] = Differs(s);
      if (s.code == Code::kStore && is_uniform_[static_cast<size_t>(s.buffer)] &&
          (Differs(s.operands[0]) || MovesApart(s))) {
        is_uniform_[static_cast<size_t>(s.buffer)] = false;
        changed_ = true;
      }
      Walk(s.body);
    }
  }

  bool Differs(Register r) const { return differs_[static_cast<size_t>(r)]; }
  bool MovesApart(const Statement& s) const {
    return s.index.moved != plan::kNoRegister && Differs(s.index.moved);
  }

  // Whether the result of a statement may differ from lane to lane.
  bool Differs(const Statement& s) const {
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
      case Code::kConstant:
      case Code::kEach:
        return false;
      case Code::kCall:
        return std::any_of(s.operands.begin(), s.operands.end(),
                           [this](Register r) { return Differs(r); });
      case Code::kLoad: {
        const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
        const bool is_same = buffer.kind == BufferKind::kTable ||
                             is_uniform_[static_cast<size_t>(s.buffer)] ||
                             (buffer.kind == BufferKind::kInput &&
                              !inputs_[static_cast<size_t>(buffer.number)].per_lane);
        return !is_same || MovesApart(s);
      }
      case Code::kTime:
      case Code::kDeclare:
      case Code::kStore:
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
      case Code::kSeed:
      case Code::kTake:
        return true;
    }
    return true;
  }

  const Function& function_;
  const std::vector<InputForm>& inputs_;
  std::vector<bool> is_uniform_;  // by buffer
  std::vector<bool> differs_;     // by register
  bool changed_ = false;
};

}  // namespace

std::vector<bool> UniformBuffers(const Function& function, const std::vector<InputForm>& inputs) {
  return Finder(function, inputs).Find();
}

}  // namespace simgrad::sim::compiled
