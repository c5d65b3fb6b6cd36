// The scalar functions of plans (sim/backend/scalars.h) as a module to write machine code into.
//
// Errors: none; the bitcode is part of the binary. Threads: any; a module has one context.
#pragma once

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <memory>

namespace simgrad::sim::compiled {

// All of its functions are internal, so that what nothing calls disappears.
std::unique_ptr<llvm::Module> ReadScalarModule(llvm::LLVMContext& context);

}  // namespace simgrad::sim::compiled
