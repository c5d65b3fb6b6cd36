#include "sim/backend/compiled/writer/memory_writer.h"

#include <cstdint>

#include "sim/backend/compiled/analysis/uniform_buffers.h"
#include "sim/backend/compiled/writer/element_address.h"

namespace simgrad::sim::compiled {
namespace {

using llvm::Value;
using plan::Buffer;
using plan::BufferId;
using plan::BufferKind;
using plan::Carrier;
using plan::Statement;

// Numbers that one turn of a loop over elements needs for itself.
constexpr int64_t kScratch = 64;

Member ListOf(const Buffer& buffer) {
  if (buffer.kind == BufferKind::kField) return kFields;
  return buffer.kind == BufferKind::kGradient ? kGradients : kConnectedFlags;
}

bool IsAlways(Value* mask) {
  const auto* const constant = llvm::dyn_cast<llvm::Constant>(mask);
  return constant != nullptr && constant->isAllOnesValue();
}

}  // namespace

MemoryWriter::MemoryWriter(FunctionBuilder& function)
    : f_(function), b_(function.b()), locals_(function.function().buffers.size()) {
  if (!f_.is_one()) small_ = FindSmallArrays(f_.function());
}

void MemoryWriter::Begin() {
  FindInputs();
  LoadFields();
}

void MemoryWriter::FindInputs() {
  for (size_t id = 0; id < locals_.size(); ++id) {
    const Buffer& buffer = f_.function().buffers[id];
    if (buffer.kind != BufferKind::kInput) continue;
    auto* const load = f_.ListedPointer(kInputs, buffer.number);
    const InputForm& form = FormOf(buffer);
    const int64_t one = buffer.count * f_.BytesOfOne(buffer.carrier);
    const int64_t lanes = form.per_lane ? f_.options().shape.lanes() : 1;
    if (!form.per_step) f_.MarkReadable(load, static_cast<uint64_t>(one * lanes));
    locals_[id].memory = load;
  }
}

// ---- fields, sums of gradients and locals ----

// Whether a buffer is one memory for all steps of a call, read before and after it.
bool MemoryWriter::Outlives(const Buffer& buffer) const {
  if (buffer.kind == BufferKind::kGradient) return !FormOf(buffer).sums_per_step;
  return buffer.kind == BufferKind::kField || buffer.kind == BufferKind::kConnected;
}

bool MemoryWriter::IsKept(const Buffer& buffer) const {
  if (buffer.placed || (f_.is_piece() && Outlives(buffer))) return false;
  if (buffer.kind == BufferKind::kConnected) return true;
  if (buffer.kind != BufferKind::kLocal && !Outlives(buffer)) return false;
  if (buffer.count == 1) return true;
  const bool is_kept_for_calls = buffer.offset >= 0 && buffer.offset < f_.function().kept;
  return IsNamed(buffer) && !is_kept_for_calls;
}

bool MemoryWriter::IsNamed(const Buffer& buffer) const {
  return !f_.is_one() && small_.named[static_cast<size_t>(&buffer - f_.function().buffers.data())];
}

Value* MemoryWriter::Variable(const Local& local, Value* element, size_t part) const {
  // The element of an array of several is named (small_arrays.h).
  const auto* const number = llvm::dyn_cast<llvm::ConstantInt>(element);
  const size_t e = number == nullptr ? 0 : static_cast<size_t>(number->getZExtValue());
  return local.variables[e * f_.parts() + part];
}

void MemoryWriter::MakeVariables(BufferId id) {
  Local& local = locals_[IndexOf(id)];
  if (!local.variables.empty()) return;
  const Buffer& buffer = BufferOf(id);
  for (int64_t element = 0; element < buffer.count; ++element) {
    const Vectors one = f_.Variables(f_.ScalarInMemory(buffer.carrier));
    local.variables.insert(local.variables.end(), one.begin(), one.end());
  }
}

void MemoryWriter::LoadFields() {
  for (size_t id = 0; id < locals_.size(); ++id) {
    const Buffer& buffer = f_.function().buffers[id];
    if (!Outlives(buffer)) continue;
    Local& local = locals_[id];
    local.memory = f_.ListedPointer(ListOf(buffer), buffer.number);
    if (!IsKept(buffer)) continue;
    MakeVariables(static_cast<BufferId>(id));
    auto* const type = f_.StoredType(buffer.carrier);
    for (size_t k = 0; k < local.variables.size(); ++k) {
      b_.CreateStore(LoadVector(type, local.memory, b_.getInt64(k)), local.variables[k]);
    }
  }
}

void MemoryWriter::StoreFields() {
  for (size_t id = 0; id < locals_.size(); ++id) {
    const Buffer& buffer = f_.function().buffers[id];
    if (!Outlives(buffer) || !IsKept(buffer)) continue;
    const Local& local = locals_[id];
    auto* const type = f_.StoredType(buffer.carrier);
    for (size_t k = 0; k < local.variables.size(); ++k) {
      auto* const value = b_.CreateLoad(type, local.variables[k]);
      auto* const at = b_.CreateGEP(type, local.memory, b_.getInt64(k));
      b_.CreateAlignedStore(value, at, llvm::Align(4));
    }
  }
}

void MemoryWriter::BindPlaced() {
  for (size_t id = 0; id < locals_.size(); ++id) {
    const Buffer& buffer = f_.function().buffers[id];
    const bool is_placed = buffer.kind == BufferKind::kLocal && buffer.offset >= 0;
    if (is_placed && !IsKept(buffer)) locals_[id].memory = PlaceOf(buffer);
  }
}

void MemoryWriter::ReuseInvariants() {
  reuses_ = true;
  if (!f_.is_one()) uniform_ = UniformBuffers(f_.function(), f_.options().inputs);
}

Value* MemoryWriter::PlaceOf(const Buffer& buffer) {
  const bool outlives = reuses_ && buffer.offset < f_.function().kept;
  return f_.Offset(f_.Argument(outlives ? kKept : kWorkspace),
                   static_cast<uint64_t>(buffer.offset * f_.options().shape.lanes()));
}

void MemoryWriter::Declare(const Statement& s) {
  const Buffer& buffer = BufferOf(s.buffer);
  Local& local = locals_[IndexOf(s.buffer)];
  local.depth = f_.masks().depth;
  if (buffer.shared) {
    SharedVariable(s.buffer);
    return;
  }
  if (IsKept(buffer)) return MakeVariables(s.buffer);
  local.loops = f_.parallel_loops();
  if (local.loops > 0 && buffer.count <= kScratch) {
    // Once the loops over it are unrolled, it is registers.
    local.memory = f_.entry().CreateAlloca(f_.StoredType(buffer.carrier), f_.Int64(buffer.count));
    return;
  }
  local.memory = PlaceOf(buffer);
}

Value* MemoryWriter::SharedVariable(BufferId id) {
  Local& local = locals_[IndexOf(id)];
  if (BufferOf(id).placed) return local.memory;
  if (local.variables.empty()) {
    local.variables.push_back(f_.entry().CreateAlloca(b_.getInt64Ty()));
  }
  return local.variables[0];
}

Value* MemoryWriter::MemoryOf(const Buffer& buffer, const Local& local) {
  const auto member = [&](Member list) -> Value* {
    auto* const load = f_.ListedPointer(list, buffer.number);
    f_.MarkParallel(load);
    return load;
  };
  bool has_steps = false;
  Value* memory = local.memory;
  if (buffer.kind == BufferKind::kSent) {
    memory = member(kSentCotangents);
    has_steps =
        f_.plan().sent[static_cast<size_t>(buffer.number)].kind != plan::SentKind::kFinalState;
  } else if (buffer.kind == BufferKind::kFactors ||
             (buffer.kind == BufferKind::kGradient && !Outlives(buffer))) {
    memory = member(kGradients);
    has_steps = true;
  }
  if (!has_steps) return memory;
  const int64_t bytes = buffer.count * f_.BytesOfOne(buffer.carrier) * f_.options().shape.lanes();
  return b_.CreateGEP(b_.getInt8Ty(), memory, b_.CreateMul(f_.column(), f_.Int64(bytes)));
}

// ---- loads ----

llvm::LoadInst* MemoryWriter::LoadVector(llvm::Type* type, Value* memory, Value* vector_index) {
  return b_.CreateAlignedLoad(type, b_.CreateGEP(type, memory, vector_index), llvm::Align(4));
}

void MemoryWriter::Load(const Statement& s) {
  const Buffer& buffer = BufferOf(s.buffer);
  if (buffer.kind == BufferKind::kInput) return LoadInput(s, buffer);
  if (buffer.kind == BufferKind::kTable) return LoadTable(s, buffer);
  if (buffer.shared) {
    return f_.SetUniform(s.result, f_.LoadInt64(SharedVariable(s.buffer)));
  }
  if (IsUniform(s.buffer)) return LoadUniform(s);
  Value* const element = ElementNumber(f_, s.index);
  f_.SetLanes(s.result, [&](size_t part) {
    return f_.FromStored(buffer.carrier, LoadPart(s, element, part));
  });
}

void MemoryWriter::LoadUniform(const Statement& s) {
  const Carrier carrier = BufferOf(s.buffer).carrier;
  const Local& local = locals_[IndexOf(s.buffer)];
  auto* const type = f_.ScalarInMemory(carrier);
  Value* const element = ElementNumber(f_, s.index);
  if (MovesApart(f_, s.index)) {
    return f_.SetLanes(s.result, [&](size_t part) {
      Value* const at = b_.CreateGEP(type, local.memory, MovedElements(f_, s.index, element, part));
      return f_.FromStored(carrier, Gather(f_, f_.VectorOf(type), at));
    });
  }
  auto* const at = b_.CreateGEP(type, local.memory, element);
  auto* const load = b_.CreateAlignedLoad(type, at, llvm::Align(4));
  f_.MarkParallel(load, local.loops);
  f_.SetUniform(s.result, f_.FromStored(carrier, load));
}

// Whether the turns of a loop whose turns are independent otherwise share the buffer: each adds to
// whether an input is connected, in any order.
bool MemoryWriter::IsOfAllTurns(const Buffer& buffer) {
  return buffer.kind == BufferKind::kConnected;
}

Value* MemoryWriter::LoadPart(const Statement& s, Value* element, size_t part) {
  const Buffer& buffer = BufferOf(s.buffer);
  const Local& local = locals_[IndexOf(s.buffer)];
  auto* const type = f_.StoredType(buffer.carrier);
  if (IsKept(buffer)) return b_.CreateLoad(type, Variable(local, element, part));
  if (MovesApart(f_, s.index)) {
    return Gather(f_, type, MovedLanes(f_, s.index, type, MemoryOf(buffer, local), element, part));
  }
  auto* const load = LoadVector(type, MemoryOf(buffer, local), VectorNumber(f_, element, part));
  if (!IsOfAllTurns(buffer)) f_.MarkParallel(load, local.loops);
  return load;
}

void MemoryWriter::LoadInput(const Statement& s, const Buffer& buffer) {
  const InputForm& form = FormOf(buffer);
  Value* const base = At(s.buffer);
  Value* element = ElementNumber(f_, s.index);
  if (form.per_step) {
    Value* const column = b_.CreateSub(f_.time(), f_.Argument(kFirstStep));
    element = b_.CreateAdd(element, b_.CreateMul(column, f_.Int64(buffer.count)));
  }
  const auto set_lanes = [&](const auto& load) {
    f_.SetLanes(s.result, [&](size_t part) { return f_.FromStored(buffer.carrier, load(part)); });
  };
  const auto marked = [&](llvm::LoadInst* load) {
    f_.MarkInvariant(load);
    f_.MarkParallel(load);
    return load;
  };
  auto* const type = f_.ScalarInMemory(buffer.carrier);
  auto* const vector = f_.VectorOf(type);
  if (form.per_lane && MovesApart(f_, s.index)) {
    return set_lanes([&](size_t part) {
      return Gather(f_, vector, MovedLanes(f_, s.index, vector, base, element, part));
    });
  }
  if (form.per_lane) {
    return set_lanes([&](size_t part) {
      return marked(LoadVector(vector, base, VectorNumber(f_, element, part)));
    });
  }
  if (MovesApart(f_, s.index)) {
    return set_lanes([&](size_t part) {
      Value* const at = b_.CreateGEP(type, base, MovedElements(f_, s.index, element, part));
      return Gather(f_, vector, at);
    });
  }
  auto* const load = marked(b_.CreateLoad(type, b_.CreateGEP(type, base, element)));
  f_.SetUniform(s.result, f_.FromStored(buffer.carrier, load));
}

// ---- tables ----

void MemoryWriter::Number(const Statement& s) {
  f_.SetUniform(s.result, TableNumber(f_.CarrierOf(s.result), f_.Int64(s.number)));
}

void MemoryWriter::LoadTable(const Statement& s, const Buffer& buffer) {
  Value* const number = b_.CreateAdd(ElementNumber(f_, s.index), f_.Int64(buffer.number));
  if (!MovesApart(f_, s.index)) {
    return f_.SetUniform(s.result, TableNumber(buffer.carrier, number));
  }
  f_.SetLanes(s.result, [&](size_t part) {
    return TableNumber(buffer.carrier, MovedElements(f_, s.index, number, part));
  });
}

Value* MemoryWriter::TableNumber(Carrier carrier, Value* number) {
  const bool real = carrier == Carrier::kF32 || carrier == Carrier::kF64;
  auto* const type = real ? b_.getDoubleTy() : static_cast<llvm::Type*>(b_.getInt64Ty());
  auto* const at = b_.CreateGEP(type, f_.Argument(real ? kNumbers : kIntegers), number);
  if (number->getType()->isVectorTy()) {
    return FromTable(carrier, Gather(f_, f_.VectorOf(type), at));
  }
  auto* const load = b_.CreateLoad(type, at);
  f_.MarkInvariant(load);
  f_.MarkParallel(load);
  return FromTable(carrier, load);
}

Value* MemoryWriter::FromTable(Carrier carrier, Value* number) {
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
    case Carrier::kI64:
    case Carrier::kF64:
      break;
  }
  return number;
}

