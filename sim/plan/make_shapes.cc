// Reductions.
#include <algorithm>
#include <utility>

#include "sim/op/op_info.h"
#include "sim/plan/region_maker.h"
#include "sim/program/axes.h"
#include "sim/text.h"

namespace simgrad::sim::plan {
namespace {

// A value of at most so many numbers is summed pairwise without a loop.
constexpr int64_t kUnrolledSum = 16;

// The scalar function of this kind on values of the type of `value`.
std::string FunctionOf(std::string_view kind, const Value& value) {
  return Cat(kind, SuffixOf(value));
}

// A view of `count` elements that begin at `start` and lie `stride` apart.
View LineOf(const View& view, Index start, int64_t count, int64_t stride) {
  return {view.carrier, {count}, view.all, view.buffer, std::move(start), {stride}};
}

}  // namespace

void RegionMaker::Reduction(const Op& op) {
  if (op.code == OpCode::kCumsum) return Cumsum(op);
  if (op.code == OpCode::kExclusiveProd) return ExclusiveProd(op);
  const View from = values_.ViewOf(op.operands[0]);
  const Value& result = program_[op.results[0]];
  Shape kept;
  Shape reduced;
  std::vector<int64_t> kept_strides;
  std::vector<int64_t> reduced_strides;
  for (size_t axis = 0; axis < from.shape.size(); ++axis) {
    const bool is_reduced = IsReduced(op, axis);
    (is_reduced ? reduced : kept).push_back(from.shape[axis]);
    if (from.all == kNoRegister) {
      (is_reduced ? reduced_strides : kept_strides).push_back(from.strides[axis]);
    }
  }
  const int64_t count = ElementCount(reduced);
  // Reduces the elements of one result, in row-major order over the reduced axes.
  const auto reduce = [&](Index start) {
    View line = {from.carrier, reduced, from.all, from.buffer, std::move(start), reduced_strides};
    if (from.all != kNoRegister) {
      line.shape = {count};
      line.strides = {0};
    } else if (reduced.size() == 1) {
      line.strides = {reduced_strides[0]};
    } else {
      // Contiguous in the order of the sum, or copied.
      bool is_line = true;
      for (size_t k = 1; k < reduced.size(); ++k) {
        is_line = is_line && reduced_strides[k - 1] == reduced_strides[k] * reduced[k];
      }
      if (!is_line) line = out_.ContiguousOf(line);
      line = LineOf(line, line.start, count, reduced.empty() ? 0 : line.strides.back());
    }
    if (op.code == OpCode::kSum) return Sum(op, line, program_[op.operands[0]].format);
    if (op.code == OpCode::kProd) return out_.Fold(line, FunctionOf("mul_", result), 1);
    if (op.code == OpCode::kAny) return out_.Fold(line, "or_bool", 0);
    if (op.code == OpCode::kAll) return out_.Fold(line, "and_bool", 1);
    if (op.code == OpCode::kReduceMax || op.code == OpCode::kReduceMin ||
        op.code == OpCode::kArgmax || op.code == OpCode::kArgmin) {
      return Extreme(op, line);
    }
    HasNoRule(op.code, "plan");
  };
  if (ElementCount(result.type.shape) == 1) {
    const Register one = reduce(from.start);
    return values_.Bind(op.results[0], View::Splat(CarrierOf(result), result.type.shape, one));
  }
  const View to = out_.Local(CarrierOf(result), result.type.shape, result.name);
  const View kept_view = {from.carrier, kept, from.all, from.buffer, from.start, kept_strides};
  out_.EachElement(kept, {kept_view, to}, [&](const Read&, const Places& place) {
    const Register one = reduce(from.all == kNoRegister ? place(0) : Index{});
    out_.Store(to, place(1), one);
  });
  values_.Bind(op.results[0], to);
}

// acc = f(acc, x), from `first` on; not side by side.
Register RegionMaker::Extreme(const Op& op, const View& line) {
  const bool largest = op.code == OpCode::kReduceMax || op.code == OpCode::kArgmax;
  const bool is_index = op.code == OpCode::kArgmax || op.code == OpCode::kArgmin;
  const std::string suffix(CarrierName(line.carrier));
  const auto at = [&](Register counter) {
    if (line.all != kNoRegister) return line.all;
    Index index = line.start;
    if (counter != kNoRegister) index.terms.emplace_back(counter, line.strides[0]);
    return out_.Load(line, index);
  };
  const View extreme = out_.Local(line.carrier, {}, largest ? "largest" : "smallest");
  out_.StoreOne(extreme, at(kNoRegister));
  const std::string best = Cat(largest ? "max_" : "min_", suffix);
  if (!is_index) {
    out_.Each(line.shape[0], false, [&](Register counter) {
      const Register x = at(counter);
      out_.StoreOne(extreme, out_.Call(best, line.carrier, {out_.One(extreme), x}));
    });
    const bool is_real = line.carrier == Carrier::kF32 || line.carrier == Carrier::kF64;
    if (!is_real) return out_.One(extreme);
    return out_.Call(Cat("canonical_", suffix), line.carrier, {out_.One(extreme)});
  }
  const View place = out_.Local(Carrier::kI32, {}, "place");
  out_.StoreOne(place, out_.Constant(Carrier::kI32, 0));
  const std::string leads = Cat(largest ? "leads_max_" : "leads_min_", suffix);
  out_.Each(line.shape[0], false, [&](Register counter) {
    const Register x = at(counter);
    const Register before = out_.One(extreme);
    const Register is_better = out_.Call(leads, Carrier::kBool, {before, x});
    out_.StoreOne(extreme, out_.Call(Cat("select_", suffix), line.carrier, {is_better, x, before}));
    const Register here = out_.Call("convert_i64_i32", Carrier::kI32, {counter});
    out_.StoreOne(place,
                  out_.Call("select_i32", Carrier::kI32, {is_better, here, out_.One(place)}));
  });
  return out_.One(place);
}

namespace {

// How sums are added: in the accumulator's carrier where it holds every operand, else in f64.
struct Adder {
  Carrier carrier;
  std::string add;
};
Adder AdderOf(Format from, Format accumulator) {
  const std::string_view name = precision::FormatName(accumulator);
  if (precision::Narrows(from, accumulator)) {
    return {Carrier::kF64, Cat("add_wide_", name)};
  }
  return {accumulator == Format::kF64 ? Carrier::kF64 : Carrier::kF32, Cat("add_", name)};
}

}  // namespace

// 0 + x: x, but for -0.
Register RegionMaker::WithoutSignOfZero(Register x) {
  const Carrier carrier = out_.TypeOf(x);
  return out_.Call(Cat("add_", CarrierName(carrier)), carrier, {out_.Constant(carrier, 0), x});
}

Register RegionMaker::Exact(const Op& op, const View& line) {
  const Value& result = program_[op.results[0]];
  const int64_t count = line.shape[0];
  if (count == 1) {
    return out_.Call(
        Cat("round_", CarrierName(line.carrier), "_", precision::FormatName(*result.format)),
        CarrierOf(result), {WithoutSignOfZero(out_.One(line))});
  }
  // Side by side in memory of the instance.
  View numbers = line;
  if (!out_.IsLocal(line)) {
    numbers = out_.Local(line.carrier, line.shape, "");
    out_.Copy(numbers, line);
  }
  return out_.Computed(CarrierOf(result), {.code = Code::kExactSum,
                                           .buffer = numbers.buffer,
                                           .index = numbers.start,
                                           .stride = numbers.strides[0],
                                           .number = count,
                                           .format = *result.format});
}

Register RegionMaker::Sum(const Op& op, const View& line, std::optional<Format> of) {
  const Value& result = program_[op.results[0]];
  const Attributes& a = op.attributes;
  const int64_t count = line.shape[0];
  if (count == 0) return out_.Constant(CarrierOf(result), 0);
  if (!of) return out_.Fold(line, FunctionOf("add_", result), 0);
  const bool is_exact = a.order == Order::kExact;
  // One number is its own sum; a zero loses its sign in all orders but the pairwise one.
  if (count == 1 && *of == *result.format &&
      (is_exact || !precision::Narrows(*of, a.accumulator))) {
    const Register x = out_.One(line);
    return a.order == Order::kPairwise ? x : WithoutSignOfZero(x);
  }
  if (is_exact) return Exact(op, line);
  const Adder adder = AdderOf(*of, a.accumulator);
  const Carrier t = adder.carrier;
  const auto to_adder = [&](Register x, Carrier from) {
    return from == t ? x : out_.Call("widen_f32", t, {x});
  };
  // A total in the format of the result is the result.
  const bool is_rounded = a.accumulator == *result.format && t == CarrierOf(result);
  const auto rounded = [&](Register total) {
    if (is_rounded) return total;
    return out_.Call(Cat("round_", CarrierName(t), "_", precision::FormatName(*result.format)),
                     CarrierOf(result), {total});
  };
  const bool moves = a.order.kind == Order::kShuffled && line.all == kNoRegister;
  const View permutation = moves ? PermutationTable(PermutationKeyOf(op, count)) : View{};
  const auto in_order = [&](const std::function<void(Register)>& push) {
    out_.Each(count, false, [&](Register counter) {
      Index index = line.start;
      Register x = line.all;
      if (x == kNoRegister) {
        const int64_t stride = line.strides[0];
        if (moves) {
          Move(index, permutation, counter, stride);
        } else {
          const bool descends = a.order == Order::kReversed;
          if (descends) index.base += (count - 1) * stride;
          index.terms.emplace_back(counter, descends ? -stride : stride);
        }
        x = out_.Load(line, index);
      }
      push(to_adder(x, line.carrier));
    });
  };
  if (a.order == Order::kPairwise) {
    View leaves = line;
    if (line.carrier != t) {
      leaves = out_.Local(t, line.shape, "");
      out_.EachElement(line.shape, {line, leaves}, [&](const Read& read, const Places& place) {
        const Register x = to_adder(read(0), line.carrier);
        out_.Store(leaves, place(1), x);
      });
    }
    return rounded(Pairwise(adder.add, leaves));
  }
  const View total = out_.Local(t, {}, "total");
  out_.StoreOne(total, out_.Constant(t, 0));
  if (a.order != Order::kCompensated) {
    in_order([&](Register x) {
      out_.StoreOne(total, out_.Call(adder.add, t, {out_.One(total), x}));
    });
    return rounded(out_.One(total));
  }
  // Neumaier's sum: the error of each addition is gathered beside the running sum.
  const View correction = out_.Local(t, {}, "correction");
  const std::string suffix(CarrierName(t));
  out_.StoreOne(correction, out_.Constant(t, 0));
  in_order([&](Register x) {
    const Register sum = out_.One(total);
    const Register next = out_.Call(adder.add, t, {sum, x});
    const Register leads = out_.Call(Cat("not_smaller_", suffix), Carrier::kBool, {sum, x});
    const Register larger = out_.Call(Cat("select_", suffix), t, {leads, sum, x});
    const Register smaller = out_.Call(Cat("select_", suffix), t, {leads, x, sum});
    const Register minus = out_.Call(Cat("neg_", suffix), t, {next});
    const Register rest = out_.Call(adder.add, t, {larger, minus});
    const Register error = out_.Call(adder.add, t, {rest, smaller});
    out_.StoreOne(correction, out_.Call(adder.add, t, {out_.One(correction), error}));
    out_.StoreOne(total, next);
  });
  const Register sum = out_.One(total);
  const Register corrected = out_.Call(adder.add, t, {sum, out_.One(correction)});
  const Register is_finite = out_.Call(Cat("is_finite_", suffix), Carrier::kBool, {sum});
  return rounded(out_.Call(Cat("select_", suffix), t, {is_finite, corrected, sum}));
}

View RegionMaker::PermutationTable(const PermutationKey& key) {
  Plan& plan = out_.plan();
  auto known = std::find_if(plan.permutations.begin(), plan.permutations.end(),
                            [&](const auto& one) { return one.first == key; });
  if (known == plan.permutations.end()) {
    known = plan.permutations.insert(known, {key, static_cast<int64_t>(plan.integers.size())});
    const std::vector<int64_t> permutation = PermutationOf(key);
    plan.integers.insert(plan.integers.end(), permutation.begin(), permutation.end());
  }
  return out_.Whole({.kind = BufferKind::kTable,
                     .carrier = Carrier::kI64,
                     .number = static_cast<int32_t>(known->second),
                     .name = "permutation"},
                    {key.length});
}

// `index` by permutation[counter] places of `stride`.
void RegionMaker::Move(Index& index, const View& permutation, Register counter, int64_t stride) {
  if (stride == 0) return;
  Register place = out_.One(ElementOf(permutation, counter));
  if (stride != 1) {
    place = out_.Call("mul_i64", Carrier::kI64, {place, out_.Constant(Carrier::kI64, stride)});
  }
  if (index.moved != kNoRegister) {
    place = out_.Call("add_i64", Carrier::kI64, {index.moved, place});
  }
  index.moved = place;
}

// The tree (0,1)(2,3)... level by level; a node without a sibling is passed on.
Register RegionMaker::Pairwise(const std::string& add, View line) {
  int64_t count = line.shape[0];
  const auto at = [](const View& view, int64_t k) {
    Index index = view.start;
    index.base += k * view.strides[0];
    return index;
  };
  while (count > kUnrolledSum) {
    const int64_t half = (count + 1) / 2;
    const View level = out_.Local(line.carrier, {half}, "");
    const int64_t pairs = count / 2;
    View left = LineOf(line, line.start, pairs, 0);
    View right = left;
    if (line.all == kNoRegister) {
      left.strides = {2 * line.strides[0]};
      right = left;
      right.start.base += line.strides[0];
    }
    View to = level;
    to.shape = {pairs};
    out_.EachElement({pairs}, {left, right, to}, [&](const Read& read, const Places& place) {
      const Register a = read(0);
      const Register sum = out_.Call(add, line.carrier, {a, read(1)});
      out_.Store(level, place(2), sum);
    });
    if (count % 2 != 0) {
      out_.Store(level, at(level, half - 1),
                 line.all != kNoRegister ? line.all : out_.Load(line, at(line, count - 1)));
    }
    line = level;
    count = half;
  }
  std::vector<Register> nodes;
  for (int64_t k = 0; k < count; ++k) {
    nodes.push_back(line.all != kNoRegister ? line.all : out_.Load(line, at(line, k)));
  }
  while (nodes.size() > 1) {
    std::vector<Register> next;
    for (size_t k = 0; k + 1 < nodes.size(); k += 2) {
      next.push_back(out_.Call(add, line.carrier, {nodes[k], nodes[k + 1]}));
    }
    if (nodes.size() % 2 != 0) next.push_back(nodes.back());
    nodes = std::move(next);
  }
  return nodes[0];
}

void RegionMaker::Cumsum(const Op& op) {
  const View from = values_.ViewOf(op.operands[0]);
  const Value& result = program_[op.results[0]];
  const View to = out_.Local(CarrierOf(result), result.type.shape, result.name);
  values_.Bind(op.results[0], to);
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  const int64_t count = from.shape[axis];
  const bool is_real = program_.IsReal(op.operands[0]);
  const Adder adder = !is_real
                          ? Adder{from.carrier, FunctionOf("add_", result)}
                          : AdderOf(*program_[op.operands[0]].format, op.attributes.accumulator);
  const Carrier t = adder.carrier;
  const auto line_of = [&](const View& view) {
    View line = view;
    line.shape.erase(line.shape.begin() + static_cast<std::ptrdiff_t>(axis));
    if (line.all == kNoRegister) {
      line.strides.erase(line.strides.begin() + static_cast<std::ptrdiff_t>(axis));
    }
    return line;
  };
  const View lines = line_of(from);
  out_.EachElement(lines.shape, {lines, line_of(to)}, [&](const Read&, const Places& place) {
    const View total = out_.Local(t, {}, "total");
    out_.StoreOne(total, out_.Constant(t, 0));
    out_.Each(count, false, [&](Register counter) {
      const auto along = [&](Index index, int64_t stride) {
        if (op.attributes.reverse) index.base += (count - 1) * stride;
        index.terms.emplace_back(counter, op.attributes.reverse ? -stride : stride);
        return index;
      };
      Register x = from.all;
      if (x == kNoRegister) x = out_.Load(from, along(place(0), from.strides[axis]));
      if (from.carrier != t) x = out_.Call("widen_f32", t, {x});
      const Register sum = out_.Call(adder.add, t, {out_.One(total), x});
      out_.StoreOne(total, sum);
      const auto rounded = [&] {
        return out_.Call(Cat("round_", CarrierName(t), "_", precision::FormatName(*result.format)),
                         CarrierOf(result), {sum});
      };
      out_.Store(to, along(place(1), to.strides[axis]), is_real ? rounded() : sum);
    });
  });
}

void RegionMaker::ExclusiveProd(const Op& op) {
  const View from = values_.ViewOf(op.operands[0]);
  const Value& result = program_[op.results[0]];
  const View to = out_.Local(CarrierOf(result), result.type.shape, result.name);
  values_.Bind(op.results[0], to);
  std::vector<size_t> reduced;
  for (size_t axis = 0; axis < from.shape.size(); ++axis) {
    if (IsReduced(op, axis)) reduced.push_back(axis);
  }
  const auto line_of = [&](const View& view) {
    View line = view;
    for (size_t k = reduced.size(); k-- > 0;) {
      const auto at = static_cast<std::ptrdiff_t>(reduced[k]);
      line.shape.erase(line.shape.begin() + at);
      if (line.all == kNoRegister) line.strides.erase(line.strides.begin() + at);
    }
    return line;
  };
  const View lines = line_of(from);
  const std::string mul = FunctionOf("mul_", result);
  out_.EachElement(lines.shape, {lines, line_of(to)}, [&](const Read&, const Places& place) {
    const View product = out_.Local(to.carrier, {}, "product");
    out_.StoreOne(product, out_.Constant(to.carrier, 1));
    // Over the reduced axes from the k-th on, in row-major order or against it.
    const std::function<void(size_t, Index, Index)> walk = [&](size_t k, Index source,
                                                               Index target) {
      if (k == reduced.size()) {
        const Register before = out_.One(product);
        out_.Store(to, target, before);
        const Register x = from.all != kNoRegister ? from.all : out_.Load(from, source);
        out_.StoreOne(product, out_.Call(mul, to.carrier, {before, x}));
        return;
      }
      const size_t axis = reduced[k];
      const int64_t count = from.shape[axis];
      out_.Each(count, false, [&](Register counter) {
        const auto along = [&](Index index, int64_t stride) {
          if (op.attributes.reverse) index.base += (count - 1) * stride;
          index.terms.emplace_back(counter, op.attributes.reverse ? -stride : stride);
          return index;
        };
        const bool repeats = from.all != kNoRegister;
        walk(k + 1, repeats ? source : along(source, from.strides[axis]),
             along(target, to.strides[axis]));
      });
    };
    walk(0, from.all == kNoRegister ? place(0) : Index{}, place(1));
  });
}

}  // namespace simgrad::sim::plan
