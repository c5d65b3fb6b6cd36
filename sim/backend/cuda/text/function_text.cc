#include "sim/backend/cuda/text/function_text.h"

#include <utility>
#include <vector>

#include "sim/backend/cuda/text/element_owners.h"
#include "sim/backend/cuda/text/function_cuts.h"
#include "sim/backend/cuda/text/operand_text.h"
#include "sim/backend/cuda/text/shared_arrays.h"
#include "sim/backend/cuda/text/words.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

using plan::Buffer;
using plan::BufferId;
using plan::Code;
using plan::Register;
using plan::Statement;
using Cut = FunctionCuts::Cut;
using PlanCarrier = plan::Carrier;

bool IsInteger(PlanCarrier carrier) {
  return carrier == PlanCarrier::kI32 || carrier == PlanCarrier::kI64 || IsUnsigned(carrier);
}

class Writer {
 public:
  Writer(const plan::Plan& plan, const plan::Function& function, const TextOptions& options,
         const std::string& name)
      : plan_(plan),
        function_(function),
        options_(options),
        name_(name),
        block_(options.mapping == Mapping::kBlockPerInstance),
        owners_(function, options.gradient_kept, options.tells_instances),
        cuts_(function, options.longest),
        arrays_(function, owners_, options.mapping),
        operands_(plan, function, options, cuts_, arrays_) {}

  FunctionText Write() {
    text_.Open(Head());
    if (cuts_.pieces() > 1) text_.Line(Cat(FrameType(), " f;"));
    if (Reverses() && function_.frame != plan::kNoRegister) {
      text_.Line(Cat(cuts_.IsShared(function_.frame) ? "" : "[[maybe_unused]] const int64_t ",
                     Reg(function_.frame), " = frame;"));
    }
    Block(function_.statements);
    if (&function_ == &plan_.replay) {
      const bool none = function_.frame == plan::kNoRegister;
      text_.Line(Cat("return ", none ? "0" : Reg(function_.frame), ";"));
    }
    text_.Close();
    FunctionText made;
    made.text = Cat(operands_.FrameText(FrameType()), before_, text_.text(), "\n");
    made.workspace = arrays_.bytes();
    return made;
  }

 private:
  // ---- words ----

  bool Reverses() const {
    return &function_ == &plan_.reverse || &function_ == &plan_.reverse_last;
  }
  std::string FrameType() const { return Cat(name_, "Values"); }
  std::string Head() const {
    return Cat("__device__ inline ", &function_ == &plan_.replay ? "int64_t " : "void ", name_,
               "(Instance& self", Reverses() ? ", [[maybe_unused]] int64_t frame" : "", ")");
  }

  PlanCarrier CarrierOf(Register r) const { return operands_.CarrierOf(r); }
  std::string Reg(Register r) const { return operands_.Reg(r); }
  std::string RegOr(Register r, const char* otherwise) const {
    return operands_.RegOr(r, otherwise);
  }
  std::string ElementText(const plan::Index& index) const { return operands_.ElementText(index); }
  std::string ElementOf(BufferId id, const std::string& at) const {
    return operands_.ElementOf(id, at);
  }

  // ---- statements ----

  // result = value
  void Set(const Statement& s, const std::string& value) {
    operands_.Name(s.result, s.comment);
    const bool member = cuts_.IsShared(s.result);
    text_.Line(Cat(member ? "" : Cat("const ", TypeText(CarrierOf(s.result)), " "), Reg(s.result),
                   " = ", value, ";"));
  }
  void SetCounter(const Statement& s, const std::string& value) {
    text_.Line(
        Cat(cuts_.IsShared(s.result) ? "" : "const int64_t ", Reg(s.result), " = ", value, ";"));
  }

  // Whether all threads of a block come to this statement.
  bool AllCome() const { return block_ && !inside_; }
  void Barrier() {
    text_.Line("__syncthreads();");
    touched_.clear();
  }
  void Wait(const Accesses& accesses) {
    if (!AllCome()) return;
    if (ElementOwners::Meet(touched_, accesses)) Barrier();
    touched_.insert(accesses.begin(), accesses.end());
  }
  std::string Speaking() const { return AllCome() ? "if (self.speaks) " : ""; }

  void Block(const std::vector<Statement>& statements) {
    const std::vector<Cut>* const cuts = cuts_.Of(statements);
    if (cuts == nullptr) {
      for (const Statement& s : statements) One(s);
      return;
    }
    size_t k = 0;
    for (const Cut& cut : *cuts) {
      for (; k < cut.begin; ++k) One(statements[k]);
      WriteCut(statements, cut);
      k = cut.end;
    }
    for (; k < statements.size(); ++k) One(statements[k]);
  }

