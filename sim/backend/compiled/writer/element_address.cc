#include "sim/backend/compiled/writer/element_address.h"

#include <vector>

namespace simgrad::sim::compiled {

using llvm::Value;

Value* ElementNumber(FunctionBuilder& f, const plan::Index& index) {
  auto& b = f.b();
  Value* number = f.Int64(index.base);
  for (const auto& [r, stride] : index.terms) {
    Value* const step = f.Int64(stride);
    number = b.CreateAdd(number, b.CreateMul(f.Uniform(r), step));
  }
  const bool shares_moved = index.moved != plan::kNoRegister && !MovesApart(f, index);
  return shares_moved ? b.CreateAdd(number, f.Uniform(index.moved)) : number;
}

bool MovesApart(const FunctionBuilder& f, const plan::Index& index) {
  return index.moved != plan::kNoRegister && !f.IsUniform(index.moved) && f.width() > 1;
}

Value* MovedElements(FunctionBuilder& f, const plan::Index& index, Value* shared, size_t part) {
  return f.b().CreateAdd(f.Splat(shared), f.Part(index.moved, part));
}

Value* MovedLanes(FunctionBuilder& f, const plan::Index& index, llvm::Type* type, Value* memory,
                  Value* shared, size_t part) {
  auto& b = f.b();
  std::vector<llvm::Constant*> lanes;
  for (unsigned lane = 0; lane < f.width(); ++lane) lanes.push_back(b.getInt64(lane));
  Value* const vectors = b.CreateAdd(
      b.CreateMul(MovedElements(f, index, shared, part), f.Splat64(f.parts())), f.Splat64(part));
  Value* const numbers =
      b.CreateAdd(b.CreateMul(vectors, f.Splat64(f.width())), llvm::ConstantVector::get(lanes));
  return b.CreateGEP(type->getScalarType(), memory, numbers);
}

Value* VectorNumber(FunctionBuilder& f, Value* element, size_t part) {
  auto& b = f.b();
  return b.CreateAdd(b.CreateMul(element, b.getInt64(f.parts())), b.getInt64(part));
}

Value* Gather(FunctionBuilder& f, llvm::Type* type, Value* addresses) {
  return f.b().CreateMaskedGather(type, addresses, llvm::Align(4));
}

}  // namespace simgrad::sim::compiled
