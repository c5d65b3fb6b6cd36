#include "sim/backend/compiled/writer/function_writer.h"

#include <llvm/IR/MDBuilder.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "sim/backend/compiled/analysis/statement_cost.h"
#include "sim/backend/compiled/analysis/taken_fields.h"
#include "sim/backend/compiled/scalars/scalar_module.h"
#include "sim/backend/compiled/scalars/widen.h"
#include "sim/backend/compiled/writer/control_writer.h"
#include "sim/backend/compiled/writer/element_address.h"
#include "sim/backend/compiled/writer/fuel_writer.h"
#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/backend/compiled/writer/invariant_writer.h"
#include "sim/backend/compiled/writer/memory_writer.h"
#include "sim/backend/compiled/writer/record_writer.h"
#include "sim/backend/compiled/writer/tape_writer.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;
using plan::Buffer;
using plan::Carrier;
using plan::Code;
using plan::Register;
using plan::Statement;

class FunctionWriter {
 public:
  // `owner` is the function of the plan that `function` is, or is a piece of.
  FunctionWriter(llvm::Module& module, const plan::Plan& plan, const plan::Function& owner,
                 const plan::Function& function, const WriterOptions& options,
                 const std::string& name)
      : f_(module, plan, owner, function, options, name),
        b_(f_.b()),
        fuel_(f_),
        tape_(f_),
        memory_(f_),
        records_(f_.lanes(), plan, function),
        invariants_(f_, records_),
        control_(f_, fuel_, tape_,
                 [this](const std::vector<Statement>& statements) { Block(statements); }),
        taken_(function) {}

  void Write(StepOrder order) {
    ReadArguments();
    records_.Begin();
    BeginSteps();
    if (ReusesInvariants(f_, order)) {
      invariants_.Begin();
      memory_.ReuseInvariants();
    }
    Steps(order, [this](Value* column) { OneStep(column); });
    memory_.StoreFields();
    records_.End();
    EndSteps();
  }

  // A piece of every step. `step_pushes`: whether a piece of it pushes frames.
  llvm::Function* WritePiece(bool is_first, bool is_last, bool step_pushes) {
    Value* const carried = f_.made()->getArg(1);
    ReadArguments();
    memory_.BindPlaced();
    fuel_.SetPlace(f_.Offset(carried, kCarriedFuel));
    tape_.SetTop(f_.Offset(carried, kCarriedTop));
    f_.SetTime(f_.made()->getArg(2));
    records_.BeginPiece(f_.Offset(carried, kCarriedLooked), is_first, f_.column(), f_.time());
    fuel_.Charge(CostOf(f_.function().statements));
    Statements();
    if (is_last) EndStep(step_pushes);
    records_.End();
    b_.CreateRet(b_.getFalse());
    f_.End();
    return f_.made();
  }

  // Steps of which each calls the pieces.
  void WriteCalls(StepOrder order, const std::vector<llvm::Function*>& pieces) {
    ReadArguments();
    const int64_t looked = RecordWriter::LookedBytes(f_.options().shape);
    auto* const carried = f_.entry().CreateAlloca(
        b_.getInt8Ty(), b_.getInt64(kCarriedLooked + static_cast<uint64_t>(looked)));
    carried->setAlignment(llvm::Align(64));
    BeginSteps(carried);
    Steps(order, [&](Value* column) {
      if (f_.is_step()) tape_.Clear();
      for (llvm::Function* piece : pieces) {
        auto* const on = f_.NewBlock("on");
        Value* const stopped = b_.CreateCall(piece, {f_.Arguments(), carried, column});
        b_.CreateCondBr(stopped, fuel_.Stopped(), on);
        b_.SetInsertPoint(on);
      }
    });
    EndSteps();
  }

 private:
  // The pieces of a step hand these on: fuel, top of the tape, lanes that looked bad.
  static constexpr uint64_t kCarriedFuel = 0;
  static constexpr uint64_t kCarriedTop = 8;
  static constexpr uint64_t kCarriedLooked = 64;

  // ---- steps ----
  void ReadArguments() {
    f_.ReadArguments();
    memory_.Begin();
  }

  // `carried`: memory that the pieces hand on; null: the function is written in one.
  void BeginSteps(Value* carried = nullptr) {
    const auto place = [&](uint64_t offset) -> Value* {
      if (carried != nullptr) return f_.Offset(carried, offset);
      return f_.entry().CreateAlloca(b_.getInt64Ty());
    };
    tape_.SetTop(place(kCarriedTop));
    fuel_.SetPlace(place(kCarriedFuel));
    tape_.Clear();
    fuel_.Take();
  }

