#include "sim/plan/statement_writer.h"

#include <iterator>
#include <unordered_set>
#include <utility>

#include "precision/rounding.h"
#include "sim/program/axes.h"

namespace simgrad::sim::plan {
namespace {

// Neighbouring axes that every view walks as one.
struct Loops {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [view][loop]
};

Loops LoopsOver(const Shape& shape, const std::vector<View>& views) {
  Loops loops;
  loops.strides.resize(views.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = !loops.extents.empty();
    for (size_t v = 0; v < views.size() && joins; ++v) {
      if (views[v].all != kNoRegister) continue;
      joins = loops.strides[v].back() == views[v].strides[axis] * shape[axis];
    }
    if (joins) {
      loops.extents.back() *= shape[axis];
    } else {
      loops.extents.push_back(shape[axis]);
      for (std::vector<int64_t>& strides : loops.strides) strides.push_back(0);
    }
    for (size_t v = 0; v < views.size(); ++v) {
      if (views[v].all == kNoRegister) loops.strides[v].back() = views[v].strides[axis];
    }
  }
  return loops;
}

}  // namespace

std::vector<Statement> StatementWriter::Inside(const std::function<void()>& body) {
  std::vector<Statement> inside;
  std::vector<Statement>* const around = std::exchange(block_, &inside);
  body();
  block_ = around;
  return inside;
}

Register StatementWriter::Computed(Carrier carrier, Statement statement) {
  statement.result = function_.AddRegister(carrier);
  return Emit(std::move(statement)).result;
}

void StatementWriter::First(const std::function<void()>& body) {
  std::vector<Statement> first = Inside(body);
  function_.statements.insert(function_.statements.begin(), std::move_iterator(first.begin()),
                              std::move_iterator(first.end()));
}

// ---- numbers ----

Register StatementWriter::Call(std::string function, Carrier carrier,
                               std::vector<Register> operands, std::string comment) {
  return Computed(carrier, {.code = Code::kCall,
                            .operands = std::move(operands),
                            .function = std::move(function),
                            .comment = std::move(comment)});
}

Register StatementWriter::Constant(Carrier carrier, int64_t number) {
  return Computed(carrier, {.code = Code::kConstant, .number = number});
}

Register StatementWriter::Integer(Carrier carrier, int64_t number) {
  plan_.integers.push_back(number);
  return Computed(
      carrier, {.code = Code::kInteger, .number = static_cast<int64_t>(plan_.integers.size()) - 1});
}

Register StatementWriter::Number(double number, Carrier carrier) {
  plan_.numbers.push_back(number);
  return Computed(
      carrier, {.code = Code::kNumber, .number = static_cast<int64_t>(plan_.numbers.size()) - 1});
}

// Reals stand in the table of numbers, integers in that of integers.
Register StatementWriter::NumberLike(double number, const Value& value, std::string comment) {
  const Carrier carrier = CarrierOf(value);
  Register result = kNoRegister;
  if (value.type.element != ElementType::kReal) {
    result = Integer(carrier, static_cast<int64_t>(number));
  } else {
    result = Number(precision::RoundTo(*value.format, number), carrier);
    known_[result] = plan_.numbers.back();
  }
  Last().comment = std::move(comment);
  return result;
}

const double* StatementWriter::Known(Register r) const {
  const auto known = known_.find(r);
  return known == known_.end() ? nullptr : &known->second;
}

Register StatementWriter::Wide(Register real) {
  return TypeOf(real) == Carrier::kF32 ? Call("widen_f32", Carrier::kF64, {real}) : real;
}

Register StatementWriter::Flattened(Register around, Register count, Register at) {
  if (around == kNoRegister) return at;
  const Register before = Call("mul_i64", Carrier::kI64, {around, count});
  return Call("add_i64", Carrier::kI64, {before, at});
}

Register StatementWriter::ElementNumber(const Index& index, int64_t count) {
  Register at = kNoRegister;
  for (const auto& [counter, stride] : index.terms) {
    Register part = counter;
    if (stride != 1) {
      part = Call("mul_i64", Carrier::kI64, {counter, Constant(Carrier::kI64, stride)});
    }
    at = at == kNoRegister ? part : Call("add_i64", Carrier::kI64, {at, part});
  }
  if (at == kNoRegister) at = Constant(Carrier::kI64, 0);
  if (around_.element == kNoRegister) return at;
  return Flattened(around_.element, Constant(Carrier::kI64, count), at);
}

// ---- memory ----

View StatementWriter::Whole(Buffer buffer, Shape shape) {
  const Carrier carrier = buffer.carrier;
  buffer.count = ElementCount(shape);
  std::vector<int64_t> strides = StridesOf(shape);
  return {carrier, std::move(shape),  kNoRegister, function_.AddBuffer(std::move(buffer)),
          {},      std::move(strides)};
}

View StatementWriter::Field(int32_t field, const Shape& shape, const std::string& name) {
  const Carrier carrier = plan_.fields[static_cast<size_t>(field)].carrier;
  return Whole({.kind = BufferKind::kField, .carrier = carrier, .number = field, .name = name},
               shape);
}

View StatementWriter::Local(Carrier carrier, Shape shape, std::string name) {
  View local = Whole({.kind = BufferKind::kLocal, .carrier = carrier, .name = std::move(name)},
                     std::move(shape));
  Emit({.code = Code::kDeclare, .buffer = local.buffer});
  return local;
}

View StatementWriter::SharedLocal(std::string name) {
  View local = Local(Carrier::kI64, {}, std::move(name));
  function_.buffers.back().shared = true;
  return local;
}

bool StatementWriter::IsLocal(const View& view) const {
  return view.buffer != kNoBuffer &&
         function_.buffers[static_cast<size_t>(view.buffer)].kind == BufferKind::kLocal;
}

Register StatementWriter::Load(const View& view, const Index& index) {
  if (view.all != kNoRegister) return view.all;
  return Computed(view.carrier, {.code = Code::kLoad, .buffer = view.buffer, .index = index});
}

void StatementWriter::Store(const View& view, const Index& index, Register value) {
  Emit({.code = Code::kStore, .operands = {value}, .buffer = view.buffer, .index = index});
}

void StatementWriter::Copy(const View& to, const View& from) {
  EachElement(to.shape, {to, from}, [&](const Read& read, const Places& place) {
    const Register value = read(1);
    Store(to, place(0), value);
  });
}

void StatementWriter::CopyAtOnce(const std::vector<View>& to, const std::vector<View>& from) {
  // A source that another copy overwrites is read first.
  std::unordered_set<BufferId> overwritten;
  for (const View& target : to) overwritten.insert(target.buffer);
  std::vector<View> sources = from;
  std::vector<bool> is_same(to.size());
  for (size_t k = 0; k < from.size(); ++k) {
    const View& source = from[k];
    if (source.buffer == kNoBuffer) continue;
    is_same[k] = source.buffer == to[k].buffer && source.start == to[k].start &&
                 source.strides == to[k].strides;
    if (is_same[k] || !overwritten.contains(source.buffer)) continue;
    if (ElementCount(source.shape) == 1) {
      sources[k] = View::Splat(source.carrier, source.shape, One(source));
    } else {
      sources[k] = Local(source.carrier, source.shape, "");
      Copy(sources[k], source);
    }
  }
  for (size_t k = 0; k < to.size(); ++k) {
    if (!is_same[k]) Copy(to[k], sources[k]);
  }
}

View StatementWriter::ContiguousOf(const View& view) {
  if (view.all != kNoRegister || view.strides == StridesOf(view.shape)) return view;
  const View copy = Local(view.carrier, view.shape, "");
  Copy(copy, view);
  return copy;
}

View StatementWriter::Reshaped(const View& view, Shape shape) {
  View reshaped = ContiguousOf(view);
  if (view.all == kNoRegister) reshaped.strides = StridesOf(shape);
  reshaped.shape = std::move(shape);
  return reshaped;
}

// ---- blocks ----

void StatementWriter::EachElement(const Shape& shape, const std::vector<View>& views,
                                  const std::function<void(const Read&, const Places&)>& body) {
  const Loops loops = LoopsOver(shape, views);
  std::vector<Register> counters;
  const Places place = [&](size_t k) {
    Index index = views[k].start;
    for (size_t depth = 0; depth < counters.size(); ++depth) {
      const int64_t stride = loops.strides[k][depth];
      if (stride != 0) index.terms.emplace_back(counters[depth], stride);
    }
    return index;
  };
  const Read read = [&](size_t k) {
    return views[k].all != kNoRegister ? views[k].all : Load(views[k], place(k));
  };
  const std::function<void(size_t)> nest = [&](size_t depth) {
    if (depth == loops.extents.size()) return body(read, place);
    Each(loops.extents[depth], true, [&](Register counter) {
      counters.push_back(counter);
      nest(depth + 1);
      counters.pop_back();
    });
  };
  nest(0);
}

void StatementWriter::Each(int64_t extent, bool parallel,
                           const std::function<void(Register)>& body) {
  if (extent == 0) return;
  const Register counter = function_.AddRegister(Carrier::kI64);
  std::vector<Statement> inside = Inside([&] { body(counter); });
  Emit({.code = Code::kEach,
        .result = counter,
        .number = extent,
        .parallel = parallel,
        .body = std::move(inside)});
}

// As often as a register says, one after the other.
void StatementWriter::EachOf(Register extent, const std::function<void(Register)>& body) {
  Each(1, false, body);
  Last().operands = {extent};
}

Register StatementWriter::Fold(const View& line, const std::string& function, int64_t first) {
  const View total = Local(line.carrier, {}, "total");
  StoreOne(total, Constant(line.carrier, first));
  Each(line.shape[0], false, [&](Register counter) {
    Index index = line.start;
    if (line.all == kNoRegister) index.terms.emplace_back(counter, line.strides[0]);
    const Register x = Load(line, index);
    StoreOne(total, Call(function, line.carrier, {One(total), x}));
  });
  return One(total);
}

void StatementWriter::Repeat(const std::function<void()>& body) {
  Emit({.code = Code::kRepeat, .body = Inside(body)});
}

void StatementWriter::Leave(Register condition) {
  Emit({.code = Code::kLeave, .operands = {condition}});
}

void StatementWriter::If(Register condition, const std::function<void()>& body) {
  Emit({.code = Code::kIf, .operands = {condition}, .body = Inside(body)});
}

void StatementWriter::Commit(const std::function<void()>& body, Committed when) {
  Emit({.code = Code::kCommit, .before_stop = when == Committed::kAlways, .body = Inside(body)});
}

}  // namespace simgrad::sim::plan
