#include "sim/plan/print.h"

#include "absl/strings/str_join.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

class Printer {
 public:
  explicit Printer(const Function& function) : function_(function) {}

  std::string Text() && {
    text_ += Cat(function_.name,
                 function_.workspace == 0 ? "" : Cat(", ", function_.workspace, " bytes"), "\n");
    Block(function_.statements, 1);
    return std::move(text_);
  }

 private:
  static std::string Name(Register r) { return Cat("%", r); }
  static std::string Names(const std::vector<Register>& registers) {
    return absl::StrJoin(registers, ", ", [](std::string* out, Register r) { *out += Name(r); });
  }
  std::string Name(BufferId id, const Index& index) const {
    std::string at;
    for (const auto& [r, stride] : index.terms) {
      at += Cat(at.empty() ? "" : " + ", Name(r), stride == 1 ? "" : Cat(" * ", stride));
    }
    if (index.moved != kNoRegister) at += Cat(at.empty() ? "" : " + ", Name(index.moved));
    if (index.base != 0 || at.empty()) at += Cat(at.empty() ? "" : " + ", index.base);
    return Cat(NameOf(id), "[", at, "]");
  }
  static std::string InFrame(const Statement& s) {
    std::string at;
    for (const auto& [r, stride] : s.index.terms) at += Cat(" + ", Name(r), " * ", stride);
    if (s.index.base != 0) at += Cat(" + ", s.index.base);
    return Cat(s.shared ? "shared " : "", "frame ", Name(s.frame), " at ", s.number,
               at.empty() ? "" : " element", at);
  }
  std::string NameOf(BufferId id) const {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
    const std::string_view own = buffer.name;
    switch (buffer.kind) {
      case BufferKind::kLocal:
        return Cat("local", id, own.empty() ? "" : ".", own);
      case BufferKind::kField:
        return Cat("field", buffer.number, ".", own);
      case BufferKind::kInput:
        return Cat("input", buffer.number, ".", own);
      case BufferKind::kTable:
        return Cat("table", buffer.number, own.empty() ? "" : ".", own);
      case BufferKind::kSent:
        return Cat("sent", buffer.number);
      case BufferKind::kGradient:
        return Cat("gradient", buffer.number, ".", own);
      case BufferKind::kFactors:
        return Cat("factors", buffer.number, ".", own);
      case BufferKind::kConnected:
        return Cat("connected", buffer.number, ".", own);
    }
    return "";
  }
  std::string Carried(Register r) const {
    return Cat(Name(r), ": ", CarrierName(function_.registers[static_cast<size_t>(r)]));
  }

  std::string Head(const Statement& s) const {
    const std::string result = s.result == kNoRegister ? "" : Cat(Carried(s.result), " = ");
    const std::string operands = Names(s.operands);
    const std::string site =
        Cat(" site ", s.site, " (", operands, ")", s.extra == kNoRegister ? "" : " extra ",
            s.extra == kNoRegister ? "" : Name(s.extra), s.where == kNoRegister ? "" : " where ",
            s.where == kNoRegister ? "" : Name(s.where));
    switch (s.code) {
      case Code::kNumber:
        return Cat(result, "number ", s.number);
      case Code::kInteger:
        return Cat(result, "integer ", s.number);
      case Code::kConstant:
        return Cat(result, s.number);
      case Code::kTime:
        return Cat(result, "step");
      case Code::kCall:
        return Cat(result, s.function, "(", operands, ")");
      case Code::kDeclare: {
        const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
        return Cat(NameOf(s.buffer), ": ", CarrierName(buffer.carrier), "[", buffer.count, "]",
                   buffer.offset < 0 ? "" : Cat(" at ", buffer.offset));
      }
      case Code::kLoad:
        return Cat(result, Name(s.buffer, s.index));
      case Code::kStore:
        return Cat(Name(s.buffer, s.index), " = ", operands);
      case Code::kEach:
        return Cat("each ", Name(s.result), " < ", s.operands.empty() ? Cat(s.number) : operands,
                   s.parallel ? "" : " in order", s.invariant ? " once" : "");
      case Code::kRepeat:
        return "repeat";
      case Code::kLeave:
        return Cat("leave ", operands);
      case Code::kExactSum:
        return Cat(result, "exact_sum_", precision::FormatName(s.format), "(",
                   Name(s.buffer, s.index), ", ", s.number, " by ", s.stride, ")");
      case Code::kLook:
        return Cat("look ", operands);
      case Code::kRange:
        return Cat("range ", precision::RoleName(s.role), " ", precision::FormatName(s.format),
                   " (", operands, ")", s.number == 1 ? "" : Cat(" times ", s.number));
      case Code::kStored:
        return Cat("stored ", precision::FormatName(s.format), " ", operands);
      case Code::kAbsorbed:
        return Cat("absorbed", site, s.number == 1 ? "" : Cat(" times ", s.number));
      case Code::kCommit:
        return s.before_stop ? "commit before stop" : "commit";
      case Code::kIf:
        return Cat("if ", operands);
      case Code::kPush:
        return Cat(result, "push ", s.number, " bytes");
      case Code::kKeep:
        return Cat(InFrame(s), " = ", operands);
      case Code::kRecall:
        return Cat(result, InFrame(s));
      case Code::kSeed:
        return Cat(result, "seed");
      case Code::kTake:
        return Cat("take ", operands);
      case Code::kTest:
        return Cat("test", site);
      case Code::kRun:
        return Cat("run", site);
      case Code::kDecide:
        return Cat("decide", site);
    }
    return "";
  }

  void Block(const std::vector<Statement>& statements, int depth) {
    for (const Statement& s : statements) {
      text_ += Cat(std::string(static_cast<size_t>(2 * depth), ' '), Head(s),
                   s.comment.empty() ? "" : "  # ", s.comment, "\n");
      Block(s.body, depth + 1);
    }
  }

  const Function& function_;
  std::string text_;
};

}  // namespace

std::string Print(const Function& function) {
  if (function.pieces.empty()) return Printer(function).Text();
  std::string text;
  for (const Function& piece : function.pieces) text += Print(piece);
  return text;
}

std::string Print(const Plan& plan) {
  std::string text;
  for (const Function* function :
       {&plan.start, &plan.step, &plan.finish, &plan.replay, &plan.reverse_terminal,
        &plan.reverse_last, &plan.reverse, &plan.reverse_initial}) {
    if (!function->statements.empty() || !function->pieces.empty()) text += Print(*function);
  }
  return text;
}

}  // namespace simgrad::sim::plan