// ---- stores ----

void MemoryWriter::Store(const Statement& s) {
  const Buffer& buffer = BufferOf(s.buffer);
  if (buffer.shared) {
    b_.CreateStore(f_.Uniform(s.operands[0]), SharedVariable(s.buffer));
    return;
  }
  if (IsUniform(s.buffer)) return StoreUniform(s);
  // An instance gives to sums only while it runs; the sums of lanes without an instance are
  // never read.
  const bool is_sum = buffer.kind == BufferKind::kGradient || buffer.kind == BufferKind::kFactors ||
                      buffer.kind == BufferKind::kConnected;
  const bool masked =
      (is_sum && f_.options().stops) || locals_[IndexOf(s.buffer)].depth < f_.masks().depth;
  Value* const element = ElementNumber(f_, s.index);
  for (size_t part = 0; part < f_.parts(); ++part) StorePart(s, element, masked, part);
}

void MemoryWriter::StoreUniform(const Statement& s) {
  const Carrier carrier = BufferOf(s.buffer).carrier;
  const Local& local = locals_[IndexOf(s.buffer)];
  auto* const type = f_.ScalarInMemory(carrier);
  Value* value = f_.Uniform(s.operands[0]);
  if (carrier == Carrier::kBool) value = b_.CreateSExt(value, type);
  auto* const at = b_.CreateGEP(type, local.memory, ElementNumber(f_, s.index));
  f_.MarkParallel(b_.CreateAlignedStore(value, at, llvm::Align(4)), local.loops);
}