  void EndSteps() {
    fuel_.GiveBack();
    b_.CreateRetVoid();
    f_.End();
  }

  void Steps(StepOrder order, const std::function<void(Value* column)>& step) {
    if (order == StepOrder::kOne) return step(b_.getInt64(0));
    Value* const count = f_.Argument(kCount);
    f_.CountTo(count, [&](Value* counter) {
      Value* const last = b_.CreateSub(count, b_.getInt64(1));
      step(order == StepOrder::kDescending ? b_.CreateSub(last, counter) : counter);
    });
  }

  void OneStep(Value* column) {
    f_.SetTime(column);
    fuel_.Charge(CostOf(f_.function().statements));
    records_.BeginStep(column, f_.time());
    if (f_.is_step()) tape_.Clear();
    Statements();
    EndStep(HasPush(f_.function().statements));
    invariants_.EndStep();
  }

  void Statements() {
    f_.masks().running = records_.Running();
    tape_.BeginFrame();
    Block(f_.function().statements);
    tape_.EndFrame();
  }

  void EndStep(bool pushes) {
    if (f_.is_step() && pushes) tape_.Meter();
    const plan::Plan& plan = f_.plan();
    const plan::Function* const owner = &f_.owner();
    const bool reverses = owner == &plan.reverse || owner == &plan.reverse_last ||
                          owner == &plan.reverse_terminal || owner == &plan.reverse_initial;
    if (reverses) records_.Judge(f_.time(), false, 4);
    // A non-finite value before step 0 stops the instance in step 0.
    if (owner == &plan.start) records_.Judge(f_.time(), false, 2);
  }

  // Writes what a step gives: for the instances that it does not stop, or before that for all that ran it.
  void Commit(const Statement& s) {
    const bool stops = f_.options().stops;
    if (!s.before_stop) records_.Judge(f_.time(), stops, 2);
    Masks& masks = f_.masks();
    masks.running = records_.Running();
    if (f_.is_one() && stops) return control_.If(masks.running, s.body);
    masks.depth += stops ? 1 : 0;
    masks.now = masks.running;
    Block(s.body);
    masks.depth -= stops ? 1 : 0;
  }

  // ---- records ----
  void Record(const Statement& s) {
    Told told;
    for (Register r : s.operands) told.operands.push_back(f_.PartsOf(r));
    told.extra = f_.PartsOf(s.extra);
    told.where = f_.PartsOf(s.where);
    told.iteration = f_.PartsOf(s.iteration);
    if (s.element != plan::kNoRegister) told.element = f_.Uniform(s.element);
    told.mask = f_.masks().now;
    const Carrier of = f_.CarrierOf(s.operands[0]);
    const Carrier of_extra = s.extra == plan::kNoRegister ? of : f_.CarrierOf(s.extra);
    if (s.code == Code::kTake) records_.Take(s, told);
    if (s.code == Code::kLook) records_.Look(told);
    if (s.code == Code::kTest || s.code == Code::kRun || s.code == Code::kDecide) {
      records_.Decision(s, of, of_extra, told);
    }
    if (s.code == Code::kRange) records_.Range(s, of, told);
    if (s.code == Code::kStored) records_.Stored(s, told);
    if (s.code == Code::kAbsorbed) records_.Absorbed(s, told);
  }

  // Steps that are sampled are rare. A loop over elements is written twice, so that the one of other
  // steps counts nothing; elsewhere each addition asks.
  enum class Counting : uint8_t { kAsks, kCounts, kSkips };

  void Absorbed(const Statement& s) {
    if (counting_ == Counting::kSkips || !f_.options().ranges) return;
    if (counting_ == Counting::kCounts) return Record(s);
    WhereSampled([&] { Record(s); }, [] {});
  }

