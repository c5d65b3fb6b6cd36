#include "sim/backend/compiled/scalar_module.h"

#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>

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

std::unique_ptr<llvm::Module> ReadScalarModule(llvm::LLVMContext& context) {
  const llvm::StringRef bytes(simgrad_scalars_begin,
                              static_cast<size_t>(simgrad_scalars_end - simgrad_scalars_begin));
  auto module = llvm::parseBitcodeFile(llvm::MemoryBufferRef(bytes, "scalars"), context);
  if (!module) llvm::report_fatal_error(module.takeError());
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

}  // namespace simgrad::sim::compiled