void MemoryWriter::StorePart(const Statement& s, Value* element, bool masked, size_t part) {
  const Buffer& buffer = BufferOf(s.buffer);
  const Local& local = locals_[IndexOf(s.buffer)];
  auto* const type = f_.StoredType(buffer.carrier);
  const bool is_kept = IsKept(buffer);
  if (MovesApart(f_, s.index) && !is_kept) {
    Value* const lanes = MovedLanes(f_, s.index, type, MemoryOf(buffer, local), element, part);
    b_.CreateMaskedScatter(f_.ToStored(buffer.carrier, f_.Part(s.operands[0], part)), lanes,
                           llvm::Align(4), masked ? f_.Mask(part) : nullptr);
    return;
  }
  Value* const at =
      is_kept ? Variable(local, element, part)
              : b_.CreateGEP(type, MemoryOf(buffer, local), VectorNumber(f_, element, part));
  Value* value = f_.ToStored(buffer.carrier, f_.Part(s.operands[0], part));
  const auto mark = [&](Value* access) {
    if (!is_kept && !IsOfAllTurns(buffer)) f_.MarkParallel(access, local.loops);
    return access;
  };
  if (masked && !IsAlways(f_.Mask(part))) {
    Value* const before = mark(b_.CreateAlignedLoad(type, at, llvm::Align(4)));
    value = b_.CreateSelect(f_.Mask(part), value, before);
  }
  mark(b_.CreateAlignedStore(value, at, llvm::Align(4)));
}

}  // namespace simgrad::sim::compiled
