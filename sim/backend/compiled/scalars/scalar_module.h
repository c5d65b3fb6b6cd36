// The scalar functions of plans (sim/backend/scalars.h) as a module to write machine code into.
//
// A body is read when it is first asked for: all of them would take longer than a small kernel.
// Errors: ScalarFunction throws UnknownScalar; the bitcode is part of the binary. Threads: any; a
// module has one context.
#pragma once

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace simgrad::sim::compiled {

struct UnknownScalar : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string_view ScalarBitcode();

// All of its functions are internal, so that what nothing calls disappears. `fuses`: the processor
// has a fused multiply-add, which precision::internal::MultiplyAdd becomes, and conversions to f16 and back,
// which rounding a float to f16 becomes; a set of instructions (object_code.h) has both or neither.
std::unique_ptr<llvm::Module> ReadScalarModule(llvm::LLVMContext& context, bool fuses);
// A function of that module with its body and those of what it calls.
llvm::Function& ScalarFunction(llvm::Module& module, const std::string& name);
// Reads the body of a function of the module, where it has not been read yet.
void ReadBody(llvm::Function& function);
// Removes the functions that were never asked for.
void DropUnreadScalars(llvm::Module& module);

}  // namespace simgrad::sim::compiled