  void WriteCut(const std::vector<Statement>& statements, const Cut& cut) {
    bool leaves = false;
    for (size_t k = cut.begin; k < cut.end; ++k) {
      leaves = leaves || statements[k].code == Code::kLeave;
    }
    const std::string name = Cat(name_, cut.piece);
    TextWriter around = std::exchange(text_, TextWriter(0));
    text_.Open(Cat("__device__ __noinline__ ", leaves ? "bool " : "void ", name,
                   "([[maybe_unused]] Instance& self, [[maybe_unused]] ", FrameType(), "& f)"));
    leave_ = "return true;";
    for (size_t k = cut.begin; k < cut.end; ++k) One(statements[k]);
    leave_ = "break;";
    if (leaves) text_.Line("return false;");
    text_.Close();
    before_ += text_.text();
    text_ = std::move(around);
    text_.Line(leaves ? Cat("if (", name, "(self, f)) break;") : Cat(name, "(self, f);"));
  }

  // A block of statements that is run once more, or perhaps not at all.
  void Nested(const std::string& head, const std::vector<Statement>& body, bool repeats) {
    const Accesses all = AllCome() ? owners_.Of(body) : Accesses();
    Accesses before = touched_;
    before.insert(all.begin(), all.end());
    if (repeats) touched_ = before;
    const std::string leave = std::exchange(leave_, repeats ? "break;" : leave_);
    text_.Open(head);
    Block(body);
    text_.Close();
    leave_ = leave;
    touched_.insert(before.begin(), before.end());
  }

  void Each(const Statement& s) {
    if (AllCome()) {
      const SharedLoop loop = owners_.ShareOut(s);
      if (loop.body != nullptr) return ShareOut(s, loop);
    }
    const std::string extent = s.operands.empty() ? std::to_string(s.number) : Reg(s.operands[0]);
    const std::string r = Reg(s.result);
    Nested(Cat("for (", cuts_.IsShared(s.result) ? "" : "int64_t ", r, " = 0; ", r, " < ", extent,
               "; ++", r, ")"),
           s.body, true);
  }

  // Turn k is that of thread k mod block size.
  void ShareOut(const Statement& s, const SharedLoop& loop) {
    const Accesses accesses = owners_.Of(s);
    Wait(accesses);
    if (loop.pushes) {
      text_.Line("self.OpenTurns();");
      touched_.clear();
    }
    const std::string k = Cat("k", s.result);
    const std::string first = loop.in_order ? "self.speaks ? 0 : " + std::to_string(loop.turns())
                                            : std::string("threadIdx.x");
    text_.Open(Cat("for (int64_t ", k, " = ", first, "; ", k, " < ", loop.turns(), "; ",
                   loop.in_order ? Cat("++", k) : Cat(k, " += blockDim.x"), ")"));
    Statement counter;
    int64_t below = loop.turns();
    for (size_t depth = 0; depth < loop.counters.size(); ++depth) {
      counter.result = loop.counters[depth];
      const int64_t around = below;
      below /= loop.extents[depth];
      std::string value = depth == 0 ? k : Cat(k, " % ", around);
      if (below > 1)
        value = depth == 0 ? Cat(k, " / ", below) : Cat(k, " % ", around, " / ", below);
      SetCounter(counter, value);
    }
    inside_ = true;
    pushes_in_turn_ = loop.pushes;
    Block(*loop.body);
    inside_ = pushes_in_turn_ = false;
    text_.Close();
    if (loop.pushes) text_.Line("self.CloseTurns();");
    for (BufferId flag : loop.flags) {
      const std::string name = ElementOf(flag, "0");
      text_.Line(Cat(name, " = self.Any(", name, ");"));
    }
    if (loop.pushes || !loop.flags.empty()) {
      touched_.clear();
    } else {
      touched_.insert(accesses.begin(), accesses.end());
    }
  }

  void Commit(const Statement& s) {
    if (s.before_stop) return Block(s.body);
    text_.Open("if (self.Commits())");
    touched_.clear();  // it waits
    Block(s.body);
    text_.Close();
  }

  // If memory of the array was touched under another name, the array counts as touched.
  void TakeOver(BufferId id) {
    for (const Access& access : touched_) {
      if (access.memory < 0 || access.memory == id) continue;
      const BufferId other = static_cast<BufferId>(access.memory);
      if (!arrays_.IsPlaced(other) || !arrays_.Overlap(other, id)) continue;
      touched_.insert({id, true, {}});
      return;
    }
  }
  void Declare(const Statement& s) {
    if (arrays_.IsPlaced(s.buffer)) return TakeOver(s.buffer);
    if (!cuts_.IsSharedBuffer(s.buffer)) text_.Line(operands_.DeclarationOf(s.buffer));
  }

