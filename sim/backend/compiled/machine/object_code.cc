#include "sim/backend/compiled/machine/object_code.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/CodeGen/MachineModuleInfo.h>
#include <llvm/CodeGen/Passes.h>
#include <llvm/CodeGen/TargetPassConfig.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PassInstrumentation.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Pass.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/X86TargetParser.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/LoopRotation.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Vectorize/LoopVectorize.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sim/backend/compiled/machine/object_store.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {
namespace {

absl::Status Internal(std::string_view what, llvm::Error error) {
  return absl::InternalError(std::string(what) + ": " + llvm::toString(std::move(error)));
}

std::string_view CpuOf(Isa isa) {
  switch (isa) {
    case Isa::kSse2:
      return "x86-64";
    case Isa::kAvx2:
      return "haswell";
    case Isa::kAvx512:
      return "skylake-avx512";
    case Isa::kNeon:
      return "generic";  // ARMv8.0-A, which has NEON
  }
  return "";
}

// Every feature of the named x86-64 processor whose instructions the compiler may write. Two kinds
// are left out: those that it writes only for intrinsics of the same name, and those that only an
// operating system uses; virtual machines hide some of them. x87 is part of x86-64 and is not
// reported.
std::set<std::string> FeaturesOf(Isa isa) {
  static const std::set<std::string> never_written = {
      "aes",   "clflushopt", "clwb", "fsgsbase", "invpcid", "pclmul",   "pku",   "prfchw",
      "rdrnd", "rdseed",     "x87",  "xsave",    "xsavec",  "xsaveopt", "xsaves"};
  llvm::SmallVector<llvm::StringRef, 64> features;
  llvm::X86::getFeaturesForCPU(CpuOf(isa), features);
  std::set<std::string> needed;
  for (llvm::StringRef feature : features) {
    if (never_written.count(feature.str()) == 0) needed.insert(feature.str());
  }
  return needed;
}

// The time of a compile grows faster than its largest function, so large ones get less care.
enum class Care : uint8_t {
  kLittle,  // as little as possible
  kSome,    // no analyses of loops, which take the product of loops and blocks
  kMuch,
};

Care CareOf(const llvm::Module& module, Effort effort) {
  // The time of the passes of much care grows faster than the module.
  constexpr size_t kMostBlocks = 1000;
  constexpr unsigned kMostWithMuch = 30'000;
  constexpr unsigned kMostWithSome = 80'000;
  if (effort == Effort::kQuick) return Care::kLittle;
  Care care = Care::kMuch;
  for (const llvm::Function& function : module) {
    const unsigned instructions = function.getInstructionCount();
    if (instructions > kMostWithSome) return Care::kLittle;
    if (instructions > kMostWithMuch || function.size() > kMostBlocks) care = Care::kSome;
  }
  return care;
}

absl::StatusOr<std::unique_ptr<llvm::TargetMachine>> TargetOf(Isa isa, Care care) {
  InitializeTarget();
  auto host = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!host) return Internal("host", host.takeError());
  llvm::orc::JITTargetMachineBuilder builder(host->getTargetTriple());
  builder.setCPU(std::string(CpuOf(isa)));
  if (isa == Isa::kAvx512) builder.addFeatures({"-prefer-256-bit"});
  builder.setCodeGenOptLevel(care == Care::kLittle ? llvm::CodeGenOptLevel::None
                             : care == Care::kSome ? llvm::CodeGenOptLevel::Less
                                                   : llvm::CodeGenOptLevel::Default);
  builder.setRelocationModel(llvm::Reloc::PIC_);
  builder.setCodeModel(llvm::CodeModel::Small);
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  auto machine = builder.createTargetMachine();
  if (!machine) return Internal("target", machine.takeError());
  // Little care takes the quick selector on arm64 too, not the global one.
  (*machine)->setGlobalISel(false);
  return std::move(*machine);
}

// LLVM cannot be left in the middle. Once `stop` returns true each function that comes to the code
// generator loses its body, and costs nothing more.
class StopPass : public llvm::FunctionPass {
 public:
  explicit StopPass(const WorkMeter::StopCallback& stop) : FunctionPass(id_), stop_(stop) {}
  llvm::StringRef getPassName() const override { return "stop"; }
  bool runOnFunction(llvm::Function& function) override {
    if (!stop_()) return false;
    for (llvm::BasicBlock& block : function) block.dropAllReferences();
    while (!function.empty()) function.begin()->eraseFromParent();
    llvm::LLVMContext& context = function.getContext();
    new llvm::UnreachableInst(context, llvm::BasicBlock::Create(context, "", &function));
    return true;
  }

