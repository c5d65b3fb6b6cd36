// Numbers of elements, and where they lie in memory that holds [element][part][lane], as
// instructions.
//
// Maths: number = base + sum of stride * counter + moved. The moved part may differ between lanes;
//   then each lane reads and writes an address of its own.
// Errors: none. Threads: one per module.
#pragma once

#include <cstddef>

#include "sim/backend/compiled/writer/function_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// The element number, a scalar: what the lanes share of it.
llvm::Value* ElementNumber(FunctionBuilder& f, const plan::Index& index);

// Whether the lanes of a vector meet different elements.
bool MovesApart(const FunctionBuilder& f, const plan::Index& index);

// The element numbers of the lanes of one part, given what they share.
llvm::Value* MovedElements(FunctionBuilder& f, const plan::Index& index, llvm::Value* shared,
                           size_t part);

// The addresses of these elements, each in its own lane. `type`: the vector of a part.
llvm::Value* MovedLanes(FunctionBuilder& f, const plan::Index& index, llvm::Type* type,
                        llvm::Value* memory, llvm::Value* shared, size_t part);

// [element][part] as the number of a vector.
llvm::Value* VectorNumber(FunctionBuilder& f, llvm::Value* element, size_t part);

// The numbers at addresses, a vector of them.
llvm::Value* Gather(FunctionBuilder& f, llvm::Type* type, llvm::Value* addresses);

}  // namespace simgrad::sim::compiled