  void WhereSampled(const std::function<void()>& body, const std::function<void()>& otherwise) {
    auto* const sampled = f_.NewBlock("sampled");
    auto* const usual = f_.NewBlock("usual");
    auto* const after = f_.NewBlock("after");
    auto* const rare = llvm::MDBuilder(b_.getContext()).createBranchWeights(1, 1 << 16);
    b_.CreateCondBr(records_.IsSampled(), sampled, usual, rare);
    b_.SetInsertPoint(sampled);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(usual);
    otherwise();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  void TurnByTurn(const Statement& s) {
    for (int64_t turn = 0; turn < s.number; ++turn) {
      f_.SetUniform(s.result, f_.Int64(turn));
      Block(s.body);
    }
  }

  // One that can become vectors counts in 32 bits, where these suffice.
  void Loop(const Statement& s) {
    constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
    if (memory_.IsUnrolled(s)) return TurnByTurn(s);
    const bool is_innermost = f_.is_one() && s.parallel && s.operands.empty() && !HasLoop(s.body);
    const int64_t turns = std::max<int64_t>(s.number, 1);
    if (!is_innermost || MostCounted(s.body) > kMost / turns) return control_.Each(s);
    records_.BeginLoop();
    control_.Each(s);
    records_.EndLoop();
  }

  void Each(const Statement& s) {
    if (f_.is_one() && f_.options().ranges) {
      Statement rest;
      const std::vector<TakenField> taken = taken_.Of(s, rest);
      if (!taken.empty()) {
        Each(rest);
        return Take(taken);
      }
    }
    if (invariants_.Reuses(s)) return invariants_.Each([&] { control_.Each(s); });
    if (counting_ != Counting::kAsks || !f_.options().ranges || !HasAddition(s.body) ||
        !MayBeWrittenTwice(s.body)) {
      return Loop(s);
    }
    const auto as = [&](Counting counting) {
      counting_ = counting;
      Loop(s);
    };
    WhereSampled([&] { as(Counting::kCounts); }, [&] { as(Counting::kSkips); });
    counting_ = Counting::kAsks;
  }

  void Take(const std::vector<TakenField>& fields) {
    for (const TakenField& field : fields) {
      Value* const present =
          field.present == plan::kNoBuffer
              ? llvm::ConstantPointerNull::get(llvm::PointerType::get(b_.getContext(), 0))
              : memory_.At(field.present);
      const Buffer& buffer = f_.function().buffers[static_cast<size_t>(field.values)];
      records_.Take(field, memory_.At(field.values), present, buffer.count, f_.masks().now);
    }
  }

  // ---- calls of scalar functions ----
  std::string NameOf(const std::string& function) const {
    if (!f_.options().evades_subnormals) return function;
    for (const char* product : {"mul_f32", "mul_f64", "mul_bf16"}) {
      if (function == product) return "mul_near_zero" + function.substr(3);
    }
    return function;
  }

  void Call(const Statement& s) {
    llvm::Function& function = ScalarFunction(f_.module(), NameOf(s.function));
    const bool uniform = std::all_of(s.operands.begin(), s.operands.end(),
                                     [this](Register r) { return f_.IsUniform(r); });
    const auto call = [&](size_t part, unsigned width) {
      std::vector<Value*> operands;
      for (Register r : s.operands) {
        operands.push_back(uniform ? f_.Uniform(r) : f_.Part(r, part));
      }
      Value* const result = WidenedCall(b_, function, operands, width);
      if (uniform || f_.is_one()) Inline(result, function);
      return result;
    };
    if (uniform) return f_.SetUniform(s.result, call(0, 1));
    f_.SetLanes(s.result, [&](size_t part) { return call(part, f_.width()); });
  }

  // A loop whose body calls nothing can be widened.
  void Inline(Value* call, const llvm::Function& function) {
    if (f_.parallel_loops() == 0) return;
    f_.MarkParallel(call);
    auto& written = *llvm::cast<llvm::CallInst>(call);
    if (IsStraight(function)) {
      written.addFnAttr(llvm::Attribute::AlwaysInline);
    } else {
      OfferVectors(written);
    }
  }

  // Lane by lane: its accumulator is half a kilobyte.
  void ExactSum(const Statement& s) {
    const Buffer& buffer = f_.function().buffers[static_cast<size_t>(s.buffer)];
    Value* const lanes = b_.getInt64(f_.lane_count());
    Value* const stride = b_.getInt64(static_cast<uint64_t>(s.stride) * f_.lane_count());
    auto* const from = f_.ScalarType(buffer.carrier);
    auto* const to = f_.ScalarType(f_.CarrierOf(s.result));
    const std::string name =
        Cat("exact_sum_", plan::CarrierName(buffer.carrier), "_", precision::FormatName(s.format));
    Value* const memory = memory_.At(s.buffer);
    Value* const first = b_.CreateMul(ElementNumber(f_, s.index), lanes);
    auto* const sums = f_.entry().CreateAlloca(to, lanes);
    f_.CountTo(lanes, [&](Value* lane) {
      Value* const x = b_.CreateGEP(from, memory, b_.CreateAdd(first, lane));
      Value* const sum =
          b_.CreateCall(&ScalarFunction(f_.module(), name), {x, stride, f_.Int64(s.number)});
      b_.CreateStore(sum, b_.CreateGEP(to, sums, lane));
    });
    auto* const type = f_.VectorOf(to);
    f_.SetLanes(s.result, [&](size_t part) {
      return b_.CreateAlignedLoad(type, b_.CreateConstGEP1_64(type, sums, part), llvm::Align(4));
    });
  }

  // ---- numbers ----
  void Constant(const Statement& s) {
    auto* const type = f_.ScalarType(f_.CarrierOf(s.result));
    f_.SetUniform(s.result, type->isFloatingPointTy()
                                ? static_cast<Value*>(
                                      llvm::ConstantFP::get(type, static_cast<double>(s.number)))
                                : llvm::ConstantInt::getSigned(type, s.number));
  }

  void Time(const Statement& s) {
    f_.SetUniform(s.result, f_.CarrierOf(s.result) == Carrier::kI32
                                ? b_.CreateTrunc(f_.time(), b_.getInt32Ty())
                                : f_.time());
  }

  void Seed(const Statement& s) {
    Value* const seed = b_.CreateLoad(b_.getDoubleTy(), f_.ArgumentAt(kSeedScale));
    f_.SetUniform(s.result, f_.CarrierOf(s.result) == Carrier::kF64
                                ? seed
                                : b_.CreateFPTrunc(seed, b_.getFloatTy()));
  }

  // ---- statements ----
  void Block(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) Write(s);
  }

