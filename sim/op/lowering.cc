#include "sim/op/lowering.h"

namespace simgrad::sim {

Lowering::Place Lowering::Place::operator+(const Place& other) const {
  Place sum = *this;
  sum.base += other.base;
  sum.counters.insert(sum.counters.end(), other.counters.begin(), other.counters.end());
  if (sum.data == kNone) sum.data = other.data;
  return sum;
}

void Lowering::EachOf(const Shape& shape, const std::function<void(const Places&)>& body) {
  Places places(shape.size());
  const std::function<void(size_t)> nest = [&](size_t axis) {
    if (axis == shape.size()) return body(places);
    if (shape[axis] == 1) return nest(axis + 1);
    Each(shape[axis], true, [&](Number counter) {
      places[axis] = Place::Of(counter);
      nest(axis + 1);
      places[axis] = {};
    });
  };
  nest(0);
}

Lowering::Number Lowering::Clamped(Number index, Carrier carrier, int64_t extent) {
  const Number wide = ToI64(index, carrier);
  const Number below = Call("max_i64", Carrier::kI64, {wide, Integer(Carrier::kI64, 0)});
  return Call("min_i64", Carrier::kI64, {below, Integer(Carrier::kI64, extent - 1)});
}

Lowering::Number Lowering::Select(Number condition, Number a, Number b, Carrier carrier) {
  return Call("select_" + NameOf(carrier), carrier, {condition, a, b});
}

Lowering::Number Lowering::ToI64(Number integer, Carrier carrier) {
  if (carrier == Carrier::kI64) return integer;
  return Call("convert_" + NameOf(carrier) + "_i64", Carrier::kI64, {integer});
}

std::string FunctionOn(const std::string& name, const Value& value) {
  return name + "_" + std::string(SuffixOf(value));
}

}  // namespace simgrad::sim
