#include "sim/backend/compiled/function_writer.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "sim/backend/compiled/record_writer.h"
#include "sim/backend/compiled/scalar_module.h"
#include "sim/backend/compiled/widen.h"
#include "sim/text.h"
#include "sim/work_meter.h"

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;
using plan::Buffer;
using plan::BufferId;
using plan::BufferKind;
using plan::Carrier;
using plan::Code;
using plan::Register;
using plan::Statement;

// A register: a scalar that holds in every lane, or one vector per part.
struct Lanes {
  bool uniform = false;
  llvm::SmallVector<Value*, 4> parts;
};

// Numbers that one turn of a loop over elements needs for itself.
constexpr int64_t kScratch = 64;

class FunctionWriter {
 public:
  // `owner` is the function of the plan that `function` is, or is a piece of.
  FunctionWriter(llvm::Module& module, const plan::Plan& plan, const plan::Function& owner,
                 const plan::Function& function, const WriterOptions& options,
                 const std::string& name)
      : module_(module),
        context_(module.getContext()),
        plan_(plan),
        owner_(owner),
        function_(function),
        options_(options),
        b_(context_),
        entry_builder_(context_),
        registers_(function.registers.size()),
        locals_(function.buffers.size()),
        depths_(function.buffers.size(), 0),
        records_(LaneBuilder(module, b_, entry_builder_, options, arguments_, made_), plan,
                 function) {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    auto* const type =
        is_piece() ? PieceType() : llvm::FunctionType::get(b_.getVoidTy(), {pointer}, false);
    made_ = llvm::Function::Create(
        type, is_piece() ? llvm::Function::InternalLinkage : llvm::Function::ExternalLinkage, name,
        module);
    if (is_piece()) made_->addFnAttr(llvm::Attribute::NoInline);
    made_->getArg(0)->addAttr(llvm::Attribute::NoAlias);
    made_->addDereferenceableParamAttr(0, sizeof(GroupArgs));
    auto* const entry = llvm::BasicBlock::Create(context_, "entry", made_);
    auto* const begin = llvm::BasicBlock::Create(context_, "begin", made_);
    entry_builder_.SetInsertPoint(entry);
    b_.SetInsertPoint(begin);
    begin_ = begin;
  }

  void Write(StepOrder order) {
    ReadArguments();
    records_.Begin();
    BeginSteps();
    Steps(order, [this](Value* column) { OneStep(column); });
    StoreFields();
    records_.End();
    EndSteps();
  }

  // A piece of every step.
  llvm::Function* WritePiece(bool is_first, bool is_last, bool step_pushes) {
    Value* const carried = made_->getArg(1);
    ReadArguments();
    BindPlaced();
    fuel_ = CarriedAt(carried, kCarriedFuel);
    top_ = CarriedAt(carried, kCarriedTop);
    SetTime(made_->getArg(2));
    records_.BeginPiece(CarriedAt(carried, kCarriedLooked), is_first, column_, time_);
    Charge(CostOf(function_.statements));
    Statements();
    pushes_ = step_pushes;
    if (is_last) EndStep();
    records_.End();
    b_.CreateRet(b_.getFalse());
    entry_builder_.CreateBr(begin_);
    return made_;
  }

  // Steps of which each calls the pieces.
  void WriteCalls(StepOrder order, const std::vector<llvm::Function*>& pieces) {
    ReadArguments();
    auto* const carried = entry_builder_.CreateAlloca(
        b_.getInt8Ty(),
        entry_builder_.getInt64(kCarriedLooked +
                                static_cast<uint64_t>(RecordWriter::LookedBytes(options_.shape))));
    carried->setAlignment(llvm::Align(64));
    BeginSteps(carried);
    Steps(order, [&](Value* column) {
      if (is_step()) b_.CreateStore(b_.getInt64(0), top_);
      for (llvm::Function* piece : pieces) {
        auto* const on = NewBlock("on");
        Value* const stopped = b_.CreateCall(piece, {made_->getArg(0), carried, column});
        b_.CreateCondBr(stopped, Stopped(), on);
        b_.SetInsertPoint(on);
      }
    });
    EndSteps();
  }

  static bool Pushes(const std::vector<Statement>& block) {
    for (const Statement& s : block) {
      if (s.code == Code::kPush || Pushes(s.body)) return true;
    }
    return false;
  }

 private:
  // The pieces of a step hand these on: fuel, top of the tape, lanes that looked bad.
  static constexpr uint64_t kCarriedFuel = 0;
  static constexpr uint64_t kCarriedTop = 8;
  static constexpr uint64_t kCarriedLooked = 64;

  bool is_piece() const { return &owner_ != &function_; }
  bool is_step() const { return &owner_ == &plan_.step; }
  // bool piece(GroupArgs*, carried, column): whether the run has to stop.
  llvm::FunctionType* PieceType() {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    return llvm::FunctionType::get(b_.getInt1Ty(), {pointer, pointer, b_.getInt64Ty()}, false);
  }
  Value* CarriedAt(Value* carried, uint64_t offset) {
    return b_.CreateConstGEP1_64(b_.getInt8Ty(), carried, offset);
  }

  void BeginSteps(Value* carried = nullptr) {
    auto* const i64 = b_.getInt64Ty();
    top_ = carried != nullptr ? CarriedAt(carried, kCarriedTop) : entry_builder_.CreateAlloca(i64);
    fuel_ =
        carried != nullptr ? CarriedAt(carried, kCarriedFuel) : entry_builder_.CreateAlloca(i64);
    b_.CreateStore(b_.getInt64(0), top_);
    b_.CreateStore(b_.CreateLoad(i64, ArgumentAt(kFuel)), fuel_);
  }
  void EndSteps() {
    b_.CreateStore(b_.CreateLoad(b_.getInt64Ty(), fuel_), ArgumentAt(kFuel));
    b_.CreateRetVoid();
    entry_builder_.CreateBr(begin_);
  }

  int parts() const { return options_.shape.parts; }
  unsigned width() const { return static_cast<unsigned>(options_.shape.width); }

  // ---- types ----
  llvm::Type* ScalarType(Carrier carrier) {
    switch (carrier) {
      case Carrier::kBool:
        return b_.getInt1Ty();
      case Carrier::kI32:
      case Carrier::kU32:
      case Carrier::kU8:
        return b_.getInt32Ty();
      case Carrier::kI64:
        return b_.getInt64Ty();
      case Carrier::kF32:
        return b_.getFloatTy();
      case Carrier::kF64:
        break;
    }
    return b_.getDoubleTy();
  }
  llvm::Type* VectorOf(llvm::Type* type) { return Widened(type, width()); }
  // In memory a bool is -1 or 0 as wide as a float, which vector units can test at once.
  llvm::Type* StoredType(Carrier carrier) {
    return VectorOf(carrier == Carrier::kBool ? b_.getInt32Ty() : ScalarType(carrier));
  }
  int64_t StoredBytes(Carrier carrier) const {
    const bool wide = carrier == Carrier::kF64 || carrier == Carrier::kI64;
    return (wide ? 8 : 4) * options_.shape.width;
  }
  Value* ToStored(Carrier carrier, Value* value) {
    return carrier == Carrier::kBool ? b_.CreateSExt(value, StoredType(carrier)) : value;
  }
  Value* FromStored(Carrier carrier, Value* value) {
    if (carrier != Carrier::kBool) return value;
    return b_.CreateICmpSLT(value, llvm::Constant::getNullValue(value->getType()));
  }

