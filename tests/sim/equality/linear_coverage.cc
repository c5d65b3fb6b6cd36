#include "tests/sim/equality/linear_coverage.h"

#include <set>
#include <utility>
#include <vector>

namespace simgrad::sim::equality {
namespace {

enum class Form { kBatched, kTall, kWide };
using Forms = std::set<std::pair<OpCode, Form>>;

void Visit(const Program& program, const Region& region, Forms& forms) {
  for (const Op& op : region.ops) {
    for (const Region& inside : op.regions) Visit(program, inside, forms);
    const bool is_lu = op.code == OpCode::kLu || op.code == OpCode::kLuPermutation;
    if (!is_lu && op.code != OpCode::kCholesky && op.code != OpCode::kTriangularSolve) continue;
    const Shape& shape = program[op.operands[0]].type.shape;
    if (ElementCount(shape) == 0) continue;
    const int64_t rows = shape[shape.size() - 2];
    if (shape.size() > 2) forms.emplace(op.code, Form::kBatched);
    if (rows > shape.back()) forms.emplace(op.code, Form::kTall);
    if (rows < shape.back()) forms.emplace(op.code, Form::kWide);
  }
}

Forms FormsOf(const Program& program, const std::vector<const Region*>& regions) {
  Forms forms;
  for (const Region* region : regions) Visit(program, *region, forms);
  return forms;
}

}  // namespace

void LinearCoverage::Add(const NumericalProgram& numerical) {
  Forms reversed;
  if (numerical.adjoint) reversed = FormsOf(numerical.program, RegionsOf(*numerical.adjoint));
  std::vector<const Region*> regions = {&numerical.program.step};
  if (numerical.program.HasInitial()) regions.push_back(&numerical.program.initial);
  if (const Region* terminal = TerminalOf(numerical)) regions.push_back(terminal);
  const Forms forms = FormsOf(numerical.program, regions);
  const auto has = [&](OpCode code, Form form) { return forms.contains({code, form}); };
  const bool cholesky = has(OpCode::kCholesky, Form::kBatched);
  const bool triangular = has(OpCode::kTriangularSolve, Form::kBatched);
  const bool reverses = reversed.contains({OpCode::kTriangularSolve, Form::kBatched});
  batched_cholesky += cholesky ? 1 : 0;
  batched_triangular += triangular ? 1 : 0;
  batched_cholesky_vjp += cholesky && !triangular && reverses ? 1 : 0;
  batched_triangular_vjp += triangular && !cholesky && reverses ? 1 : 0;
  tall_lu += has(OpCode::kLu, Form::kTall) ? 1 : 0;
  wide_lu += has(OpCode::kLu, Form::kWide) ? 1 : 0;
  tall_permutation += has(OpCode::kLuPermutation, Form::kTall) ? 1 : 0;
  wide_permutation += has(OpCode::kLuPermutation, Form::kWide) ? 1 : 0;
}

}  // namespace simgrad::sim::equality
