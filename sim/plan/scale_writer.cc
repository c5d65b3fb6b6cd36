#include "sim/plan/scale_writer.h"

#include <utility>

#include "sim/program/compared_sum.h"
#include "sim/text.h"

namespace simgrad::sim::plan {

using enum OpCode;

Summands ScaleWriter::SummandsOf(ValueId compared, std::vector<View>& views) {
  if (program_.level != TestLevel::kDeclared) return ScaleViews(compared, views);
  const Op* const sum =
      ComparedSum(program_, compared, [&](ValueId id) { return values_.MakerOf(id); });
  const Summands summands = {sum, views.size(), {}, {}};
  if (sum == nullptr) return summands;
  for (ValueId operand : sum->operands) views.push_back(values_.ViewOf(operand));
  return summands;
}

// Returns the larger of two magnitudes; in f64 where one is.
Register ScaleWriter::Larger(Register a, Register b) {
  if (a == kNoRegister) return b;
  if (b == kNoRegister) return a;
  if (out_.TypeOf(a) != out_.TypeOf(b)) return Larger(out_.Wide(a), out_.Wide(b));
  return out_.Call(Cat("larger_magnitude_", CarrierName(out_.TypeOf(a))), out_.TypeOf(a), {a, b});
}

// Returns the magnitude of a product or a quotient, in f64.
Register ScaleWriter::WideMagnitude(const char* of, Register a, Register b) {
  return out_.Call(Cat("magnitude_of_", of, "_f64"), Carrier::kF64, {out_.Wide(a), out_.Wide(b)});
}

// Returns `behind`, f64, where it is above the magnitude of `own`, else that magnitude: infinities behind
// a number may make a NaN, which tells nothing of the number.
Register ScaleWriter::LargerNumber(Register own, Register behind) {
  const Register wide = out_.Wide(own);
  const Register magnitude = Larger(wide, wide);
  const Register is_larger = out_.Call("lt_f64", Carrier::kBool, {magnitude, behind});
  return out_.Call("select_f64", Carrier::kF64, {is_larger, behind, magnitude});
}

// Elements as the moves put them, the outermost first.
View ScaleWriter::Moved(View view, const std::vector<const Op*>& moves) {
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
    const Attributes& a = (*move)->attributes;
    const Shape& shape = program_[(*move)->results[0]].type.shape;
    if ((*move)->code == kReshape) {
      view = out_.Reshaped(view, shape);
      continue;
    }
    std::vector<Lowering::Along> axes;
    for (size_t k = 0; k < view.shape.size(); ++k) {
      const int64_t axis = static_cast<int64_t>(k);
      if ((*move)->code == kBroadcast) {
        axes.push_back({a.dims[k], 0, 1});
      } else {
        axes.push_back({axis, a.start[k], a.dims.empty() ? 1 : a.dims[k]});
      }
    }
    view = Rearranged(std::move(view), axes, shape);
  }
  return view;
}

Summands ScaleWriter::ScaleViews(ValueId compared, std::vector<View>& views) {
  Summands summands;
  summands.scale = ScaleOf(program_, compared, [&](ValueId id) { return values_.MakerOf(id); });
  for (const ScaleNode& node : summands.scale) {
    summands.of_nodes.push_back(views.size());
    views.push_back(Moved(values_.ViewOf(node.value), node.moves));
    // The operand of a move has another shape, and is a node itself; so is that of a cast that draws.
    const bool is_behind =
        node.op != nullptr && (node.op->operands.size() == 1 || IsStochastic(*node.op));
    if (node.op == nullptr || is_behind) continue;
    for (ValueId operand : node.op->operands) {
      views.push_back(Moved(values_.ViewOf(operand), node.moves));
    }
  }
  return summands;
}

// Magnitudes of f32 stay in f32 until they are multiplied or divided.
Register ScaleWriter::ScaleAt(const Summands& summands, const Read& read) {
  std::vector<Register> scales;
  for (size_t n = 0; n < summands.scale.size(); ++n) {
    const ScaleNode& node = summands.scale[n];
    const size_t first = summands.of_nodes[n];
    const auto operand = [&](size_t k) { return read(first + 1 + k); };
    const Register own = read(first);
    Register behind = own;
    switch (node.rule) {
      case ScaleRule::kOwn:
        break;
      case ScaleRule::kSum:
        behind = Larger(operand(0), operand(1));
        break;
      case ScaleRule::kFusedSum:
        behind = Larger(WideMagnitude("product", operand(0), operand(1)), operand(2));
        break;
      case ScaleRule::kProduct:
        behind = Larger(WideMagnitude("product", scales[node.first], operand(1)),
                        WideMagnitude("product", operand(0), scales[node.second]));
        behind = LargerNumber(own, behind);
        break;
      case ScaleRule::kQuotient:
        behind = LargerNumber(own, WideMagnitude("quotient", scales[node.first], operand(1)));
        break;
      case ScaleRule::kRoot:
        behind = LargerNumber(own, WideMagnitude("quotient_but_by_zero", scales[node.first], own));
        break;
      case ScaleRule::kChoice: {
        Register a = scales[node.first];
        Register b = scales[node.second];
        if (out_.TypeOf(a) != out_.TypeOf(b)) {
          a = out_.Wide(a);
          b = out_.Wide(b);
        }
        behind = out_.Call(Cat("select_", CarrierName(out_.TypeOf(a))), out_.TypeOf(a),
                           {operand(0), a, b});
        break;
      }
      case ScaleRule::kSame:
        behind = scales[node.first];
    }
    const bool is_larger = node.rule == ScaleRule::kProduct || node.rule == ScaleRule::kQuotient ||
                           node.rule == ScaleRule::kRoot;
    scales.push_back(is_larger ? behind : Larger(own, behind));
  }
  return scales.back();
}

Register ScaleWriter::Extra(const Summands& lhs, const Summands& rhs, const Read& read) {
  Register extra = kNoRegister;
  for (const Summands& summands : {lhs, rhs}) {
    if (!summands.scale.empty()) extra = Larger(extra, ScaleAt(summands, read));
    if (summands.sum == nullptr) continue;
    Register first = read(summands.first);
    Register second = read(summands.first + 1);
    if (summands.sum->code == OpCode::kFma) {
      first = WideMagnitude("product", first, second);
      second = read(summands.first + 2);
    }
    extra = Larger(extra, Larger(first, second));
  }
  return extra;
}

}  // namespace simgrad::sim::plan