  // ---- registers ----
  Carrier CarrierOf(Register r) const { return function_.registers[static_cast<size_t>(r)]; }
  Lanes& At(Register r) { return registers_[static_cast<size_t>(r)]; }
  Value* Part(Register r, int part) {
    Lanes& lanes = At(r);
    if (!lanes.uniform) return lanes.parts[static_cast<size_t>(part)];
    return Splatted(b_, lanes.parts[0], width());
  }
  void SetUniform(Register r, Value* value) { At(r) = {true, {value}}; }
  void SetLanes(Register r, const std::function<Value*(int part)>& value) {
    Lanes lanes;
    for (int part = 0; part < parts(); ++part) lanes.parts.push_back(value(part));
    At(r) = std::move(lanes);
  }

  // ---- arguments ----
  Value* Argument(Member member, llvm::Type* type) {
    auto* const bytes = b_.CreateConstGEP1_64(b_.getInt8Ty(), made_->getArg(0), 8 * member);
    auto* const load = b_.CreateLoad(type, bytes);
    MarkInvariant(load);
    return load;
  }
  void MarkInvariant(llvm::LoadInst* load) {
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
  }
  // Says how many bytes can be read where a pointer leads, so that a loop may read them before its
  // first turn.
  void MarkReadable(llvm::LoadInst* pointer, uint64_t bytes) {
    if (bytes == 0) return;
    const auto say = [&](unsigned kind, uint64_t n) {
      auto* const number = llvm::ConstantAsMetadata::get(b_.getInt64(n));
      pointer->setMetadata(kind, llvm::MDNode::get(context_, {number}));
    };
    say(llvm::LLVMContext::MD_dereferenceable, bytes);
    say(llvm::LLVMContext::MD_align, 8);
  }
  void ReadArguments() {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    for (unsigned member = 0; member < kMembers; ++member) {
      arguments_[member] = Argument(static_cast<Member>(member), pointer);
    }
    const auto holds = [&](Member member, size_t entries) {
      MarkReadable(llvm::cast<llvm::LoadInst>(arguments_[member]), 8 * entries);
    };
    holds(kNumbers, plan_.numbers.size());
    holds(kIntegers, plan_.integers.size());
    holds(kInputs, options_.inputs.size());
    arguments_[kFirstStep] = Argument(kFirstStep, b_.getInt64Ty());
    arguments_[kCount] = Argument(kCount, b_.getInt64Ty());
    FindInputs();
    LoadFields();
  }

  void FindInputs() {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    for (size_t id = 0; id < function_.buffers.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      if (buffer.kind != BufferKind::kInput) continue;
      auto* const load = b_.CreateLoad(
          pointer, b_.CreateConstGEP1_64(pointer, arguments_[kInputs], buffer.number));
      MarkInvariant(load);
      const InputForm& form = options_.inputs[static_cast<size_t>(buffer.number)];
      const int64_t one = buffer.count * StoredBytes(buffer.carrier) / options_.shape.width;
      const int64_t lanes = form.per_lane ? options_.shape.lanes() : 1;
      if (!form.per_step) MarkReadable(load, static_cast<uint64_t>(one * lanes));
      locals_[id].memory = load;
    }
  }

  // ---- buffers ----
  // One element stays in registers, from step to step too.
  struct Local {
    llvm::SmallVector<llvm::AllocaInst*, 4> variables;  // [part], of one element; else in memory
    Value* memory = nullptr;
    size_t loops = 0;  // parallel loops around its declaration
  };
  bool IsKept(const Buffer& buffer) const {
    if (buffer.placed || (is_piece() && Outlives(buffer))) return false;
    return buffer.kind == BufferKind::kConnected ||
           (buffer.count == 1 &&
            (buffer.kind == BufferKind::kLocal || buffer.kind == BufferKind::kField));
  }
  static bool Outlives(const Buffer& buffer) {
    return buffer.kind == BufferKind::kField || buffer.kind == BufferKind::kConnected;
  }
  llvm::AllocaInst* Variable(llvm::Type* type) { return entry_builder_.CreateAlloca(type); }