  void Store(const Statement& s) {
    const bool shared = AllCome() && owners_.IsShared(s.buffer);
    if (shared) Wait(owners_.Of(s));
    text_.Line(Cat(shared ? "if (self.speaks) " : "", ElementOf(s.buffer, ElementText(s.index)),
                   " = ", Reg(s.operands[0]), ";"));
  }

  void ExactSum(const Statement& s) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
    const std::string start = ElementText(s.index);
    if (AllCome()) {
      Wait(owners_.Of(s));
      const std::string at = Cat(start, " + ", s.stride, " * i");
      Set(s,
          Cat("BlockExactSum<", FormatText(s.format), ", ", s.number, ">([&](int i) { return ",
              ElementOf(s.buffer, at), "; }, &self.shared.exact_sum, &self.shared.exact_result)"));
      touched_.clear();
      return;
    }
    Set(s,
        Cat("exact_sum_", plan::CarrierName(buffer.carrier), "_", precision::FormatName(s.format),
            "(&", ElementOf(s.buffer, start), ", ", s.stride, ", ", s.number, ")"));
  }

  void Frame(const Statement& s) {
    const std::string at = Cat(Reg(s.frame), " + ", s.number / kTapeUnitBytes);
    if (s.code == Code::kKeep) {
      Wait(owners_.Of(s));
      text_.Line(Cat(Speaking(), "self.Keep(", at, ", ", ElementText(s.index), ", ",
                     Reg(s.operands[0]), ");"));
      return;
    }
    Wait(owners_.Of(s));
    Set(s, Cat("self.Recall<", TypeText(CarrierOf(s.result)), ">(", at, ", ", ElementText(s.index),
               ")"));
  }

  std::string DistanceText(const Statement& s) const {
    const PlanCarrier of = CarrierOf(s.operands[0]);
    const std::string sides = Cat(Reg(s.operands[0]), ", ", Reg(s.operands[1]));
    if (IsInteger(of)) return Cat("IntegerDistance(", sides, ")");
    const char* const none = of == PlanCarrier::kF64 ? "0.0" : "0.0f";
    return Cat("DistanceOf<", FormatText(s.format), ">(", sides, ", ", RegOr(s.extra, none), ")");
  }

  void Look(const Statement& s) {
    const std::string finite = Cat("!is_finite_", plan::CarrierName(CarrierOf(s.operands[0])), "(",
                                   Reg(s.operands[0]), ")");
    const bool guarded = s.operands.size() > 1;
    text_.Line(Cat("self.bad |= ", guarded ? Cat(Reg(s.operands[1]), " && ") : "", finite, ";"));
  }

  void Range(const Statement& s) {
    const std::string where = s.operands.size() > 2 ? Cat("if (", Reg(s.operands[2]), ") ") : "";
    text_.Line(Cat(Speaking(), where, "self.CountRange<", FormatText(s.format), ">(",
                   static_cast<int>(s.role), ", ", Reg(s.operands[0]), ", ", Reg(s.operands[1]),
                   ", ", s.number, ");"));
  }

  void Stored(const Statement& s) {
    text_.Line(Cat(Speaking(), "self.CountStore<", FormatText(s.format), ">(",
                   static_cast<int>(s.role), ", ", Reg(s.operands[0]), ");"));
  }

  void Absorbed(const Statement& s) {
    text_.Line(Cat(Speaking(), "self.CountAddition(", s.site, ", ", Reg(s.operands[0]), ", ",
                   Reg(s.operands[1]), ", ", Reg(s.operands[2]), ", ", s.number, ");"));
  }

  void Take(const Statement& s) {
    const std::string say = Speaking();
    if (!options_.records) return;
    text_.Line(Cat(say, "self.Take<", FormatText(s.format), ">(", static_cast<int>(s.role), ", ",
                   Reg(s.operands[0]), ", ", Reg(s.operands[1]), ");"));
  }

  void Test(const Statement& s) {
    const auto operand = [&](size_t k) { return Reg(s.operands[k]); };
    const std::string say = Speaking();
    const bool guarded = s.where != plan::kNoRegister;
    text_.Line(Cat(say, guarded ? Cat("if (", Reg(s.where), ") ") : "", "self.Test(", s.site, ", ",
                   DistanceText(s), ", ", operand(2),
                   s.operands.size() > 3 ? Cat(", ", operand(3)) : "", ");"));
    if (!options_.tells_instances) return;
    // The entry test and the first test have one value.
    const std::string now = guarded ? Cat("if (", Reg(s.where), " && ", operand(2), ") ") : "";
    text_.Line(
        Cat(say, now, "self.TellTested(", s.site, ", static_cast<double>(", operand(0), "));"));
  }

  void EndRun(const Statement& s) {
    const plan::RecordedSite& site = plan_.terminations[static_cast<size_t>(s.site)];
    text_.Line(Cat(Speaking(), "self.EndRun(", s.site, ", ", PlaceText(s, "Loop", site.hash), ", ",
                   Reg(s.operands[0]), ", ", Reg(s.operands[1]), ", static_cast<double>(",
                   Reg(s.operands[2]), "));"));
  }

  void Decide(const Statement& s) {
    const plan::RecordedSite& site = plan_.events[static_cast<size_t>(s.site)];
    const std::string element = RegOr(s.element, "0");
    const std::string last =
        site.elements == 1 ? Cat("self.last", s.site) : Cat("self.Last", s.site, "(", element, ")");
    text_.Line(Cat(Speaking(), "self.Decide(", s.site, ", ", PlaceText(s, "Event", site.hash), ", ",
                   RegOr(s.where, "true"), ", ", DistanceText(s), ", ", Reg(s.operands[2]), ", ",
                   last, ");"));
  }

  // The hash of where a site decides; a block knows it where that is once in a step.
  std::string PlaceText(const Statement& s, const char* kind, uint64_t hash) const {
    const std::string iteration = RegOr(s.iteration, "0");
    const std::string element = RegOr(s.element, "0");
    if (iteration == "0" && element == "0") return Cat("self.", kind, "Place(", s.site, ")");
    return Cat("self.PlaceOf(", HashText(hash), ", ", iteration, ", ", element, ")");
  }

  void Call(const Statement& s) {
    std::string operands;
    for (Register r : s.operands) operands += Cat(operands.empty() ? "" : ", ", Reg(r));
    Set(s, Cat(s.function, "(", operands, ")"));
  }

  void Constant(const Statement& s) {
    const PlanCarrier carrier = CarrierOf(s.result);
    std::string number = std::to_string(s.number);
    if (carrier == PlanCarrier::kBool) number = s.number != 0 ? "true" : "false";
    if (carrier == PlanCarrier::kF32) number += ".0f";
    if (carrier == PlanCarrier::kF64) number += ".0";
    Set(s, number);
  }

  void One(const Statement& s) {
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
        return Set(s, OperandText::NumberText(CarrierOf(s.result), std::to_string(s.number)));
      case Code::kConstant:
        return Constant(s);
      case Code::kTime:
        return Set(s, Cat("static_cast<", TypeText(CarrierOf(s.result)), ">(self.t)"));
      case Code::kCall:
        return Call(s);
      case Code::kDeclare:
        return Declare(s);
      case Code::kLoad:
        Wait(AllCome() ? owners_.Of(s) : Accesses());
        return Set(s, ElementOf(s.buffer, ElementText(s.index)));
      case Code::kStore:
        return Store(s);
      case Code::kEach:
        return Each(s);
      case Code::kRepeat:
        return Nested("for (;;)", s.body, true);
      case Code::kLeave:
        return text_.Line(Cat("if (", Reg(s.operands[0]), ") ", leave_));
      case Code::kExactSum:
        return ExactSum(s);
      case Code::kCommit:
        return Commit(s);
      case Code::kIf:
        return Nested(Cat("if (", Reg(s.operands[0]), ")"), s.body, false);
      case Code::kPush:
        return Set(s, Cat("self.", pushes_in_turn_ ? "PushInTurn(" : "Push(",
                          s.number / kTapeUnitBytes, ")"));
      case Code::kKeep:
      case Code::kRecall:
        return Frame(s);
      case Code::kSeed:
        return Set(s, Cat("static_cast<", TypeText(CarrierOf(s.result)), ">(self.args.seed)"));
      case Code::kLook:
        return Look(s);
      case Code::kRange:
        return Range(s);
      case Code::kStored:
        return Stored(s);
      case Code::kAbsorbed:
        return Absorbed(s);
      case Code::kTake:
        return Take(s);
      case Code::kTest:
        return Test(s);
      case Code::kRun:
        return EndRun(s);
      case Code::kDecide:
        return Decide(s);
    }
  }

  const plan::Plan& plan_;
  const plan::Function& function_;
  const TextOptions& options_;
  const std::string name_;
  const bool block_;
  const ElementOwners owners_;
  const FunctionCuts cuts_;
  const SharedArrays arrays_;
  OperandText operands_;
  TextWriter text_;
  std::string before_;  // the functions that this one is cut into
  std::string leave_ = "break;";
  bool inside_ = false;  // a loop that is shared out
  bool pushes_in_turn_ = false;
  Accesses touched_;  // since the last barrier
};

}  // namespace

FunctionText WriteFunction(const plan::Plan& plan, const plan::Function& function,
                           const TextOptions& options, const std::string& name) {
  return Writer(plan, function, options, name).Write();
}

}  // namespace simgrad::sim::cuda