 private:
  static char id_;
  const WorkMeter::StopCallback& stop_;
};
char StopPass::id_ = 0;

// Notes the largest frame that is beyond the limit of a function, which LLVM warns of.
class FrameHandler : public llvm::DiagnosticHandler {
 public:
  explicit FrameHandler(uint64_t& largest) : largest_(largest) {}
  bool handleDiagnostics(const llvm::DiagnosticInfo& told) override {
    if (told.getKind() != llvm::DK_StackSize) return false;
    const auto& frame = static_cast<const llvm::DiagnosticInfoStackSize&>(told);
    largest_ = std::max(largest_, frame.getResourceSize());
    return true;
  }

 private:
  uint64_t& largest_;
};

// Functions with a frame beyond the limit are told; all touch every page of their frame in order, so
// that a stack that ends is a fault and never other memory.
void LimitFrames(llvm::Module& module, uint64_t most_bytes) {
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr("warn-stack-size", std::to_string(most_bytes));
    function.addFnAttr("probe-stack", "inline-asm");
  }
}

// Adds the passes of addPassesToEmitMC, and a StopPass before instructions are selected.
absl::Status AddPassesToEmit(llvm::legacy::PassManager& emit, llvm::TargetMachine& machine,
                             llvm::raw_pwrite_stream& object, const WorkMeter::StopCallback& stop) {
  auto& target = static_cast<llvm::LLVMTargetMachine&>(machine);
  auto* const information = new llvm::MachineModuleInfoWrapperPass(&target);
  llvm::TargetPassConfig* const config = target.createPassConfig(emit);
  const std::unique_ptr<llvm::Pass> last_before(llvm::createUnreachableBlockEliminationPass());
  config->insertPass(last_before->getPassID(), new StopPass(stop));
  emit.add(config);
  emit.add(information);
  if (config->addISelPasses()) return absl::InternalError("this target selects no instructions");
  config->addMachinePasses();
  config->setInitialized();
  if (target.addAsmPrinter(emit, object, nullptr, llvm::CodeGenFileType::ObjectFile,
                           information->getMMI().getContext())) {
    return absl::InternalError("this target writes no objects");
  }
  emit.add(llvm::createFreeMachineFunctionPass());
  return absl::OkStatus();
}

// A call takes more instructions than these functions: an integer sum, a minimum, a sign. With much
// care the pipeline chooses by itself. Rare lane functions (widen.h) are inlined with them.
void InlineTheSmallest(llvm::Module& module, llvm::ModulePassManager& pipeline) {
  constexpr unsigned kMostInstructions = 12;
  for (llvm::Function& function : module) {
    if (function.isDeclaration() || function.hasFnAttribute(llvm::Attribute::NoInline)) continue;
    if (function.getInstructionCount() > kMostInstructions) continue;
    function.addFnAttr(llvm::Attribute::AlwaysInline);
  }
  pipeline.addPass(llvm::AlwaysInlinerPass());
}

void Optimize(llvm::Module& module, llvm::TargetMachine& machine, Care care, Mapping mapping,
              const WorkMeter::StopCallback& stop) {
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = mapping == Mapping::kElements;
  tuning.SLPVectorization = false;
  llvm::PassInstrumentationCallbacks before_passes;
  before_passes.registerShouldRunOptionalPassCallback(
      [&stop](llvm::StringRef, llvm::Any) { return !stop(); });
  llvm::PassBuilder passes(&machine, tuning, std::nullopt, &before_passes);
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
  if (care == Care::kMuch) {
    pipeline.addPass(passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2));
  } else {
    if (care == Care::kSome) InlineTheSmallest(module, pipeline);
    // Variables become values and what is said twice is said once: it costs less than selecting
    // instructions for it. The rest of -O1 costs as much as it saves later.
    llvm::FunctionPassManager few;
    few.addPass(llvm::SROAPass(llvm::SROAOptions::PreserveCFG));
    few.addPass(llvm::EarlyCSEPass());
    few.addPass(llvm::SimplifyCFGPass());
    if (care == Care::kSome) few.addPass(llvm::InstCombinePass());
    if (care == Care::kSome && mapping == Mapping::kElements) {
      few.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LoopRotatePass()));
      // One vector at a time: unrolled turns would multiply the code.
      few.addPass(llvm::LoopVectorizePass(llvm::LoopVectorizeOptions(true, false)));
      few.addPass(llvm::InstCombinePass());
      few.addPass(llvm::SimplifyCFGPass());
    }
    pipeline.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(few)));
  }
  pipeline.run(module, modules);
}

