// The numbers of the primal that an adjoint reads, and where executors look at them.
//
// A tape has no `where`: its readers have. So it is executed, as far as NaN and Inf are concerned,
// where an operation that reads it is: a tape that only a masked product reads may be infinite
// where the mask is false, and one that only a branch reads where the branch was not taken.
// The same holds for a cast, and a fake quantisation, of a tape or of an input that the adjoint makes once
// for all of its readers.
// What a region yields, and what `accumulate` or the reverse of a loop takes, is executed with its region.
// Cost: linear in the program. Errors: none. Threads: pure.
#pragma once

#include <vector>

#include "sim/program/numerical_program.h"

namespace simgrad::sim {

// Returns, by value, whether it is looked at where it is read, and not where it is made; empty
// without an adjoint.
std::vector<bool> PrimalReadsOf(const NumericalProgram& program);

// Whether `op` reads element i of an operand for element i of its result alone. Else its reads are
// looked at, every element of them, where the operation is executed for any element.
bool ReadsByElement(const Op& op);

// Whether numbers that `op` reads enter a result: a comparison gives none.
bool ReadsNumbers(const Program& program, const Op& op);

// A value, and the operand of its reader that is it or was made of it. A select reads operand 1 where its
// condition holds, and operand 2 where it does not.
struct PrimalRead {
  ValueId value = ValueId::kNone;
  size_t operand = 0;
};

}  // namespace simgrad::sim