  void Write(const Statement& s) {
    if (f_.masks().depth == 0) f_.masks().now = f_.masks().running;
    switch (s.code) {
      case Code::kNumber:
      case Code::kInteger:
        return memory_.Number(s);
      case Code::kConstant:
        return Constant(s);
      case Code::kTime:
        return Time(s);
      case Code::kCall:
        return Call(s);
      case Code::kDeclare:
        return memory_.Declare(s);
      case Code::kLoad:
        return memory_.Load(s);
      case Code::kStore:
        return memory_.Store(s);
      case Code::kEach:
        return Each(s);
      case Code::kRepeat:
        return control_.Repeat(s);
      case Code::kLeave:
        return control_.Leave(s);
      case Code::kExactSum:
        return ExactSum(s);
      case Code::kCommit:
        return Commit(s);
      case Code::kIf:
        return control_.If(s);
      case Code::kPush:
        return tape_.Push(s);
      case Code::kKeep:
        return tape_.Keep(s);
      case Code::kRecall:
        return tape_.Recall(s);
      case Code::kSeed:
        return Seed(s);
      case Code::kAbsorbed:
        return Absorbed(s);
      case Code::kTake:
      case Code::kLook:
      case Code::kRange:
      case Code::kStored:
      case Code::kTest:
      case Code::kRun:
      case Code::kDecide:
        return Record(s);
    }
  }

  FunctionBuilder f_;
  llvm::IRBuilder<>& b_;
  FuelWriter fuel_;
  TapeWriter tape_;
  MemoryWriter memory_;
  RecordWriter records_;
  InvariantWriter invariants_;
  ControlWriter control_;
  const TakenFields taken_;
  Counting counting_ = Counting::kAsks;
};

std::vector<llvm::Function*> WritePieces(llvm::Module& module, const plan::Plan& plan,
                                         const plan::Function& function,
                                         const WriterOptions& options, const std::string& name) {
  const bool pushes =
      std::any_of(function.pieces.begin(), function.pieces.end(),
                  [](const plan::Function& piece) { return HasPush(piece.statements); });
  std::vector<llvm::Function*> made;
  for (const plan::Function& piece : function.pieces) {
    FunctionWriter writer(module, plan, function, piece, options, Cat(name, "_", made.size()));
    made.push_back(
        writer.WritePiece(made.empty(), made.size() + 1 == function.pieces.size(), pushes));
  }
  return made;
}

}  // namespace

int64_t WriteFunction(llvm::Module& module, const plan::Plan& plan, const plan::Function& function,
                      StepOrder order, const WriterOptions& options, const std::string& name) {
  FunctionWriter writer(module, plan, function, function, options, name);
  if (function.pieces.empty()) {
    writer.Write(order);
  } else {
    writer.WriteCalls(order, WritePieces(module, plan, function, options, name));
  }
  return function.workspace * options.shape.lanes();
}

}  // namespace simgrad::sim::compiled