  void MakeVariables(BufferId id) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
    Local& local = locals_[static_cast<size_t>(id)];
    if (!local.variables.empty()) return;
    for (int part = 0; part < parts(); ++part) {
      local.variables.push_back(Variable(StoredType(buffer.carrier)));
    }
  }

  Value* FieldMemory(const Buffer& buffer) {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    const Member list = buffer.kind == BufferKind::kField ? kFields : kConnectedFlags;
    auto* const at = b_.CreateConstGEP1_64(pointer, arguments_[list], buffer.number);
    auto* const load = b_.CreateLoad(pointer, at);
    MarkInvariant(load);
    return load;
  }

  void LoadFields() {
    for (size_t id = 0; id < function_.buffers.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      if (!Outlives(buffer)) continue;
      Local& local = locals_[id];
      local.memory = FieldMemory(buffer);
      if (!IsKept(buffer)) continue;
      MakeVariables(static_cast<BufferId>(id));
      for (size_t k = 0; k < local.variables.size(); ++k) {
        b_.CreateStore(LoadVector(buffer, local.memory, b_.getInt64(k)), local.variables[k]);
      }
    }
  }

  Value* PlaceOf(const Buffer& buffer) {
    return b_.CreateConstGEP1_64(b_.getInt8Ty(), arguments_[kWorkspace],
                                 static_cast<uint64_t>(buffer.offset * options_.shape.lanes()));
  }

  // Other pieces may have declared them.
  void BindPlaced() {
    for (size_t id = 0; id < function_.buffers.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      const bool is_placed = buffer.kind == BufferKind::kLocal && buffer.offset >= 0;
      if (is_placed && !IsKept(buffer)) locals_[id].memory = PlaceOf(buffer);
    }
  }

  void StoreFields() {
    for (size_t id = 0; id < function_.buffers.size(); ++id) {
      const Buffer& buffer = function_.buffers[id];
      if (!Outlives(buffer) || !IsKept(buffer)) continue;
      Local& local = locals_[id];
      for (size_t k = 0; k < local.variables.size(); ++k) {
        auto* const value = b_.CreateLoad(StoredType(buffer.carrier), local.variables[k]);
        auto* const at = b_.CreateGEP(StoredType(buffer.carrier), local.memory, b_.getInt64(k));
        b_.CreateAlignedStore(value, at, llvm::Align(4));
      }
    }
  }

  Value* LoadVector(const Buffer& buffer, Value* memory, Value* vector_index) {
    auto* const type = StoredType(buffer.carrier);
    return b_.CreateAlignedLoad(type, b_.CreateGEP(type, memory, vector_index), llvm::Align(4));
  }

  // The element number, a scalar.
  Value* ElementNumber(const plan::Index& index) {
    Value* number = b_.getInt64(static_cast<uint64_t>(index.base));
    for (const auto& [r, stride] : index.terms) {
      Value* const step = b_.getInt64(static_cast<uint64_t>(stride));
      number = b_.CreateAdd(number, b_.CreateMul(At(r).parts[0], step));
    }
    const bool shares_moved = index.moved != plan::kNoRegister && !MovesApart(index);
    return shares_moved ? b_.CreateAdd(number, At(index.moved).parts[0]) : number;
  }

  // Whether the lanes of a vector meet different elements.
  bool MovesApart(const plan::Index& index) {
    return index.moved != plan::kNoRegister && !At(index.moved).uniform && width() > 1;
  }

  // The element numbers of the lanes of one part, given what they share.
  Value* MovedElements(const plan::Index& index, Value* shared, int part) {
    return b_.CreateAdd(Splatted(b_, shared, width()), Part(index.moved, part));
  }

  // Addresses in memory that holds [element][part][lane].
  Value* MovedLanes(const plan::Index& index, llvm::Type* type, Value* memory, Value* shared,
                    int part) {
    const auto splat = [&](int64_t n) {
      return Splatted(b_, b_.getInt64(static_cast<uint64_t>(n)), width());
    };
    std::vector<llvm::Constant*> lanes;
    for (unsigned lane = 0; lane < width(); ++lane) lanes.push_back(b_.getInt64(lane));
    Value* const vectors =
        b_.CreateAdd(b_.CreateMul(MovedElements(index, shared, part), splat(parts())), splat(part));
    Value* const numbers = b_.CreateAdd(b_.CreateMul(vectors, splat(options_.shape.width)),
                                        llvm::ConstantVector::get(lanes));
    return b_.CreateGEP(type->getScalarType(), memory, numbers);
  }

  Value* Gather(llvm::Type* type, Value* addresses) {
    return b_.CreateMaskedGather(type, addresses, llvm::Align(4));
  }

  // [element][part] as the number of a vector.
  Value* VectorNumber(Value* element, int part) {
    return b_.CreateAdd(b_.CreateMul(element, b_.getInt64(static_cast<uint64_t>(parts()))),
                        b_.getInt64(static_cast<uint64_t>(part)));
  }

  void Load(const Statement& s) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
    if (buffer.kind == BufferKind::kInput) return LoadInput(s, buffer);
    if (buffer.kind == BufferKind::kTable) return LoadTable(s, buffer);
    if (buffer.shared) {
      return SetUniform(s.result, b_.CreateLoad(b_.getInt64Ty(), SharedVariable(s.buffer)));
    }
    Lanes lanes;
    Value* const element = ElementNumber(s.index);
    Local& local = locals_[static_cast<size_t>(s.buffer)];
    for (int part = 0; part < parts(); ++part) {
      Value* value;
      if (IsKept(buffer)) {
        value =
            b_.CreateLoad(StoredType(buffer.carrier), local.variables[static_cast<size_t>(part)]);
      } else if (MovesApart(s.index)) {
        auto* const type = StoredType(buffer.carrier);
        value = Gather(type, MovedLanes(s.index, type, MemoryOf(buffer, local), element, part));
      } else {
        value = LoadVector(buffer, MemoryOf(buffer, local), VectorNumber(element, part));
        MarkParallel(value, local.loops);
      }
      lanes.parts.push_back(FromStored(buffer.carrier, value));
    }
    At(s.result) = std::move(lanes);
  }

  Value* SharedVariable(BufferId id) {
    Local& local = locals_[static_cast<size_t>(id)];
    if (function_.buffers[static_cast<size_t>(id)].placed) return local.memory;
    if (local.variables.empty()) {
      local.variables.push_back(entry_builder_.CreateAlloca(b_.getInt64Ty()));
    }
    return local.variables[0];
  }

  // The memory of a local, a field, or a number that is sent or summed; its entry of the current
  // step if it has one for each.
  Value* MemoryOf(const Buffer& buffer, Local& local) {
    auto* const pointer = llvm::PointerType::get(context_, 0);
    const auto member = [&](Member list) -> Value* {
      auto* const load =
          b_.CreateLoad(pointer, b_.CreateConstGEP1_64(pointer, arguments_[list], buffer.number));
      MarkInvariant(load);
      MarkParallel(load);
      return load;
    };
    bool has_steps = false;
    Value* memory = local.memory;
    if (buffer.kind == BufferKind::kSent) {
      memory = member(kSentCotangents);
      has_steps =
          plan_.sent[static_cast<size_t>(buffer.number)].kind != plan::SentKind::kFinalState;
    } else if (buffer.kind == BufferKind::kGradient) {
      memory = member(kGradients);
      has_steps = options_.inputs[static_cast<size_t>(buffer.number)].sums_per_step;
    }
    if (!has_steps) return memory;
    const int64_t bytes = buffer.count * StoredBytes(buffer.carrier) * parts();
    return b_.CreateGEP(b_.getInt8Ty(), memory,
                        b_.CreateMul(column_, b_.getInt64(static_cast<uint64_t>(bytes))));
  }

  void LoadInput(const Statement& s, const Buffer& buffer) {
    const InputForm& form = options_.inputs[static_cast<size_t>(buffer.number)];
    Value* const base = locals_[static_cast<size_t>(s.buffer)].memory;
    Value* element = ElementNumber(s.index);
    if (form.per_step) {
      Value* const column = b_.CreateSub(time_, arguments_[kFirstStep]);
      Value* const count = b_.getInt64(static_cast<uint64_t>(buffer.count));
      element = b_.CreateAdd(element, b_.CreateMul(column, count));
    }
    auto* const type =
        buffer.carrier == Carrier::kBool ? b_.getInt32Ty() : ScalarType(buffer.carrier);
    if (!form.per_lane && MovesApart(s.index)) {
      return SetLanes(s.result, [&](int part) {
        Value* const at = b_.CreateGEP(type, base, MovedElements(s.index, element, part));
        return FromStored(buffer.carrier, Gather(VectorOf(type), at));
      });
    }
    if (!form.per_lane) {
      auto* const load = b_.CreateLoad(type, b_.CreateGEP(type, base, element));
      MarkInvariant(load);
      MarkParallel(load);
      return SetUniform(s.result, FromStored(buffer.carrier, load));
    }
    Lanes lanes;
    for (int part = 0; part < parts(); ++part) {
      auto* const vector = VectorOf(type);
      if (MovesApart(s.index)) {
        Value* const lane = MovedLanes(s.index, vector, base, element, part);
        lanes.parts.push_back(FromStored(buffer.carrier, Gather(vector, lane)));
        continue;
      }
      auto* const at = b_.CreateGEP(vector, base, VectorNumber(element, part));
      auto* const load = b_.CreateAlignedLoad(vector, at, llvm::Align(4));
      MarkInvariant(load);
      MarkParallel(load);
      lanes.parts.push_back(FromStored(buffer.carrier, load));
    }
    At(s.result) = std::move(lanes);
  }

  Value* TableNumber(Carrier carrier, Value* number) {
    const bool real = carrier == Carrier::kF32 || carrier == Carrier::kF64;
    auto* const type = real ? b_.getDoubleTy() : static_cast<llvm::Type*>(b_.getInt64Ty());
    auto* const at = b_.CreateGEP(type, arguments_[real ? kNumbers : kIntegers], number);
    if (number->getType()->isVectorTy()) return FromTable(carrier, Gather(VectorOf(type), at));
    auto* const load = b_.CreateLoad(type, at);
    MarkInvariant(load);
    MarkParallel(load);
    return FromTable(carrier, load);
  }

  // A number of the table in the carrier of a register.
  Value* FromTable(Carrier carrier, Value* number) {
    llvm::Type* const from = number->getType();
    const auto like = [&](llvm::Type* type) { return from->getWithNewType(type); };
    switch (carrier) {
      case Carrier::kF32:
        return b_.CreateFPTrunc(number, like(b_.getFloatTy()));
      case Carrier::kI32:
      case Carrier::kU32:
      case Carrier::kU8:
        return b_.CreateTrunc(number, like(b_.getInt32Ty()));
      case Carrier::kBool:
        return b_.CreateICmpNE(number, llvm::Constant::getNullValue(from));
      default:
        return number;
    }
  }

  void LoadTable(const Statement& s, const Buffer& buffer) {
    Value* const number =
        b_.CreateAdd(ElementNumber(s.index), b_.getInt64(static_cast<uint64_t>(buffer.number)));
    if (!MovesApart(s.index)) return SetUniform(s.result, TableNumber(buffer.carrier, number));
    SetLanes(s.result, [&](int part) {
      return TableNumber(buffer.carrier, MovedElements(s.index, number, part));
    });
  }

  void Store(const Statement& s) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
    Local& local = locals_[static_cast<size_t>(s.buffer)];
    if (buffer.shared) {
      b_.CreateStore(At(s.operands[0]).parts[0], SharedVariable(s.buffer));
      return;
    }
    // A store that outlives the function is made only for instances that still run.
    const bool is_gradient =
        buffer.kind == BufferKind::kGradient || buffer.kind == BufferKind::kConnected;
    const bool masked = is_gradient || depths_[static_cast<size_t>(s.buffer)] < depth_;
    Value* const element = ElementNumber(s.index);
    auto* const type = StoredType(buffer.carrier);
    for (int part = 0; part < parts(); ++part) {
      if (MovesApart(s.index) && !IsKept(buffer)) {
        Value* const lanes = MovedLanes(s.index, type, MemoryOf(buffer, local), element, part);
        b_.CreateMaskedScatter(ToStored(buffer.carrier, Part(s.operands[0], part)), lanes,
                               llvm::Align(4), masked ? Mask(part) : nullptr);
        continue;
      }
      Value* const at =
          IsKept(buffer) ? local.variables[static_cast<size_t>(part)]
                         : b_.CreateGEP(type, MemoryOf(buffer, local), VectorNumber(element, part));
      Value* value = ToStored(buffer.carrier, Part(s.operands[0], part));
      const auto mark = [&](Value* access) {
        if (!IsKept(buffer)) MarkParallel(access, local.loops);
        return access;
      };
      if (masked && !IsAlways(Mask(part))) {
        Value* const before = mark(b_.CreateAlignedLoad(type, at, llvm::Align(4)));
        value = b_.CreateSelect(Mask(part), value, before);
      }
      mark(b_.CreateAlignedStore(value, at, llvm::Align(4)));
    }
  }

  // ---- masks ----
  static bool IsAlways(Value* mask) {
    const auto* const constant = llvm::dyn_cast<llvm::Constant>(mask);
    return constant != nullptr && constant->isAllOnesValue();
  }
  Value* Mask(int part) { return mask_[static_cast<size_t>(part)]; }
  Value* Any(llvm::ArrayRef<Value*> mask) {
    Value* any = mask[0];
    for (size_t k = 1; k < mask.size(); ++k) any = b_.CreateOr(any, mask[k]);
    Value* const bits = b_.CreateBitCast(any, b_.getIntNTy(width()));
    return b_.CreateICmpNE(bits, llvm::Constant::getNullValue(bits->getType()));
  }

  // ---- control ----
  llvm::BasicBlock* NewBlock(const char* name) {
    return llvm::BasicBlock::Create(context_, name, made_);
  }

  void EachOf(const Statement& s) {
    Value* const extent = s.operands.empty() ? b_.getInt64(static_cast<uint64_t>(s.number))
                                             : At(s.operands[0]).parts[0];
    const bool asks = IsLong(s);
    const bool maps_elements = is_one() && s.parallel && s.operands.empty();
    // A look inside would keep the compiler from making vectors of its turns.
    const bool asks_before = asks && maps_elements && !HasLoop(s.body);
    // One of arithmetic is counted as a whole when it begins.
    const bool is_bounded = !s.operands.empty() || s.number * CostOf(s.body) <= WorkMeter::kPiece;
    const bool charges_once = asks && !maps_elements && is_bounded && IsArithmetic(s.body);
    if (charges_once) {
      const uint64_t cost = static_cast<uint64_t>(CostOf(s.body));
      Charge(b_.CreateMul(extent, b_.getInt64(cost)));
    }
    const auto body = [&](Value* counter) {
      SetUniform(s.result, counter);
      if (asks && !asks_before && !charges_once) Charge(CostOf(s.body));
      Block(s.body);
    };
    if (!maps_elements) {
      CountTo(extent, body);
      return;
    }
    auto* const group = llvm::MDNode::getDistinct(context_, {});
    loops_.push_back(group);
    Value* const outer_tape = tape_;
    if (!Pushes(s.body)) tape_ = TapeMemory();
    if (asks_before) {
      InPieces(s, body, group);
    } else {
      SayParallel(CountTo(extent, body), group);
    }
    tape_ = outer_tape;
    loops_.pop_back();
  }

  // A loop of many turns as loops of few, with a look before each of them.
  void InPieces(const Statement& s, const std::function<void(Value* counter)>& body,
                llvm::MDNode* group) {
    const int64_t cost = CostOf(s.body);
    const int64_t most = std::max<int64_t>(1, WorkMeter::kPiece / cost);
    const auto number = [&](int64_t n) { return b_.getInt64(static_cast<uint64_t>(n)); };
    CountTo(number((s.number + most - 1) / most), [&](Value* piece) {
      Charge(std::min(most, s.number) * cost);
      Value* const begin = b_.CreateMul(piece, number(most));
      Value* const left = b_.CreateSub(number(s.number), begin);
      Value* const turns = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, number(most));
      SayParallel(CountTo(turns, [&](Value* turn) { body(b_.CreateAdd(begin, turn)); }), group);
    });
  }

  // Tells LLVM what the plan guarantees: turns of the loop share only memory that they read.
  void SayParallel(llvm::Instruction* back, llvm::MDNode* group) {
    llvm::Metadata* const accesses[] = {
        llvm::MDString::get(context_, "llvm.loop.parallel_accesses"), group};
    llvm::Metadata* const properties[] = {nullptr, llvm::MDNode::get(context_, accesses)};
    auto* const loop = llvm::MDNode::getDistinct(context_, properties);
    loop->replaceOperandWith(0, loop);
    back->setMetadata(llvm::LLVMContext::MD_loop, loop);
  }

  bool is_one() const { return options_.shape.lanes() == 1; }

  // An access that no other turn of the parallel loops around it touches, but for the first
  // `shared`: there each turn uses the same bytes anew.
  void MarkParallel(Value* access, size_t shared = 0) {
    auto* const instruction = llvm::dyn_cast<llvm::Instruction>(access);
    if (instruction == nullptr || loops_.size() <= shared) return;
    const std::vector<llvm::Metadata*> groups(loops_.begin() + static_cast<std::ptrdiff_t>(shared),
                                              loops_.end());
    instruction->setMetadata(llvm::LLVMContext::MD_access_group,
                             groups.size() == 1 ? llvm::cast<llvm::MDNode>(groups[0])
                                                : llvm::MDNode::get(context_, groups));
  }

  // ---- looks at the clock ----
  // A loop that counts its turns itself; the turns of others are counted by the block around.
  static bool IsLong(const Statement& s) {
    constexpr int64_t kShort = 256;
    return s.code == Code::kEach && (!s.operands.empty() || s.number * CostOf(s.body) > kShort);
  }
  static bool HasLoop(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) {
      if (s.code == Code::kEach || s.code == Code::kRepeat || HasLoop(s.body)) return true;
    }
    return false;
  }
  // Statements that run once the block does.
  static int64_t CostOf(const std::vector<Statement>& statements) {
    int64_t cost = 0;
    for (const Statement& s : statements) {
      ++cost;
      if (s.code == Code::kExactSum) cost += s.number;
      if (s.code == Code::kEach && !IsLong(s)) cost += s.number * CostOf(s.body);
      if (s.code == Code::kCommit || s.code == Code::kIf) cost += CostOf(s.body);
    }
    return cost;
  }

  static bool IsArithmetic(const std::vector<Statement>& statements) {
    return std::all_of(statements.begin(), statements.end(), [](const Statement& s) {
      return s.code == Code::kCall || s.code == Code::kLoad || s.code == Code::kStore ||
             s.code == Code::kConstant || s.code == Code::kAbsorbed;
    });
  }

  // Counts work before it is done.
  void Charge(int64_t statements) { Charge(b_.getInt64(static_cast<uint64_t>(statements))); }
  void Charge(Value* statements) {
    Value* const lanes = b_.getInt64(static_cast<uint64_t>(options_.shape.lanes()));
    Value* const before = b_.CreateLoad(b_.getInt64Ty(), fuel_);
    Value* const left = b_.CreateSub(before, b_.CreateMul(statements, lanes));
    b_.CreateStore(left, fuel_);
    auto* const asks = NewBlock("asks");
    auto* const on = NewBlock("on");
    auto* const rare = llvm::MDBuilder(context_).createBranchWeights(1, 1 << 16);
    b_.CreateCondBr(b_.CreateICmpSLT(left, b_.getInt64(0)), asks, on, rare);
    b_.SetInsertPoint(asks);
    auto* const pointer = llvm::PointerType::get(context_, 0);
    auto* const type = llvm::FunctionType::get(b_.getInt64Ty(), {pointer}, false);
    Value* const given =
        b_.CreateCall(type, b_.CreateLoad(pointer, ArgumentAt(kPoll)), {made_->getArg(0)});
    // The overdraft of the last amount counts against the next.
    Value* const next = b_.CreateAdd(given, left);
    b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, next, b_.getInt64(0)), fuel_);
    b_.CreateCondBr(b_.CreateICmpSGT(given, b_.getInt64(0)), on, Stopped());
    b_.SetInsertPoint(on);
  }

  llvm::BasicBlock* Stopped() {
    if (stopped_ != nullptr) return stopped_;
    stopped_ = NewBlock("stopped");
    llvm::ReturnInst::Create(context_, is_piece() ? b_.getTrue() : nullptr, stopped_);
    return stopped_;
  }

  // body(0), body(1), ... as often as the scalar `extent` says.
  llvm::Instruction* CountTo(Value* extent, const std::function<void(Value* counter)>& body) {
    auto* const before = b_.GetInsertBlock();
    auto* const head = NewBlock("each");
    auto* const inside = NewBlock("turn");
    auto* const after = NewBlock("after");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    auto* const counter = b_.CreatePHI(b_.getInt64Ty(), 2);
    counter->addIncoming(b_.getInt64(0), before);
    b_.CreateCondBr(b_.CreateICmpSLT(counter, extent), inside, after);
    b_.SetInsertPoint(inside);
    body(counter);
    counter->addIncoming(b_.CreateAdd(counter, b_.getInt64(1)), b_.GetInsertBlock());
    auto* const back = b_.CreateBr(head);
    b_.SetInsertPoint(after);
    return back;
  }

  void Repeat(const Statement& s) {
    const auto outer_mask = mask_;
    const auto outer_live = live_;
    auto* const outer_exit = exit_;
    live_.clear();
    for (int part = 0; part < parts(); ++part) {
      live_.push_back(Variable(VectorOf(b_.getInt32Ty())));
      b_.CreateStore(ToStored(Carrier::kBool, Mask(part)), live_.back());
    }
    auto* const head = NewBlock("repeat");
    exit_ = NewBlock("left");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    ++depth_;
    Charge(CostOf(s.body));
    ReadLive();
    Block(s.body);
    b_.CreateBr(head);
    --depth_;
    b_.SetInsertPoint(exit_);
    mask_ = outer_mask;
    live_ = outer_live;
    exit_ = outer_exit;
  }

  void ReadLive() {
    for (int part = 0; part < parts(); ++part) {
      auto* const stored =
          b_.CreateLoad(VectorOf(b_.getInt32Ty()), live_[static_cast<size_t>(part)]);
      mask_[static_cast<size_t>(part)] = FromStored(Carrier::kBool, stored);
    }
  }

  void Leave(const Statement& s) {
    for (int part = 0; part < parts(); ++part) {
      Value* const stays = b_.CreateNot(Part(s.operands[0], part));
      mask_[static_cast<size_t>(part)] = b_.CreateAnd(Mask(part), stays);
      b_.CreateStore(ToStored(Carrier::kBool, Mask(part)), live_[static_cast<size_t>(part)]);
    }
    auto* const on = NewBlock("on");
    b_.CreateCondBr(Any(mask_), on, exit_);
    b_.SetInsertPoint(on);
    if (!is_one()) return;
    mask_[0] = b_.getTrue();
    b_.CreateStore(ToStored(Carrier::kBool, mask_[0]), live_[0]);
  }

  void SetTime(Value* column) {
    time_ = b_.CreateAdd(arguments_[kFirstStep], column);
    column_ = column;
  }

  void OneStep(Value* column) {
    SetTime(column);
    Charge(CostOf(function_.statements));
    records_.BeginStep(column, time_);
    if (is_step()) b_.CreateStore(b_.getInt64(0), top_);
    Statements();
    EndStep();
  }

  void Statements() {
    running_ = records_.Running();
    const bool has_frame = function_.frame != plan::kNoRegister;
    const bool makes_frame =
        has_frame &&
        std::any_of(function_.statements.begin(), function_.statements.end(),
                    [this](const Statement& s) { return s.result == function_.frame; });
    if (has_frame && !makes_frame) {
      SetUniform(function_.frame, b_.CreateLoad(b_.getInt64Ty(), FramesAt()));
    }
    Block(function_.statements);
    if (makes_frame) b_.CreateStore(At(function_.frame).parts[0], FramesAt());
  }

  void EndStep() {
    if (is_step() && pushes_) Meter();
    const bool reverses = &owner_ == &plan_.reverse || &owner_ == &plan_.reverse_last ||
                          &owner_ == &plan_.reverse_terminal || &owner_ == &plan_.reverse_initial;
    if (reverses) records_.Judge(time_, false, 4);
    // A non-finite value before step 0 stops the instance in step 0.
    if (&owner_ == &plan_.start) records_.Judge(time_, false, 2);
  }

  Value* FramesAt() { return b_.CreateGEP(b_.getInt64Ty(), arguments_[kFrames], column_); }

  void Meter() {
    Value* const at = b_.CreateGEP(b_.getInt64Ty(), arguments_[kTapeBytes], column_);
    Value* const bytes = b_.CreateMul(b_.CreateLoad(b_.getInt64Ty(), top_),
                                      b_.getInt64(static_cast<uint64_t>(options_.shape.lanes())));
    Value* const before = b_.CreateLoad(b_.getInt64Ty(), at);
    b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, before, bytes), at);
  }

  // ---- the tape ----
  void Push(const Statement& s) {
    pushes_ = true;
    Value* const place = b_.CreateLoad(b_.getInt64Ty(), top_);
    Value* const top = b_.CreateAdd(place, b_.getInt64(static_cast<uint64_t>(s.number)));
    b_.CreateStore(top, top_);
    SetUniform(s.result, place);
    if (is_step()) return;  // only counted
    Value* const bytes =
        b_.CreateMul(top, b_.getInt64(static_cast<uint64_t>(options_.shape.lanes())));
    Value* const capacity = b_.CreateLoad(b_.getInt64Ty(), ArgumentAt(kTapeCapacity));
    auto* const grows = NewBlock("grow");
    auto* const after = NewBlock("pushed");
    b_.CreateCondBr(b_.CreateICmpSGT(bytes, capacity), grows, after);
    b_.SetInsertPoint(grows);
    auto* const pointer = llvm::PointerType::get(context_, 0);
    auto* const type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, b_.getInt64Ty()}, false);
    b_.CreateCall(type, b_.CreateLoad(pointer, ArgumentAt(kGrow)), {made_->getArg(0), bytes});
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  Value* ArgumentAt(Member member) {
    return b_.CreateConstGEP1_64(b_.getInt8Ty(), made_->getArg(0), 8 * member);
  }

  // The address of lane 0 of a number in a frame.
  Value* FrameAddress(const Statement& s, int64_t bytes) {
    Value* const offset =
        b_.CreateAdd(At(s.frame).parts[0], b_.getInt64(static_cast<uint64_t>(s.number)));
    Value* const element =
        b_.CreateMul(ElementNumber(s.index), b_.getInt64(static_cast<uint64_t>(bytes)));
    Value* const at = b_.CreateMul(b_.CreateAdd(offset, element),
                                   b_.getInt64(static_cast<uint64_t>(options_.shape.lanes())));
    return b_.CreateGEP(b_.getInt8Ty(), tape_ != nullptr ? tape_ : TapeMemory(), at);
  }

  // A push may move it.
  Value* TapeMemory() {
    return b_.CreateLoad(llvm::PointerType::get(context_, 0), ArgumentAt(kTape));
  }

  int64_t BytesOfOne(Carrier carrier) const { return StoredBytes(carrier) / options_.shape.width; }

  void Keep(const Statement& s) {
    const Carrier carrier = CarrierOf(s.operands[0]);
    Value* const at = FrameAddress(s, BytesOfOne(carrier));
    if (s.shared) {
      b_.CreateAlignedStore(At(s.operands[0]).parts[0], at, llvm::Align(4));
      return;
    }
    for (int part = 0; part < parts(); ++part) {
      Value* const to = b_.CreateConstGEP1_64(StoredType(carrier), at, part);
      Value* value = ToStored(carrier, Part(s.operands[0], part));
      if (depth_ > 0) {
        // Lanes that left keep what they had: a later turn of theirs never was.
        value =
            b_.CreateSelect(Mask(part), value, llvm::Constant::getNullValue(StoredType(carrier)));
      }
      MarkParallel(b_.CreateAlignedStore(value, to, llvm::Align(4)));
    }
  }

  void Recall(const Statement& s) {
    const Carrier carrier = CarrierOf(s.result);
    Value* const at = FrameAddress(s, BytesOfOne(carrier));
    if (s.shared) {
      return SetUniform(s.result, b_.CreateAlignedLoad(b_.getInt64Ty(), at, llvm::Align(4)));
    }
    Lanes lanes;
    for (int part = 0; part < parts(); ++part) {
      Value* const from = b_.CreateConstGEP1_64(StoredType(carrier), at, part);
      auto* const load = b_.CreateAlignedLoad(StoredType(carrier), from, llvm::Align(4));
      MarkParallel(load);
      lanes.parts.push_back(FromStored(carrier, load));
    }
    At(s.result) = std::move(lanes);
  }

  void Seed(const Statement& s) {
    Value* const seed = b_.CreateLoad(b_.getDoubleTy(), ArgumentAt(kSeedScale));
    SetUniform(s.result, CarrierOf(s.result) == Carrier::kF64
                             ? seed
                             : b_.CreateFPTrunc(seed, b_.getFloatTy()));
  }

  void If(const Statement& s) {
    Vectors inner;
    for (int part = 0; part < parts(); ++part) {
      inner.push_back(b_.CreateAnd(Mask(part), Part(s.operands[0], part)));
    }
    If(inner, s.body);
  }

  // The statements for the lanes of a mask, where there is one.
  void If(const Vectors& inner, const std::vector<Statement>& body) {
    const Vectors outer = mask_;
    auto* const inside = NewBlock("if");
    auto* const after = NewBlock("fi");
    b_.CreateCondBr(Any(inner), inside, after);
    b_.SetInsertPoint(inside);
    ++depth_;
    mask_ = inner;
    if (is_one()) mask_[0] = b_.getTrue();
    Block(body);
    --depth_;
    mask_ = outer;
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  // The rest of the step for instances that it did not stop.
  void Commit(const Statement& s) {
    records_.Judge(time_, options_.stops, 2);
    running_ = records_.Running();
    if (is_one() && options_.stops) return If(running_, s.body);
    depth_ += options_.stops ? 1 : 0;
    mask_ = running_;
    Block(s.body);
    depth_ -= options_.stops ? 1 : 0;
  }

  Vectors PartsOf(Register r) {
    Vectors vectors;
    if (r == plan::kNoRegister) return vectors;
    for (int part = 0; part < parts(); ++part) vectors.push_back(Part(r, part));
    return vectors;
  }

  void Record(const Statement& s) {
    Told told;
    for (Register r : s.operands) told.operands.push_back(PartsOf(r));
    told.extra = PartsOf(s.extra);
    told.where = PartsOf(s.where);
    told.iteration = PartsOf(s.iteration);
    if (s.element != plan::kNoRegister) told.element = At(s.element).parts[0];
    told.mask = mask_;
    const Carrier of = CarrierOf(s.operands[0]);
    const Carrier of_extra = s.extra == plan::kNoRegister ? of : CarrierOf(s.extra);
    if (s.code == Code::kTake) records_.Take(s, told);
    if (s.code == Code::kLook) records_.Look(told);
    if (s.code == Code::kTest || s.code == Code::kRun || s.code == Code::kDecide) {
      records_.Decision(s, of, of_extra, told);
    }
    if (s.code == Code::kRange) records_.Range(s, of, told);
    if (s.code == Code::kStored) records_.Stored(s, told);
    if (s.code == Code::kAbsorbed) records_.Absorbed(s, told);
  }

  // ---- additions ----
  // Steps that are sampled are rare. A loop over elements is written twice, so that the one of other
  // steps counts nothing; elsewhere each addition asks.
  enum class Counting : uint8_t { kAsks, kCounts, kSkips };

  void Absorbed(const Statement& s) {
    if (counting_ == Counting::kSkips || !options_.ranges) return;
    if (counting_ == Counting::kCounts) return Record(s);
    WhereSampled([&] { Record(s); }, [] {});
  }

  void WhereSampled(const std::function<void()>& body, const std::function<void()>& otherwise) {
    auto* const sampled = NewBlock("sampled");
    auto* const usual = NewBlock("usual");
    auto* const after = NewBlock("after");
    auto* const rare = llvm::MDBuilder(context_).createBranchWeights(1, 1 << 16);
    b_.CreateCondBr(records_.IsSampled(), sampled, usual, rare);
    b_.SetInsertPoint(sampled);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(usual);
    otherwise();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  static bool CountsWithin(const std::vector<Statement>& statements) {
    return std::any_of(statements.begin(), statements.end(), [](const Statement& s) {
      return s.code == Code::kAbsorbed || CountsWithin(s.body);
    });
  }

  // Whether it may be written twice: it leaves nothing but what it stores, and is short.
  static bool IsShort(const std::vector<Statement>& statements, int64_t& left) {
    left -= static_cast<int64_t>(statements.size());
    return left >= 0 && std::all_of(statements.begin(), statements.end(), [&](const Statement& s) {
             const bool is_number = s.code == Code::kNumber || s.code == Code::kInteger ||
                                    s.code == Code::kConstant || s.code == Code::kTime;
             const bool is_work = s.code == Code::kCall || s.code == Code::kDeclare ||
                                  s.code == Code::kLoad || s.code == Code::kStore;
             const bool is_record = s.code == Code::kLook || s.code == Code::kRange ||
                                    s.code == Code::kStored || s.code == Code::kAbsorbed;
             return is_number || is_work || is_record ||
                    (s.code == Code::kEach && IsShort(s.body, left));
           });
  }

  void Each(const Statement& s) {
    constexpr int64_t kTwice = 100;
    int64_t left = kTwice;
    if (counting_ != Counting::kAsks || !options_.ranges || !CountsWithin(s.body) ||
        !IsShort(s.body, left)) {
      return EachOf(s);
    }
    const auto as = [&](Counting counting) {
      counting_ = counting;
      EachOf(s);
    };
    WhereSampled([&] { as(Counting::kCounts); }, [&] { as(Counting::kSkips); });
    counting_ = Counting::kAsks;
  }

  void Steps(StepOrder order, const std::function<void(Value* column)>& step) {
    if (order == StepOrder::kOne) return step(b_.getInt64(0));
    Value* const count = arguments_[kCount];
    CountTo(count, [&](Value* counter) {
      Value* const last = b_.CreateSub(count, b_.getInt64(1));
      step(order == StepOrder::kDescending ? b_.CreateSub(last, counter) : counter);
    });
  }

  // ---- statements ----
  std::string NameOf(const std::string& function) const {
    if (!options_.evades_subnormals) return function;
    for (const char* product : {"mul_f32", "mul_f64", "mul_bf16"}) {
      if (function == product) return "mul_near_zero" + function.substr(3);
    }
    return function;
  }

  void Call(const Statement& s) {
    llvm::Function& function = ScalarFunction(module_, NameOf(s.function));
    bool uniform = true;
    for (Register r : s.operands) uniform = uniform && At(r).uniform;
    Lanes lanes;
    if (uniform) {
      std::vector<Value*> operands;
      for (Register r : s.operands) operands.push_back(At(r).parts[0]);
      lanes = {true, {WidenedCall(b_, function, operands, 1)}};
      Inline(lanes.parts[0], function);
    } else {
      for (int part = 0; part < parts(); ++part) {
        std::vector<Value*> operands;
        for (Register r : s.operands) operands.push_back(Part(r, part));
        lanes.parts.push_back(WidenedCall(b_, function, operands, width()));
        if (is_one()) Inline(lanes.parts[0], function);
      }
    }
    At(s.result) = std::move(lanes);
  }

  // A loop whose body calls nothing can be widened.
  void Inline(Value* call, const llvm::Function& function) {
    if (loops_.empty()) return;
    MarkParallel(call);
    auto& written = *llvm::cast<llvm::CallInst>(call);
    if (IsStraight(function)) {
      written.addFnAttr(llvm::Attribute::AlwaysInline);
    } else {
      OfferVectors(written);
    }
  }

  // Lane by lane: its accumulator is half a kilobyte.
  void ExactSum(const Statement& s) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
    const int64_t lanes = options_.shape.lanes();
    auto* const from = ScalarType(buffer.carrier);
    auto* const to = ScalarType(CarrierOf(s.result));
    const std::string name =
        Cat("exact_sum_", plan::CarrierName(buffer.carrier), "_", precision::FormatName(s.format));
    Value* const memory = locals_[static_cast<size_t>(s.buffer)].memory;
    Value* const first =
        b_.CreateMul(ElementNumber(s.index), b_.getInt64(static_cast<uint64_t>(lanes)));
    auto* const sums =
        entry_builder_.CreateAlloca(to, entry_builder_.getInt64(static_cast<uint64_t>(lanes)));
    CountTo(b_.getInt64(static_cast<uint64_t>(lanes)), [&](Value* lane) {
      Value* const x = b_.CreateGEP(from, memory, b_.CreateAdd(first, lane));
      Value* const sum = b_.CreateCall(&ScalarFunction(module_, name),
                                       {x, b_.getInt64(static_cast<uint64_t>(s.stride * lanes)),
                                        b_.getInt64(static_cast<uint64_t>(s.number))});
      b_.CreateStore(sum, b_.CreateGEP(to, sums, lane));
    });
    Lanes result;
    for (int part = 0; part < parts(); ++part) {
      auto* const type = VectorOf(to);
      result.parts.push_back(
          b_.CreateAlignedLoad(type, b_.CreateConstGEP1_64(type, sums, part), llvm::Align(4)));
    }
    At(s.result) = std::move(result);
  }

  void Constant(const Statement& s) {
    auto* const type = ScalarType(CarrierOf(s.result));
    SetUniform(s.result, type->isFloatingPointTy() ? static_cast<Value*>(llvm::ConstantFP::get(
                                                         type, static_cast<double>(s.number)))
                                                   : llvm::ConstantInt::getSigned(type, s.number));
  }

  void Declare(const Statement& s) {
    const Buffer& buffer = function_.buffers[static_cast<size_t>(s.buffer)];
    depths_[static_cast<size_t>(s.buffer)] = depth_;
    if (buffer.shared) {
      SharedVariable(s.buffer);
      return;
    }
    if (IsKept(buffer)) return MakeVariables(s.buffer);
    Local& local = locals_[static_cast<size_t>(s.buffer)];
    local.loops = loops_.size();
    if (!loops_.empty() && buffer.count <= kScratch) {
      // Once the loops over it are unrolled, it is registers.
      local.memory = entry_builder_.CreateAlloca(
          StoredType(buffer.carrier), entry_builder_.getInt64(static_cast<uint64_t>(buffer.count)));
      return;
    }
    local.memory = PlaceOf(buffer);
  }

  void Block(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) Write(s);
  }

  void Write(const Statement& s) {
    if (depth_ == 0) mask_ = running_;
    switch (s.code) {
      case Code::kNumber:
        return SetUniform(s.result, TableNumber(CarrierOf(s.result),
                                                b_.getInt64(static_cast<uint64_t>(s.number))));
      case Code::kInteger:
        return SetUniform(s.result, TableNumber(CarrierOf(s.result),
                                                b_.getInt64(static_cast<uint64_t>(s.number))));
      case Code::kConstant:
        return Constant(s);
      case Code::kTime:
        return SetUniform(s.result, CarrierOf(s.result) == Carrier::kI32
                                        ? b_.CreateTrunc(time_, b_.getInt32Ty())
                                        : time_);
      case Code::kCall:
        return Call(s);
      case Code::kDeclare:
        return Declare(s);
      case Code::kLoad:
        return Load(s);
      case Code::kStore:
        return Store(s);
      case Code::kEach:
        return Each(s);
      case Code::kRepeat:
        return Repeat(s);
      case Code::kLeave:
        return Leave(s);
      case Code::kExactSum:
        return ExactSum(s);
      case Code::kCommit:
        return Commit(s);
      case Code::kIf:
        return If(s);
      case Code::kPush:
        return Push(s);
      case Code::kKeep:
        return Keep(s);
      case Code::kRecall:
        return Recall(s);
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

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  const plan::Plan& plan_;
  const plan::Function& owner_;
  const plan::Function& function_;
  const WriterOptions& options_;
  llvm::IRBuilder<> b_;
  llvm::IRBuilder<> entry_builder_;
  llvm::Function* made_ = nullptr;
  llvm::BasicBlock* begin_ = nullptr;
  Value* arguments_[kMembers] = {};
  Value* time_ = nullptr;
  Value* column_ = nullptr;
  Value* fuel_ = nullptr;                // until the next look at the clock
  llvm::BasicBlock* stopped_ = nullptr;  // null: nothing stops it
  Value* top_ = nullptr;                 // of the tape, in bytes per lane
  bool pushes_ = false;
  std::vector<Lanes> registers_;
  std::vector<Local> locals_;
  std::vector<int> depths_;  // of masked blocks around the declaration, by buffer
  int depth_ = 0;
  Vectors running_;
  Vectors mask_;
  llvm::SmallVector<llvm::AllocaInst*, 4> live_;
  llvm::BasicBlock* exit_ = nullptr;
  std::vector<llvm::Metadata*> loops_;  // over elements, outermost first: their access groups
  Value* tape_ = nullptr;               // its memory, in a loop that pushes nothing
  Counting counting_ = Counting::kAsks;
  RecordWriter records_;
};

std::vector<llvm::Function*> WritePieces(llvm::Module& module, const plan::Plan& plan,
                                         const plan::Function& function,
                                         const WriterOptions& options, const std::string& name) {
  const bool pushes = std::any_of(
      function.pieces.begin(), function.pieces.end(),
      [](const plan::Function& piece) { return FunctionWriter::Pushes(piece.statements); });
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
