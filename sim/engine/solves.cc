#include "sim/engine/solves.h"

#include <algorithm>
#include <cmath>

#include "sim/program/told.h"

namespace simgrad::sim {

std::vector<AdjointSolves> SolvesOf(const NumericalProgram& program, const Run& run) {
  std::vector<AdjointSolves> found;
  const Adjoint& adjoint = *program.adjoint;
  for (size_t number = 0; number < adjoint.told.size(); ++number) {
    AdjointSolves solves{.site = adjoint.told[number]};
    const std::vector<double>& counted =
        run.Gradient(ToldInput(adjoint, number, ToldPart::kCounted));
    for (size_t k = 0; k < counted.size(); k += kCountedNumbers) {
      solves.solves += static_cast<uint64_t>(counted[k]);
      solves.turns += static_cast<uint64_t>(counted[k + 1]);
      solves.capped += static_cast<uint64_t>(counted[k + 2]);
    }
    const std::vector<double>& largest =
        run.Gradient(ToldInput(adjoint, number, ToldPart::kLargest));
    for (size_t k = 0; k < largest.size(); k += kLargestNumbers) {
      solves.most_turns = std::max(solves.most_turns, static_cast<uint64_t>(largest[k]));
      const double residual = largest[k + 1];
      if (std::isnan(residual) || residual > solves.residual) solves.residual = residual;
    }
    if (solves.solves > 0) found.push_back(std::move(solves));
  }
  return found;
}

}  // namespace simgrad::sim
