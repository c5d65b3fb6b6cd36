#include "sim/plan/outer_products.h"

#include <algorithm>
#include <optional>

#include "precision/policy.h"

namespace simgrad::sim::plan {
namespace {

using precision::Format;

// How often the operations of a region, nested ones included, read a value and give to an input.
class Reads {
 public:
  explicit Reads(const Region& region) { Follow(region); }
  int64_t CountOf(ValueId id) const {
    const auto at = reads_.find(id);
    return at == reads_.end() ? 0 : at->second;
  }
  int64_t GivenTo(int32_t input) const {
    const auto at = given_.find(input);
    return at == given_.end() ? 0 : at->second;
  }

 private:
  void Follow(const Region& region) {
    for (const Op& op : region.ops) {
      for (const ValueId id : op.operands) ++reads_[id];
      ++reads_[op.attributes.where];
      ++reads_[op.attributes.primal];
      if (op.code == OpCode::kAccumulate) ++given_[op.attributes.input];
      for (const Region& nested : op.regions) Follow(nested);
    }
    for (const ValueId id : region.yields) ++reads_[id];
  }
  std::map<ValueId, int64_t> reads_;
  std::map<int32_t, int64_t> given_;
};

// The matmuls behind all that a reversed step gives to inputs, where these are outer products.
using Found = std::map<int32_t, std::pair<const Op*, const Op*>>;  // accumulate, matmul
Found FoundIn(const NumericalProgram& numerical, const Region& region) {
  const Program& program = numerical.program;
  const Format format = numerical.policy[Role::kGradient].format;
  if (format != Format::kF32 && format != Format::kF64) return {};
  const Reads reads(region);
  std::map<ValueId, const Op*> products;
  Found found;
  for (const Op& op : region.ops) {
    if (op.code == OpCode::kMatmul) products[op.results[0]] = &op;
    if (op.code != OpCode::kAccumulate) continue;
    const int32_t input = op.attributes.input;
    const bool masked = op.attributes.where != ValueId::kNone ||
                        (op.operands.size() > 1 && op.operands[1] != ValueId::kNone);
    const auto product = products.find(op.operands[0]);
    if (masked || product == products.end() || op.attributes.combine == Combine::kMax) continue;
    const Op& matmul = *product->second;
    const Shape& left = program[matmul.operands[0]].type.shape;
    const Value& result = program[matmul.results[0]];
    const Attributes& how = matmul.attributes;
    const auto is_real = [&](ValueId id) { return program[id].format == format; };
    const bool is_plain = !how.ordered && !how.rounding && how.where == ValueId::kNone &&
                          result.format == format && is_real(matmul.operands[0]) &&
                          is_real(matmul.operands[1]) &&
                          (how.accumulator == format || how.accumulator == Format::kF64);
    const bool is_outer = left.size() == 2 && left[1] == 1 && ElementCount(result.type.shape) > 0;
    if (!is_plain || !is_outer || reads.CountOf(matmul.results[0]) != 1) continue;
    if (reads.GivenTo(input) == 1) found[input] = {&op, &matmul};
  }
  return found;
}

}  // namespace

OuterProducts OuterProductsOf(const NumericalProgram& numerical) {
  OuterProducts products;
  const auto sums = [&](const Input& input) {
    const auto index = static_cast<size_t>(&input - numerical.program.inputs.data());
    return input.weights && numerical.adjoint_spec->wanted[index];
  };
  const std::vector<Input>& inputs = numerical.program.inputs;
  if (!numerical.adjoint || std::none_of(inputs.begin(), inputs.end(), sums)) return products;
  const Adjoint& adjoint = *numerical.adjoint;
  const Found inner = FoundIn(numerical, adjoint.inner);
  std::optional<Found> last;
  if (adjoint.last) last = FoundIn(numerical, *adjoint.last);
  const Reads terminal(adjoint.terminal);
  const Reads initial(adjoint.initial);
  for (const auto& [input, ops] : inner) {
    if (!sums(inputs[static_cast<size_t>(input)])) continue;
    if (last && !last->contains(input)) continue;
    if (terminal.GivenTo(input) > 0 || initial.GivenTo(input) > 0) continue;
    const Shape& shape = numerical.program[ops.second->results[0]].type.shape;
    products.of_steps.push_back({.input = input, .rows = shape[0], .columns = shape[1]});
    products.made_by.insert(ops);
    if (last) products.made_by.insert(last->at(input));
  }
  for (const auto& [accumulate, matmul] : products.made_by) products.unread.insert(matmul);
  return products;
}

}  // namespace simgrad::sim::plan
