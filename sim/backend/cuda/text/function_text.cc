#include "sim/backend/cuda/text/function_text.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "sim/backend/cuda/text/element_owners.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

using plan::Buffer;
using plan::BufferId;
using plan::BufferKind;
using plan::Code;
using plan::Register;
using plan::Statement;
using PlanCarrier = plan::Carrier;

constexpr int64_t kUnitBytes = 4;  // of the tape

int64_t ElementBytes(PlanCarrier carrier) {
  if (carrier == PlanCarrier::kBool) return 1;
  return carrier == PlanCarrier::kF64 || carrier == PlanCarrier::kI64 ? 8 : 4;
}

bool IsInteger(PlanCarrier carrier) {
  return carrier == PlanCarrier::kI32 || carrier == PlanCarrier::kI64 || IsUnsigned(carrier);
}

// "_speed" of a value's name, or nothing.
std::string Suffix(const std::string& name) {
  constexpr size_t kLongest = 40;
  std::string suffix = name.empty() ? "" : "_";
  for (char c : name.substr(0, kLongest)) {
    suffix += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return suffix;
}

int64_t SizeOf(const std::vector<Statement>& statements) {
  int64_t size = 0;
  for (const Statement& s : statements) size += 1 + SizeOf(s.body);
  return size;
}

// The statements [begin, end) of a block that stand in a function of their own.
struct Cut {
  size_t begin = 0;
  size_t end = 0;
  int function = 0;
};

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
        register_home_(function.registers.size(), kNowhere),
        buffer_home_(function.buffers.size(), kNowhere),
        offsets_(function.buffers.size(), -1),
        register_names_(function.registers.size()) {
    if (function.frame != plan::kNoRegister) UseRegister(function.frame, 0);
    CutBlock(function.statements, 0);
    if (block_) PlaceArrays(function.statements, 0);
  }

  FunctionText Write() {
    text_.Open(Head());
    if (functions_ > 1) text_.Line(Cat(FrameType(), " f;"));
    const bool reverses = &function_ == &plan_.reverse || &function_ == &plan_.reverse_last;
    if (reverses && function_.frame != plan::kNoRegister) {
      text_.Line(Cat(IsMember(function_.frame) ? "" : "[[maybe_unused]] const int64_t ",
                     Reg(function_.frame), " = frame;"));
    }
    Block(function_.statements);
    if (&function_ == &plan_.replay) {
      const bool none = function_.frame == plan::kNoRegister;
      text_.Line(Cat("return ", none ? "0" : Reg(function_.frame), ";"));
    }
    text_.Close();
    FunctionText made;
    made.text = Cat(FrameText(), before_, text_.text(), "\n");
    made.workspace = workspace_;
    made.functions = functions_;
    return made;
  }

 private:
  static constexpr int kNowhere = -1;
  static constexpr int kSeveral = -2;

  // ---- cuts ----

  void UseRegister(Register r, int home) {
    if (r == plan::kNoRegister) return;
    int& at = register_home_[static_cast<size_t>(r)];
    at = at == kNowhere || at == home ? home : kSeveral;
  }
  void UseBuffer(BufferId id, int home) {
    if (id == plan::kNoBuffer) return;
    int& at = buffer_home_[static_cast<size_t>(id)];
    at = at == kNowhere || at == home ? home : kSeveral;
  }
  void UseIn(const Statement& s, int home) {
    for (Register r : {s.result, s.extra, s.where, s.iteration, s.element, s.frame}) {
      UseRegister(r, home);
    }
    for (Register r : s.operands) UseRegister(r, home);
    for (const auto& [r, stride] : s.index.terms) UseRegister(r, home);
    UseRegister(s.index.moved, home);
    UseBuffer(s.buffer, home);
    CutBlock(s.body, home);
  }
  // Statements that stand side by side, up to the budget, are a function; what is longer alone is
  // cut inside.
  void CutBlock(const std::vector<Statement>& statements, int home) {
    if (SizeOf(statements) <= options_.longest || home != 0) {
      for (const Statement& s : statements) UseIn(s, home);
      return;
    }
    std::vector<Cut>& cuts = cuts_[&statements];
    int64_t size = 0;
    bool joins = false;
    for (size_t k = 0; k < statements.size(); ++k) {
      const int64_t own = 1 + SizeOf(statements[k].body);
      if (own > options_.longest) {
        joins = false;
        UseIn(statements[k], 0);
        continue;
      }
      joins = joins && size + own <= options_.longest;
      if (!joins) {
        cuts.push_back({k, k, functions_++});
        size = 0;
      }
      joins = true;
      size += own;
      cuts.back().end = k + 1;
      UseIn(statements[k], cuts.back().function);
    }
  }

  bool IsMember(Register r) const { return register_home_[static_cast<size_t>(r)] == kSeveral; }
  bool IsMember(BufferId id, bool) const {
    return buffer_home_[static_cast<size_t>(id)] == kSeveral;
  }

  // ---- the workspace ----

  static int64_t BytesIn(const Buffer& buffer) {
    constexpr int64_t kAlignment = 16;
    return (buffer.count * ElementBytes(buffer.carrier) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Places the arrays that a block declares from `used` on; their memory is free again behind it.
  void PlaceArrays(const std::vector<Statement>& statements, int64_t used) {
    for (const Statement& s : statements) {
      if (s.code == Code::kDeclare && InWorkspace(s.buffer)) {
        offsets_[static_cast<size_t>(s.buffer)] = used;
        used += BytesIn(function_.buffers[static_cast<size_t>(s.buffer)]);
        workspace_ = std::max(workspace_, used);
      }
      PlaceArrays(s.body, used);
    }
  }
  bool Overlap(int64_t a, int64_t b) const {
    const auto end = [&](int64_t id) {
      return offsets_[static_cast<size_t>(id)] +
             BytesIn(function_.buffers[static_cast<size_t>(id)]);
    };
    return offsets_[static_cast<size_t>(a)] < end(b) && offsets_[static_cast<size_t>(b)] < end(a);
  }
  // If memory of the array was touched under another name, the array counts as touched.
  void TakeOver(BufferId id) {
    for (const Access& access : touched_) {
      const bool is_array = access.memory >= 0 && access.memory != id &&
                            offsets_[static_cast<size_t>(access.memory)] >= 0;
      if (!is_array || !Overlap(access.memory, id)) continue;
      touched_.insert({id, true, {}});
      return;
    }
  }

  // ---- words ----

  std::string FrameType() const { return Cat(name_, "Values"); }
  std::string Head() const {
    const bool reverses = &function_ == &plan_.reverse || &function_ == &plan_.reverse_last;
    return Cat("__device__ inline ", &function_ == &plan_.replay ? "int64_t " : "void ", name_,
               "(Instance& self", reverses ? ", [[maybe_unused]] int64_t frame" : "", ")");
  }
  // The struct of values that the pieces of this function share.
  std::string FrameText() {
    if (functions_ == 1) return "";
    TextWriter text;
    text.Open(Cat("struct ", FrameType()));
    for (size_t r = 0; r < register_home_.size(); ++r) {
      if (register_home_[r] != kSeveral) continue;
      text.Line(Cat(TypeText(function_.registers[r]), " r", r, register_names_[r], ";"));
    }
    for (size_t id = 0; id < buffer_home_.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      if (buffer_home_[id] != kSeveral || buffer.kind != BufferKind::kLocal) continue;
      if (!InWorkspace(static_cast<BufferId>(id))) {
        text.Line(DeclarationOf(static_cast<BufferId>(id)));
      }
    }
    text.Close("};");
    return text.text();
  }

  PlanCarrier CarrierOf(Register r) const { return function_.registers[static_cast<size_t>(r)]; }
  std::string Reg(Register r) const {
    return Cat(IsMember(r) ? "f." : "", "r", r, register_names_[static_cast<size_t>(r)]);
  }
  std::string RegOr(Register r, const char* otherwise) const {
    return r == plan::kNoRegister ? otherwise : Reg(r);
  }
  std::string BufferName(BufferId id) const {
    return Cat("b", id, Suffix(function_.buffers[static_cast<size_t>(id)].name));
  }
  bool InWorkspace(BufferId id) const { return block_ && owners_.IsShared(id); }
  std::string DeclarationOf(BufferId id) const {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
    const std::string extent =
        buffer.count == 1 ? "" : Cat("[", std::max<int64_t>(buffer.count, 1), "]");
    return Cat(TypeText(buffer.carrier), " ", BufferName(id), extent, ";");
  }
  std::string ElementText(const plan::Index& index) const {
    std::string text = index.base != 0 || (index.terms.empty() && index.moved == plan::kNoRegister)
                           ? std::to_string(index.base)
                           : "";
    for (const auto& [r, stride] : index.terms) {
      if (!text.empty()) text += " + ";
      text += stride == 1 ? Reg(r) : Cat(stride, " * ", Reg(r));
    }
    if (index.moved != plan::kNoRegister) text += Cat(text.empty() ? "" : " + ", Reg(index.moved));
    return text;
  }

  // An element of a buffer; what can be written is an lvalue.
  std::string ElementOf(BufferId id, const std::string& at) const {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
    const size_t number = static_cast<size_t>(buffer.number);
    const std::string subscript = buffer.count == 1 ? "" : Cat("[", at, "]");
    switch (buffer.kind) {
      case BufferKind::kLocal:
        if (InWorkspace(id)) {
          return Cat("At<", TypeText(buffer.carrier), ">(self, ", offsets_[static_cast<size_t>(id)],
                     ")[", at, "]");
        }
        return Cat(IsMember(id, true) ? "f." : "", BufferName(id), subscript);
      case BufferKind::kField:
        return Cat("self.f", number, subscript);
      case BufferKind::kInput:
        return InputText(buffer, at);
      case BufferKind::kTable:
        return NumberText(buffer.carrier, Cat(buffer.number, " + ", at));
      case BufferKind::kSent:
        return SentText(buffer, at);
      case BufferKind::kGradient: {
        const int field = options_.gradient[number];
        if (!options_.gradient_kept[number]) return Cat("self.At", field, "(", at, ")");
        return Cat("self.f", field, subscript);
      }
      case BufferKind::kConnected:
        break;
    }
    return Cat("self.f", options_.connected[number]);
  }

  std::string InputText(const Buffer& buffer, const std::string& at) const {
    const std::string type = TypeText(buffer.carrier);
    const int64_t config = options_.config[static_cast<size_t>(buffer.number)];
    if (config >= 0) return NumberText(buffer.carrier, std::to_string(config));
    if (options_.reads_once[static_cast<size_t>(buffer.number)])
      return Cat("self.in", buffer.number);
    const std::string place =
        Cat("(self.args.input[", buffer.number, "], self.instance, self.read_time, ", at, ")");
    if (buffer.carrier == PlanCarrier::kU8) return Cat("ReadInteger<uint8_t>", place);
    if (!IsReal(buffer.carrier)) return Cat("ReadInteger<", type, ">", place);
    return buffer.carrier == PlanCarrier::kF64 ? Cat("ReadReal", place)
                                               : Cat("static_cast<float>(ReadReal", place, ")");
  }
  static std::string NumberText(PlanCarrier carrier, const std::string& at) {
    switch (carrier) {
      case PlanCarrier::kF64:
        return RealText(at);
      case PlanCarrier::kF32:
        return Cat("static_cast<float>(", RealText(at), ")");
      case PlanCarrier::kBool:
        return Cat("(", IntegerText(at), " != 0)");
      default:
        return Cat("WrapTo<", TypeText(carrier), ">(", IntegerText(at), ")");
    }
  }
  // The first of the tables are in registers; most programs have no more.
  static bool IsKept(const std::string& at) {
    int64_t place = 0;
    return absl::SimpleAtoi(at, &place) && place < kKeptNumbers;
  }
  static std::string RealText(const std::string& at) {
    return IsKept(at) ? Cat("self.n", at) : Cat("self.args.number[", at, "]");
  }
  static std::string IntegerText(const std::string& at) {
    return IsKept(at) ? Cat("self.i", at) : Cat("self.args.integer[", at, "]");
  }
  std::string SentText(const Buffer& buffer, const std::string& at) const {
    const plan::Sent& sent = plan_.sent[static_cast<size_t>(buffer.number)];
    std::string list = "sent_final_state";
    std::string entry = "self.instance";
    if (sent.kind == plan::SentKind::kTrajectoryState) {
      list = "sent_trajectory_state";
      entry = "(self.instance * (self.args.steps + 1) + self.t)";
    } else if (sent.kind == plan::SentKind::kTrajectoryExport) {
      list = "sent_trajectory_export";
      entry = "(self.instance * self.args.steps + self.t)";
    }
    return Cat("ReadCotangent<", FormatText(options_.adjoint_format), ">(self.args.", list, "[",
               sent.index, "], ", entry, " * ", buffer.count, " + ", at, ", self.args.seed)");
  }

  // ---- statements ----

  // result = value
  void Set(const Statement& s, const std::string& value) {
    register_names_[static_cast<size_t>(s.result)] = Suffix(s.comment);
    const bool member = IsMember(s.result);
    text_.Line(Cat(member ? "" : Cat("const ", TypeText(CarrierOf(s.result)), " "), Reg(s.result),
                   " = ", value, ";"));
  }
  void SetCounter(const Statement& s, const std::string& value) {
    text_.Line(Cat(IsMember(s.result) ? "" : "const int64_t ", Reg(s.result), " = ", value, ";"));
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
    const auto cuts = cuts_.find(&statements);
    if (cuts == cuts_.end()) {
      for (const Statement& s : statements) One(s);
      return;
    }
    size_t k = 0;
    for (const Cut& cut : cuts->second) {
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
    const std::string name = Cat(name_, cut.function);
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
    Nested(Cat("for (", IsMember(s.result) ? "" : "int64_t ", r, " = 0; ", r, " < ", extent, "; ++",
               r, ")"),
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

  void Declare(const Statement& s) {
    if (InWorkspace(s.buffer)) return TakeOver(s.buffer);
    if (!IsMember(s.buffer, true)) text_.Line(DeclarationOf(s.buffer));
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
    const std::string at = Cat(Reg(s.frame), " + ", s.number / kUnitBytes);
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
        return Set(s, NumberText(CarrierOf(s.result), std::to_string(s.number)));
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
        return Set(
            s, Cat("self.", pushes_in_turn_ ? "PushInTurn(" : "Push(", s.number / kUnitBytes, ")"));
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
  std::vector<int> register_home_;  // the function that uses it, or kSeveral
  std::vector<int> buffer_home_;
  std::map<const std::vector<Statement>*, std::vector<Cut>> cuts_;
  int functions_ = 1;
  std::vector<int64_t> offsets_;  // in the workspace, by buffer
  std::vector<std::string> register_names_;
  TextWriter text_;
  std::string before_;  // the functions that this one is cut into
  std::string leave_ = "break;";
  bool inside_ = false;  // a loop that is shared out
  bool pushes_in_turn_ = false;
  Accesses touched_;  // since the last barrier
  int64_t workspace_ = 0;
};

}  // namespace

FunctionText WriteFunction(const plan::Plan& plan, const plan::Function& function,
                           const TextOptions& options, const std::string& name) {
  return Writer(plan, function, options, name).Write();
}

std::string TypeText(plan::Carrier carrier) {
  constexpr std::string_view kNames[] = {"bool",   "int32_t",  "int64_t", "float",
                                         "double", "uint32_t", "uint32_t"};
  return std::string(kNames[static_cast<size_t>(carrier)]);
}

std::string FormatText(precision::Format format) {
  constexpr std::string_view kNames[] = {"kF64", "kF32", "kBf16", "kF16", "kE4m3", "kE5m2"};
  return Cat("Format::", kNames[static_cast<size_t>(format)]);
}

std::string HashText(uint64_t hash) { return Cat(hash, "u"); }

}  // namespace simgrad::sim::cuda
