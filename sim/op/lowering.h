// The interface with which an entry's `lower` is written: one operation as loops over elements.
//
// Maths: a rule gives the bits of the entry's evaluation. It computes only with the scalar
//   functions of sim/backend/scalars.h, which it calls by name.
// A result that only rearranges its operand is a view of it and costs nothing; any other is written
// element by element. A place computed from data must be within the memory for every data: Clamped.
// Errors: none; the program has been verified. Cost: linear in what is written. Threads: pure.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/carrier.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class Lowering {
 public:
  using Number = int32_t;  // one number of a turn
  static constexpr Number kNone = -1;
  // An operand, the result, or an array of the rule's own.
  struct Memory {
    int32_t id = -1;
    Carrier carrier = Carrier::kF32;
    Shape shape;
  };
  // A place on one axis: base + the sum of stride * counter + a number computed from data.
  struct Place {
    int64_t base = 0;
    std::vector<std::pair<Number, int64_t>> counters;
    Number data = kNone;                         // an i64
    Place(int64_t number = 0) : base(number) {}  // NOLINT: rules read better
    static Place Of(Number counter, int64_t stride = 1) {
      Place place;
      place.counters.emplace_back(counter, stride);
      return place;
    }
    static Place At(Number data) {
      Place place;
      place.data = data;
      return place;
    }
    Place operator+(const Place& other) const;  // at most one is computed from data
  };
  using Places = std::vector<Place>;  // by axis
  // How a view takes an axis of its operand: the axis of the result (-1: none), where it begins,
  // and how far neighbours lie apart.
  struct Along {
    int64_t axis = -1;
    int64_t start = 0;
    int64_t step = 1;
  };

  virtual ~Lowering() = default;

  const Program& program() const { return program_; }
  const Op& op() const { return op_; }
  const Attributes& attributes() const { return op_.attributes; }
  const Value& OperandValue(size_t operand) const { return program_[op_.operands[operand]]; }
  const Value& ResultValue() const { return program_[op_.results[0]]; }

  // ---- results that are views ----
  virtual void Rearrange(const std::vector<Along>& axes) = 0;  // by axis of the operand
  virtual void Reshape() = 0;

  // ---- memory ----
  virtual Memory Operand(size_t operand) = 0;
  virtual Memory Result() = 0;  // once
  virtual Memory Local(Carrier carrier, Shape shape, const std::string& name) = 0;
  virtual Memory Table(const std::vector<int64_t>& numbers) = 0;  // of i64
  // The part of a memory that a window takes, by axis.
  virtual Memory Window(const Memory& memory, const Shape& shape,
                        const std::vector<Along>& axes) = 0;
  virtual Memory Split(const Memory& memory, const Shape& shape) = 0;  // row-major in another shape
  Memory Flat(const Memory& memory) { return Split(memory, {ElementCount(memory.shape)}); }
  virtual void Copy(const Memory& to, const Memory& from) = 0;
  virtual void Fill(const Memory& to, Number number) = 0;
  virtual Number Load(const Memory& from, const Places& at) = 0;
  virtual void Store(const Memory& to, const Places& at, Number number) = 0;
  Number Load(const Memory& one) { return Load(one, {}); }
  void Store(const Memory& one, Number number) { Store(one, Places{}, number); }

  // ---- numbers ----
  virtual Number Call(const std::string& function, Carrier carrier,
                      std::vector<Number> operands) = 0;
  virtual Number Integer(Carrier carrier,
                         int64_t number) = 0;  // part of the structure; a real one too
  virtual Number Real(double number, const Value& like) = 0;  // stands in a table

  // The flattened iteration of the loops around, and the flattened element of mapped axes; i64.
  virtual Number Iteration() = 0;
  virtual Number MappedElement() = 0;

  // ---- loops ----
  // `parallel`: no turn reads or writes what another one writes.
  virtual void Each(int64_t extent, bool parallel, const std::function<void(Number)>& body) = 0;
  virtual void EachTo(Number extent, const std::function<void(Number)>& body) = 0;  // in order
  // Side by side, over every element of a shape.
  void EachOf(const Shape& shape, const std::function<void(const Places&)>& body);

  // The sum of a line, numbers of format `of`, in the order and accumulator of the operation and the
  // result's format.
  virtual Number Sum(const Memory& line, Format of) = 0;

  // One rule computes for another: the first rule of an operand in a region keeps a memory under a
  // name, and later rules of that operand in that region recall it.
  virtual bool Recall(const std::string& name, Memory* memory) = 0;
  virtual void Keep(const std::string& name, const Memory& memory) = 0;
  virtual void GiveMemory(const Memory& memory) = 0;  // as the result, instead of Result

  // An index of data as a place within [0, extent); extent > 0.
  Number Clamped(Number index, Carrier carrier, int64_t extent);
  Number Select(Number condition, Number a, Number b, Carrier carrier);
  Number ToI64(Number integer, Carrier carrier);
  static std::string NameOf(Carrier carrier) { return std::string(CarrierName(carrier)); }

 protected:
  Lowering(const Program& program, const Op& op) : program_(program), op_(op) {}

 private:
  const Program& program_;
  const Op& op_;
};

// "mul_f32": a scalar function on a value of this type, by its format or carrier.
std::string FunctionOn(const std::string& name, const Value& value);

}  // namespace simgrad::sim
