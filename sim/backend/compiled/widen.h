// Writes the body of a scalar function for vectors of operands.
//
// Maths: every instruction becomes the same instruction on vectors, so the result is the scalar
//   function's in each lane, to the bit. A function with branches is called lane by lane.
// Cost: one vector instruction for each instruction of the function. Threads: one per module.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <vector>

namespace simgrad::sim::compiled {

// Whether the function is straight code that can be widened.
bool IsStraight(const llvm::Function& function);

// function(operands) in each of `width` lanes; operands are vectors of that many. Width 1: scalars.
llvm::Value* WidenedCall(llvm::IRBuilder<>& builder, llvm::Function& function,
                         const std::vector<llvm::Value*>& operands, unsigned width);

// Has the optimiser put widened functions of at most `most_calls` calls in their callers' place.
void InlineRareCalls(llvm::Module& module, unsigned most_calls);

}  // namespace simgrad::sim::compiled
