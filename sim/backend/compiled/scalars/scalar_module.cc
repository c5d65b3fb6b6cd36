#include "sim/backend/compiled/scalars/scalar_module.h"

#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Transforms/Utils/Cloning.h>

// SIMGRAD_SCALARS_BITCODE is the path of scalar_bitcode.cc's bitcode at build time.
asm(".section .rodata\n"
    ".balign 16\n"
    ".hidden simgrad_scalars_begin\n.globl simgrad_scalars_begin\n"
    "simgrad_scalars_begin:\n"
    ".incbin \"" SIMGRAD_SCALARS_BITCODE
    "\"\n"
    ".hidden simgrad_scalars_end\n.globl simgrad_scalars_end\n"
    "simgrad_scalars_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char simgrad_scalars_begin[];
extern "C" const char simgrad_scalars_end[];

namespace simgrad::sim::compiled {
namespace {

llvm::StringRef Bitcode() {
  return {simgrad_scalars_begin, static_cast<size_t>(simgrad_scalars_end - simgrad_scalars_begin)};
}

// Functions that return what they are given, unseen by the optimiser (product_near_zero.h).
constexpr llvm::StringRef kKept = "simgrad_kept_";
// precision::internal::MultiplyAdd, and the flag of a module that says what it becomes.
constexpr llvm::StringRef kMultiplyAdd = "simgrad_multiply_add";
constexpr llvm::StringRef kFuses = "simgrad_fuses";
// Rounding of a float to f16, and the function that does it where the flag is missing.
constexpr llvm::StringRef kToF16 = "simgrad_to_f16";
constexpr llvm::StringRef kToF16InSteps = "simgrad_to_f16_in_steps";

// Writes what a call of a function without a body stands for; null where it is none of ours.
llvm::Value* Meant(llvm::CallInst& call, llvm::StringRef called) {
  llvm::IRBuilder<> builder(&call);
  llvm::Value* const first = call.arg_empty() ? nullptr : call.getArgOperand(0);
  if (called.starts_with(kKept)) return builder.CreateArithmeticFence(first, call.getType());
  const bool fuses = call.getModule()->getModuleFlag(kFuses) != nullptr;
  if (called == kToF16 && fuses) {
    return builder.CreateFPExt(builder.CreateFPTrunc(first, builder.getHalfTy()), call.getType());
  }
  if (called != kMultiplyAdd) return nullptr;
  llvm::Value* const second = call.getArgOperand(1);
  llvm::Value* const third = call.getArgOperand(2);
  if (!fuses) return builder.CreateFAdd(builder.CreateFMul(first, second), third);
  return builder.CreateIntrinsic(llvm::Intrinsic::fma, {call.getType()}, {first, second, third});
}

// `function` in place of what is called, written where the call stands.
void Inline(llvm::CallInst& call, llvm::Function& function) {
  ReadBody(function);
  // The loop that reads the caller goes on behind the call, in the same block.
  if (function.size() != 1) llvm::report_fatal_error("a function of several blocks is not inlined");
  call.setCalledFunction(&function);
  llvm::InlineFunctionInfo info;
  const llvm::InlineResult done = llvm::InlineFunction(call, info);
  if (!done.isSuccess()) llvm::report_fatal_error(done.getFailureReason());
}

}  // namespace

void ReadBody(llvm::Function& function) {
  if (!function.isMaterializable()) return;
  if (auto error = function.materialize()) llvm::report_fatal_error(std::move(error));
  for (llvm::Instruction& i : llvm::make_early_inc_range(llvm::instructions(function))) {
    auto* const call = llvm::dyn_cast<llvm::CallInst>(&i);
    llvm::Function* const called = call == nullptr ? nullptr : call->getCalledFunction();
    if (called == nullptr) continue;
    if (llvm::Value* const meant = Meant(*call, called->getName())) {
      call->replaceAllUsesWith(meant);
      call->eraseFromParent();
    } else if (called->getName() == kToF16) {
      Inline(*call, *function.getParent()->getFunction(kToF16InSteps));
    } else {
      ReadBody(*called);
    }
  }
}

std::string_view ScalarBitcode() { return {Bitcode().data(), Bitcode().size()}; }

std::unique_ptr<llvm::Module> ReadScalarModule(llvm::LLVMContext& context, bool fuses) {
  auto module = llvm::getLazyBitcodeModule(llvm::MemoryBufferRef(Bitcode(), "scalars"), context,
                                           /*ShouldLazyLoadMetadata=*/true);
  if (!module) llvm::report_fatal_error(module.takeError());
  (*module)->setSourceFileName("scalars");  // without the folder that it was built in
  if (fuses) (*module)->addModuleFlag(llvm::Module::Override, kFuses, 1);
  for (const char* used : {"llvm.used", "llvm.compiler.used"}) {
    if (auto* list = (*module)->getGlobalVariable(used, true)) list->eraseFromParent();
  }
  for (llvm::GlobalObject& object : (*module)->global_objects()) {
    if (object.isDeclaration()) continue;
    object.setLinkage(llvm::GlobalValue::InternalLinkage);
    object.setComdat(nullptr);
    if (auto* function = llvm::dyn_cast<llvm::Function>(&object)) {
      // The caller's processor is theirs too.
      function->removeFnAttr("target-cpu");
      function->removeFnAttr("target-features");
      function->removeFnAttr("tune-cpu");
    }
  }
  return std::move(*module);
}

llvm::Function& ScalarFunction(llvm::Module& module, const std::string& name) {
  llvm::Function* const function = module.getFunction(name);
  if (function == nullptr) throw UnknownScalar("no scalar function " + name);
  ReadBody(*function);
  return *function;
}

void DropUnreadScalars(llvm::Module& module) {
  for (llvm::Function& function : llvm::make_early_inc_range(module)) {
    if (!function.isMaterializable()) continue;
    function.deleteBody();
    if (function.use_empty()) function.eraseFromParent();
  }
}

}  // namespace simgrad::sim::compiled
