// Writes the body of a scalar function for vectors of operands.
//
// Maths: every instruction becomes the same instruction on vectors, so the result is the scalar
//   function's in each lane, to the bit. A function with branches is called lane by lane.
//   A large body is written once as a function of vectors, which the others call.
// Cost: one vector instruction for each instruction of the function. Threads: one per module.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <vector>

namespace simgrad::sim::compiled {

// A vector of `width` of them; of one: the type itself.
llvm::Type* Widened(llvm::Type* type, unsigned width);
// The scalar in every lane.
llvm::Value* Splatted(llvm::IRBuilder<>& builder, llvm::Value* scalar, unsigned width);

// Whether the function is straight code that can be widened.
bool IsStraight(const llvm::Function& function);

// function(operands) in each of `width` lanes; operands are vectors of that many. Width 1: scalars.
llvm::Value* WidenedCall(llvm::IRBuilder<>& builder, llvm::Function& function,
                         const std::vector<llvm::Value*>& operands, unsigned width);

// Lets the compiler's loop vectoriser use the function of vectors for a call of a function that is
// straight but for rare operands.
void OfferVectors(llvm::CallInst& call);

// Once the module is written: functions of vectors that are called rarely will be inlined, the others
// not.
void InlineRareLaneFunctions(llvm::Module& module);

}  // namespace simgrad::sim::compiled
