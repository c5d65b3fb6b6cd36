// What each operation without control flow computes: its result from its operands.
//
// Maths: sim/program/opcode.h and docs/semantics.md. The exact result is rounded once to the format
//   of the result. Every NaN is canonical.
// Errors: none; the program has been verified. Cost: allocates the result; the meter counts its
//   elements and may end it.
// Threads: pure, in the float environment of precision/float_environment.h.
#pragma once

#include <span>

#include "sim/backend/reference/array.h"
#include "sim/backend/work_meter.h"
#include "sim/program/axes.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::reference {

using Operands = std::span<const Array* const>;

// Any operation with one result and no regions that reads nothing but its operands.
Array Evaluate(const NumericalProgram& program, const Op& op, Operands operands, WorkMeter& meter);

// Of one element, in element-operations.
inline constexpr int64_t kElementWork = 4;

// By class; Evaluate chooses.
Array EvaluateElementwise(const Program& program, const Op& op, Operands operands,
                          WorkMeter& meter);
Array EvaluateShape(const Program& program, const Op& op, const Array& operand, WorkMeter& meter);
Array EvaluateConcat(const Program& program, const Op& op, Operands operands, WorkMeter& meter);
Array EvaluateReduction(const Program& program, const Op& op, const Array& operand,
                        WorkMeter& meter);
Array EvaluateConversion(const Program& program, const Op& op, const Array& operand,
                         WorkMeter& meter);

bool Compares(Comparison comparison, double a, double b);
bool Compares(Comparison comparison, int64_t a, int64_t b);

// Two's complement at the width of the type: i32 wraps at 32 bits; bool is 0 or 1.
int64_t WrapTo(ElementType type, int64_t value);

// The elements of the operand that result element `result` of a reduction reads, in their order:
// for a cumulative sum, those up to and including its own.
std::vector<size_t> ReducedElements(const Program& program, const Op& op, size_t result,
                                    WorkMeter* meter = nullptr);

}  // namespace simgrad::sim::reference
