#include "sim/plan/values.h"

#include <algorithm>
#include <array>

#include "precision/rounding.h"
#include "sim/program/axes.h"
#include "sim/text.h"

namespace simgrad::sim::plan {

std::string ComparisonFunction(Comparison comparison, const Value& lhs) {
  constexpr std::array<std::string_view, 6> kComparisons = {"lt", "le", "gt", "ge", "eq", "ne"};
  const bool is_real = lhs.type.element == ElementType::kReal;
  return Cat(kComparisons[static_cast<size_t>(comparison)], "_",
             is_real ? precision::FormatName(*lhs.format) : CarrierName(CarrierOf(lhs)));
}

const View& Values::ViewOf(ValueId id) {
  View& view = views_[sim::Index(id)];
  if (view.set()) return view;
  if (const Op* literal = tape_ == nullptr ? nullptr : tape_->LiteralOf(id)) {
    out_.First([&] { Literal(*literal); });
    return view;
  }
  const Value& value = program_[id];
  const Carrier carrier = CarrierOf(value);
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const Input& input = program_.inputs[i];
    if (input.value != id) continue;
    if (input.kind == InputKind::kStep) {
      out_.First(
          [&] { view = View::Splat(carrier, {}, out_.Computed(carrier, {.code = Code::kTime})); });
    } else {
      view = out_.Whole({.kind = BufferKind::kInput,
                         .carrier = carrier,
                         .number = static_cast<int32_t>(i),
                         .name = input.name},
                        value.type.shape);
    }
  }
  return view;
}

std::vector<View> Values::ViewsOf(std::span<const ValueId> ids) {
  std::vector<View> views;
  for (ValueId id : ids) views.push_back(ViewOf(id));
  return views;
}

void Values::Literal(const Op& op) {
  const Value& result = program_[op.results[0]];
  const Carrier carrier = CarrierOf(result);
  const std::vector<double>& literal = op.attributes.literal;
  const bool is_real = result.type.element == ElementType::kReal;
  if (literal.size() == 1) {
    const Register all = out_.NumberLike(literal[0], result, result.name);
    return Bind(op.results[0], View::Splat(carrier, result.type.shape, all));
  }
  std::vector<double>& numbers = out_.plan().numbers;
  std::vector<int64_t>& integers = out_.plan().integers;
  Bind(op.results[0],
       out_.Whole({.kind = BufferKind::kTable,
                   .carrier = carrier,
                   .number = static_cast<int32_t>(is_real ? numbers.size() : integers.size()),
                   .name = result.name},
                  result.type.shape));
  for (double x : literal) {
    if (is_real) {
      numbers.push_back(precision::RoundTo(*result.format, x));
    } else {
      integers.push_back(static_cast<int64_t>(x));
    }
  }
}

void Values::Define(const Op& op, const std::vector<View>& operands, const Element& element) {
  const ValueId id = op.results[0];
  const Value& value = program_[id];
  const bool is_splat = std::all_of(operands.begin(), operands.end(),
                                    [](const View& view) { return view.all != kNoRegister; });
  if (ElementCount(value.type.shape) == 1 || is_splat) {
    const Register result = element([&](size_t k) { return out_.One(operands[k]); });
    Bind(id, View::Splat(CarrierOf(value), value.type.shape, result));
    return;
  }
  const View to = out_.Local(CarrierOf(value), value.type.shape, value.name);
  std::vector<View> views = operands;
  views.push_back(to);
  out_.EachElement(value.type.shape, views, [&](const Read& read, const Places& place) {
    const Register result = element(read);
    out_.Store(to, place(operands.size()), result);
  });
  Bind(id, to);
}

View Values::MaskFor(const Shape& shape, ValueId mask) {
  View view = ViewOf(mask);
  if (view.shape == shape) return view;
  const int64_t count = ElementCount(view.shape);
  if (view.all == kNoRegister && count == ElementCount(shape)) return out_.Reshaped(view, shape);
  return AnyOf(shape, view);
}

View Values::AnyOf(const Shape& shape, const View& mask) {
  View same{.carrier = Carrier::kBool, .shape = shape, .all = mask.all};
  if (mask.all != kNoRegister) return same;
  same.all = out_.Fold(out_.Reshaped(mask, {ElementCount(mask.shape)}), "or_bool", 0);
  return same;
}

void Values::Made(const Op& op) {
  for (ValueId id : op.results) {
    if (id != ValueId::kNone) makers_[sim::Index(id)] = {&region(), &op};
  }
}

const Op* Values::MakerOf(ValueId id) const {
  const Maker& maker = makers_[sim::Index(id)];
  return maker.region == &region() ? maker.op : nullptr;
}

}  // namespace simgrad::sim::plan
