#include "sim/backend/compiled/machine_code.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>

#include <cstdlib>
#include <mutex>
#include <utility>

namespace simgrad::sim::compiled {
namespace {

absl::Status Internal(std::string_view what, llvm::Error error) {
  return absl::InternalError(std::string(what) + ": " + llvm::toString(std::move(error)));
}

void InitializeTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

std::string_view CpuOf(Isa isa) {
  switch (isa) {
    case Isa::kSse2:
      return "x86-64";
    case Isa::kAvx2:
      return "haswell";
    case Isa::kAvx512:
      return "skylake-avx512";
  }
  return "";
}

void Optimize(llvm::Module& module, llvm::TargetMachine& machine, Effort effort, Mapping mapping) {
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = mapping == Mapping::kElements;
  tuning.SLPVectorization = false;
  llvm::PassBuilder passes(&machine, tuning);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager groups;
  llvm::ModuleAnalysisManager modules;
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(groups);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, groups, modules);
  llvm::ModulePassManager pipeline;
  pipeline.addPass(llvm::GlobalDCEPass());
  pipeline.addPass(passes.buildPerModuleDefaultPipeline(
      effort == Effort::kQuick ? llvm::OptimizationLevel::O1 : llvm::OptimizationLevel::O2));
  pipeline.run(module, modules);
}

}  // namespace

Isa BestIsa() {
  const auto features = llvm::sys::getHostCPUFeatures();
  const auto has = [&](const char* feature) { return features.lookup(feature); };
  if (has("avx512f") && has("avx512dq") && has("avx512bw") && has("avx512vl")) return Isa::kAvx512;
  return has("avx2") && has("fma") ? Isa::kAvx2 : Isa::kSse2;
}

int FloatLanes(Isa isa) { return isa == Isa::kSse2 ? 4 : isa == Isa::kAvx2 ? 8 : 16; }

MachineCode::~MachineCode() = default;

absl::StatusOr<std::unique_ptr<MachineCode>> MachineCode::Compile(
    std::unique_ptr<llvm::LLVMContext> context, std::unique_ptr<llvm::Module> written, Isa isa,
    Effort effort, Mapping mapping) {
  InitializeTarget();
  llvm::Module* const module = written.get();
  // A module ends before its context.
  llvm::orc::ThreadSafeModule owned(std::move(written), std::move(context));
  std::string problem;
  llvm::raw_string_ostream problems(problem);
  if (llvm::verifyModule(*module, &problems)) return absl::InternalError(problem);
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) return Internal("host", host.takeError());
  llvm::orc::JITTargetMachineBuilder builder(host->getTargetTriple());
  builder.setCPU(std::string(CpuOf(isa)));
  if (isa == Isa::kAvx512) builder.addFeatures({"-prefer-256-bit"});
  builder.setCodeGenOptLevel(effort == Effort::kQuick ? llvm::CodeGenOptLevel::Less
                                                      : llvm::CodeGenOptLevel::Default);
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  auto machine = builder.createTargetMachine();
  if (!machine) return Internal("target", machine.takeError());
  module->setDataLayout((*machine)->createDataLayout());
  module->setTargetTriple(host->getTargetTriple().str());
  Optimize(*module, **machine, effort, mapping);
  auto code = std::unique_ptr<MachineCode>(new MachineCode());
  llvm::raw_string_ostream text(code->text_);
  module->print(text, nullptr);
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(builder).create();
  if (!jit) return Internal("jit", jit.takeError());
  code->jit_ = std::move(*jit);
  if (auto error = code->jit_->addIRModule(std::move(owned))) {
    return Internal("module", std::move(error));
  }
  return code;
}

absl::StatusOr<void*> MachineCode::Find(const std::string& name) const {
  auto address = jit_->lookup(name);
  if (!address) return Internal(name, address.takeError());
  return address->toPtr<void*>();
}

}  // namespace simgrad::sim::compiled
