// Faults that an executor could have, written as changes of the program it runs: the executor is
// right about a program that is not the one it was given.
//
// Each returns whether the program offers a place for it.
#pragma once

#include "sim/program/numerical_program.h"

namespace simgrad::sim::equality {

bool WrongOrderOfSums(NumericalProgram& numerical);
bool MissingRoundingAfterMul(NumericalProgram& numerical);
bool ContractionToFma(NumericalProgram& numerical);
// A lane that left its loop keeps what it carried one iteration earlier.
bool StaleCarriedValue(NumericalProgram& numerical);
bool OneIterationTooMany(NumericalProgram& numerical);
bool TestBeforeCapWhereCapIsFirst(NumericalProgram& numerical);
bool EqualityCountsAsLess(NumericalProgram& numerical);
bool MaxDropsNaN(NumericalProgram& numerical);
bool MergeAddsWhatIsAbsent(NumericalProgram& numerical);
bool TapeIsNotRounded(NumericalProgram& numerical);
bool CastIgnoresSaturation(NumericalProgram& numerical);
bool AccumulateIgnoresItsMask(NumericalProgram& numerical);
bool GuardIsIgnored(NumericalProgram& numerical);

}  // namespace simgrad::sim::equality