#if !defined(__aarch64__)
Isa DetectedIsa() {
  const auto features = llvm::sys::getHostCPUFeatures();
  std::set<std::string> present;
  for (const auto& feature : features) {
    if (feature.second) present.insert(feature.first().str());
  }
  return BestIsaOf(present);
}
#endif

absl::StatusOr<std::string> Compile(llvm::Module& module, Isa isa, Effort effort, Mapping mapping,
                                    uint64_t most_frame_bytes,
                                    const WorkMeter::StopCallback& stop) {
  // Once stopped it stays stopped: by then a function may have lost its body.
  bool stopped = false;
  const WorkMeter::StopCallback stops = [&] { return stopped = stopped || (stop && stop()); };
  const Care care = CareOf(module, effort);
  auto machine = TargetOf(isa, care);
  if (!machine.ok()) return machine.status();
  module.setDataLayout((*machine)->createDataLayout());
  module.setTargetTriple((*machine)->getTargetTriple().str());
  Optimize(module, **machine, care, mapping, stops);
  if (stopped) return StopRequested::Status();
  LimitFrames(module, most_frame_bytes);
  uint64_t largest_frame = 0;
  module.getContext().setDiagnosticHandler(std::make_unique<FrameHandler>(largest_frame));
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream object(bytes);
  llvm::legacy::PassManager emit;
  if (absl::Status added = AddPassesToEmit(emit, **machine, object, stops); !added.ok()) {
    return added;
  }
  emit.run(module);
  module.getContext().setDiagnosticHandler(std::make_unique<llvm::DiagnosticHandler>());
  if (stopped) return StopRequested::Status();
  if (largest_frame > 0) {
    return absl::OutOfRangeError("a function takes " + std::to_string(largest_frame) +
                                 " bytes of stack, the limit is " +
                                 std::to_string(most_frame_bytes));
  }
  return std::string(bytes.data(), bytes.size());
}

}  // namespace

void InitializeTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

Isa BestIsa() { return IsasOfThisMachine().back(); }

const std::vector<Isa>& IsasOfThisMachine() {
#if defined(__aarch64__)
  static const std::vector<Isa> isas = {Isa::kNeon};
#else
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> narrower_first;
    const Isa best = DetectedIsa();
    for (Isa isa : {Isa::kSse2, Isa::kAvx2, Isa::kAvx512}) {
      if (isa <= best) narrower_first.push_back(isa);
    }
    return narrower_first;
  }();
#endif
  return isas;
}

Isa BestIsaOf(const std::set<std::string>& features) {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    const std::set<std::string> needed = FeaturesOf(isa);
    if (std::includes(features.begin(), features.end(), needed.begin(), needed.end())) return isa;
  }
  return Isa::kSse2;
}

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kSse2:
      return "sse2";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      break;
  }
  return "neon";
}

bool FusesMultiplyAdd(Isa isa) { return isa != Isa::kSse2; }

int FloatLanes(Isa isa) { return isa == Isa::kAvx512 ? 16 : isa == Isa::kAvx2 ? 8 : 4; }

absl::StatusOr<std::string> CompileObject(llvm::Module& module, Isa isa, Effort effort,
                                          Mapping mapping, uint64_t most_frame_bytes,
                                          const WorkMeter::StopCallback& stop) {
  std::string problem;
  llvm::raw_string_ostream problems(problem);
  if (llvm::verifyModule(module, &problems)) return absl::InternalError(problem);
  const KernelFolder* const kept = KeptObjects();
  if (kept == nullptr) return Compile(module, isa, effort, mapping, most_frame_bytes, stop);
  const std::string key =
      ObjectKey(module,
                Cat(IsaName(isa), effort == Effort::kBest ? " best " : " quick ",
                    mapping == Mapping::kElements ? "elements " : "lanes ", most_frame_bytes),
                SIMGRAD_OBJECT_CODE_DIGEST);
  if (std::optional<std::string> found = kept->Find(key)) return *std::move(found);
  absl::StatusOr<std::string> object =
      Compile(module, isa, effort, mapping, most_frame_bytes, stop);
  if (object.ok()) kept->Keep(key, *object);
  return object;
}

}  // namespace simgrad::sim::compiled
