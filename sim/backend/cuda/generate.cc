#include "sim/backend/cuda/generate.h"

#include <algorithm>
#include <initializer_list>

namespace simgrad::sim::cuda {
namespace {

int64_t BytesOf(const Value& value) {
  const int64_t size = MemoryTypeOf(value) == MemoryType::kF64 ? 8 : 4;
  return size * ElementCount(value.type.shape);
}

// Values of one element live in registers and come and go; arrays stay.
int64_t ArrayBytes(const Program& program, const Region& region) {
  int64_t bytes = 0;
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      const bool is_array = ElementCount(program[id].type.shape) > 1;
      if (is_array && op.code != OpCode::kLiteral) bytes += BytesOf(program[id]);
    }
    for (const Region& nested : op.regions) bytes += ArrayBytes(program, nested);
  }
  return bytes;
}

// The most of several regions, of which one runs at a time.
int64_t MostArrayBytes(const Program& program, std::initializer_list<const Region*> regions) {
  int64_t most = 0;
  for (const Region* region : regions) most = std::max(most, ArrayBytes(program, *region));
  return most;
}

int64_t PrivateBytesOf(const NumericalProgram& numerical) {
  const Program& program = numerical.program;
  const Region none;
  const Region* const terminal = TerminalOf(numerical);
  int64_t bytes = MostArrayBytes(
      program, {&program.step, &program.initial, terminal == nullptr ? &none : terminal});
  for (const Input& input : program.inputs) {
    if (input.kind == InputKind::kState) bytes += BytesOf(program[input.value]);
  }
  if (!numerical.adjoint) return bytes;
  const Adjoint& adjoint = *numerical.adjoint;
  return bytes + MostArrayBytes(program, {&adjoint.Last(), &adjoint.inner, &adjoint.initial,
                                          &adjoint.terminal});
}

}  // namespace

bool IsOfAdjoint(std::string_view entry) { return entry.find("adjoint") != std::string_view::npos; }

std::string_view MappingName(Mapping mapping) {
  return mapping == Mapping::kThreadPerInstance ? "thread_per_instance" : "block_per_instance";
}

MemoryType MemoryTypeOf(Carrier carrier) {
  switch (carrier) {
    case Carrier::kBool:
      return MemoryType::kBool;
    case Carrier::kI32:
      return MemoryType::kI32;
    case Carrier::kI64:
      return MemoryType::kI64;
    case Carrier::kU32:
    case Carrier::kU8:
      return MemoryType::kU32;
    case Carrier::kF32:
      return MemoryType::kF32;
    case Carrier::kF64:
      break;
  }
  return MemoryType::kF64;
}

MemoryType MemoryTypeOf(const Value& value) { return MemoryTypeOf(CarrierOf(value)); }

Mapping ChooseMapping(const NumericalProgram& program) {
  constexpr int64_t kLargestPrivate = 4 << 10;
  return PrivateBytesOf(program) <= kLargestPrivate ? Mapping::kThreadPerInstance
                                                    : Mapping::kBlockPerInstance;
}

}  // namespace simgrad::sim::cuda
