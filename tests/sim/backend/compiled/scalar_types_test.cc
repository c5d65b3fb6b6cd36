// What code may not contain: LLVM's half and bfloat, whose conversions flush subnormals on some machines
// or call a library (a conversion to half and back is allowed where the processor has both); flags that allow other roundings; functions whose bits are a library's.
#include <gtest/gtest.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Operator.h>
#include <llvm/Support/SourceMgr.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/compiled/scalars/scalar_module.h"
#include "sim/backend/compiled/writer/function_writer.h"
#include "sim/plan/make_plan.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

bool IsNarrow(const llvm::Type* type) {
  const llvm::Type* const scalar = type->getScalarType();
  return scalar->isHalfTy() || scalar->isBFloatTy();
}

// From half, of a value that was converted to it just before.
bool ConvertsBack(const llvm::Value& value) {
  const auto* const back = llvm::dyn_cast<llvm::FPExtInst>(&value);
  return back != nullptr && back->getOperand(0)->getType()->getScalarType()->isHalfTy() &&
         llvm::isa<llvm::FPTruncInst>(back->getOperand(0));
}

// To half, of a float, for conversions back alone; or one of these.
bool IsConversion(const llvm::Instruction& i) {
  if (ConvertsBack(i)) return true;
  const auto* const there = llvm::dyn_cast<llvm::FPTruncInst>(&i);
  return there != nullptr && there->getOperand(0)->getType()->getScalarType()->isFloatTy() &&
         std::all_of(there->user_begin(), there->user_end(),
                     [](const llvm::User* user) { return ConvertsBack(*user); });
}

bool IsFloating(const llvm::Value& value) { return value.getType()->isFPOrFPVectorTy(); }

// Each finding once, in words.
std::set<std::string> Forbidden(llvm::Module& module, bool converts) {
  const std::set<llvm::Intrinsic::ID> allowed = {
      llvm::Intrinsic::fabs,     llvm::Intrinsic::sqrt,       llvm::Intrinsic::fma,
      llvm::Intrinsic::copysign, llvm::Intrinsic::is_fpclass, llvm::Intrinsic::arithmetic_fence,
  };
  std::set<std::string> found;
  for (llvm::Function& function : module) {
    for (const llvm::Instruction& i : llvm::instructions(function)) {
      bool floating = IsFloating(i), narrow = IsNarrow(i.getType());
      for (const llvm::Use& operand : i.operands()) {
        floating = floating || IsFloating(*operand);
        narrow = narrow || IsNarrow(operand->getType());
      }
      if (narrow && !(converts && IsConversion(i)))
        found.insert("a narrow type in " + function.getName().str());
      if (llvm::isa<llvm::FPMathOperator>(i) && i.getFastMathFlags().any()) {
        found.insert("fast flags in " + function.getName().str());
      }
      const auto* const intrinsic = llvm::dyn_cast<llvm::IntrinsicInst>(&i);
      if (intrinsic == nullptr || !floating || intrinsic->isLifetimeStartOrEnd()) continue;
      if (allowed.count(intrinsic->getIntrinsicID()) == 0) {
        found.insert(intrinsic->getCalledFunction()->getName().str());
      }
    }
  }
  return found;
}

TEST(ScalarTypes, AreNeitherNarrowNorFastInTheBitcode) {
  for (const bool fuses : {false, true}) {
    llvm::LLVMContext context;
    const auto module = ReadScalarModule(context, fuses);
    size_t bodies = 0;
    for (llvm::Function& function : *module) {
      ReadBody(function);
      bodies += function.empty() ? 0 : 1;
    }
    EXPECT_GT(bodies, 300u);
    EXPECT_EQ(Forbidden(*module, /*converts=*/fuses), std::set<std::string>());
    // Read bodies have an instruction, or two, in its place.
    for (const char* meant : {"simgrad_multiply_add", "simgrad_to_f16"}) {
      const llvm::Function* const function = module->getFunction(meant);
      EXPECT_TRUE(function == nullptr || function->use_empty()) << meant;
    }
    const auto add = llvm::instructions(*module->getFunction("add_f16"));
    const auto converts = [](const llvm::Instruction& i) {
      return llvm::isa<llvm::FPTruncInst>(i);
    };
    EXPECT_EQ(std::any_of(add.begin(), add.end(), converts), fuses);
  }
}

TEST(ScalarTypes, AreNeitherNarrowNorFastInTheCodeOfAGradient) {
  for (const char* preset : {"f32", "bf16_safe", "f16_unsafe"}) {
    const Program world = large::LargeProgram(200);
    precision::PolicySpec spec;
    spec.preset = preset;
    const auto lowered =
        tests::LowerForGradient(world, tests::PolicyOf(spec), world.objectives.front().name);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const plan::Plan plan =
        plan::PlacedPlan(*lowered, {.decides = true, .looks = true, .ranges = true});
    llvm::LLVMContext context;
    const auto module = ReadScalarModule(context, /*fuses=*/true);
    WriterOptions writer = {.shape = ShapeOf({}), .looks = true, .decides = true, .ranges = true};
    writer.inputs.resize(lowered->program.inputs.size());
    WriteFunction(*module, plan, plan.step, StepOrder::kAscending, writer, "step");
    WriteFunction(*module, plan, plan.replay, StepOrder::kAscending, writer, "replay");
    WriteFunction(*module, plan, plan.reverse, StepOrder::kDescending, writer, "reverse");
    DropUnreadScalars(*module);
    EXPECT_EQ(Forbidden(*module, /*converts=*/true), std::set<std::string>()) << preset;
  }
}

TEST(ScalarTypes, WhatIsForbiddenIsFound) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const auto module = llvm::parseAssemblyString(R"(
    declare float @llvm.exp.f32(float)
    declare float @llvm.fabs.f32(float)
    define half @narrow(half %x) {
      ret half %x
    }
    define <4 x float> @wide(<4 x bfloat> %x) {
      %y = fpext <4 x bfloat> %x to <4 x float>
      ret <4 x float> %y
    }
    define float @converted(float %x) {
      %y = fptrunc float %x to half
      %z = fpext half %y to float
      ret float %z
    }
    define half @kept(float %x) {
      %y = fptrunc float %x to half
      ret half %y
    }
    define float @fast(float %x) {
      %y = fadd contract float %x, %x
      ret float %y
    }
    define float @library(float %x) {
      %y = call float @llvm.exp.f32(float %x)
      %z = call float @llvm.fabs.f32(float %y)
      ret float %z
    }
  )",
                                                problem, context);
  ASSERT_NE(module, nullptr) << problem.getMessage().str();
  std::set<std::string> expected = {"a narrow type in narrow", "a narrow type in wide",
                                    "a narrow type in kept", "fast flags in fast", "llvm.exp.f32"};
  EXPECT_EQ(Forbidden(*module, /*converts=*/true), expected);
  expected.insert("a narrow type in converted");
  EXPECT_EQ(Forbidden(*module, /*converts=*/false), expected);
}

}  // namespace
}  // namespace simgrad::sim::compiled
