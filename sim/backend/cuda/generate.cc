#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {
namespace {

// Values of one element live in registers and come and go; arrays stay.
int64_t ArrayBytes(const Program& program, const Region& region) {
  int64_t bytes = 0;
  for (const Op& op : region.ops) {
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      const int64_t count = ElementCount(program[id].type.shape);
      const int64_t size = MemoryTypeOf(program[id]) == MemoryType::kF64 ? 8 : 4;
      if (count > 1 && op.code != OpCode::kLiteral) bytes += size * count;
    }
    for (const Region& nested : op.regions) bytes += ArrayBytes(program, nested);
  }
  return bytes;
}

int64_t PrivateBytesOf(const NumericalProgram& numerical) {
  const Program& program = numerical.program;
  int64_t bytes = ArrayBytes(program, program.step);
  for (const Input& input : program.inputs) {
    if (input.kind == InputKind::kState) bytes += 4 * ElementCount(program[input.value].type.shape);
  }
  if (numerical.adjoint) bytes += ArrayBytes(program, numerical.adjoint->inner);
  return bytes;
}

}  // namespace

bool IsOfAdjoint(std::string_view entry) { return entry.find("adjoint") != std::string_view::npos; }

std::string_view MappingName(Mapping mapping) {
  return mapping == Mapping::kThreadPerInstance ? "thread_per_instance" : "block_per_instance";
}

Mapping ChooseMapping(const NumericalProgram& program) {
  constexpr int64_t kLargestPrivate = 4 << 10;
  return PrivateBytesOf(program) <= kLargestPrivate ? Mapping::kThreadPerInstance
                                                    : Mapping::kBlockPerInstance;
}

}  // namespace simgrad::sim::cuda
