// A little language in which a world is written once and read twice: by the Builder, which makes
// the program under test of it, and by the witness (witness.h), which computes what must happen.
//
// Values are numbered. A real value is a vector of `width` numbers or, with width 0, a scalar.
// Nothing here knows of the project's representation, operations or arithmetic: names are text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "precision/format.h"
#include "precision/policy.h"
#include "sim/program/program.h"

namespace simgrad::nonfinite {

using precision::Format;
using precision::Overflow;
using precision::Role;

// The inputs of every recipe; those that no line reads are not used.
inline constexpr int kX = 0;          // state [n]
inline constexpr int kW = 1;          // state [n]
inline constexpr int kZ = 2;          // state [n]: gathers what is planted in the adjoint
inline constexpr int kK = 3;          // param [n]
inline constexpr int kC = 4;          // control [n], per step
inline constexpr int kTrigger = 5;    // data [n], per step: says where the plant goes off
inline constexpr int kWeight = 6;     // data [n], per step: what objectives multiply by
inline constexpr int kLimit = 7;      // data [n]: how often a loop per element runs
inline constexpr int kLimitAll = 8;   // data []: how often a loop per instance runs
inline constexpr int kTerminalZ = 9;  // z[T], in the terminal cost
inline constexpr int kInputs = 9;

// One statement. `what` is the name of an operation as certificates show it, or "total" for a sum
// over everything, "for", "while", "event", "integer" and "real" for conversions.
struct Line {
  std::string what;
  std::vector<int> in;
  std::vector<int> out;
  Role role = Role::kDynamics;
  std::string site;
  std::string label;
  std::vector<double> literal;
  std::string order;                    // event: "lt" or "gt"
  Format format = Format::kF32;         // cast
  Overflow overflow = Overflow::kIeee;  // cast
  int64_t start = 0;                    // slice
  int64_t count = 0;                    // for, while: cap
  bool per_element = false;             // while
  int carried = 0;                      // while: the rest of `in` is mapped
  // Loops. A for: args are the index, then carried; a while: carried, then mapped. The test yields
  // lhs and rhs; the loop stops where lhs < rhs.
  std::vector<int> test_args, body_args, test_yields, body_yields;
  std::vector<Line> test, body;
};

struct Recipe {
  int64_t n = 1;               // elements
  std::vector<int64_t> width;  // by value
  std::vector<bool> integer;   // by value: an i32
  std::vector<Line> step;
  int next[3] = {kX, kW, kZ};  // of x, w, z
  int exported = -1;           // a value of the step that the stage cost reads
  std::vector<Line> stage;     // role objective; empty: none
  int stage_cost = -1;
  std::vector<Line> terminal;  // reads kTerminalZ and inputs; empty: none
  int terminal_cost = -1;
  bool sends_final = false;       // the caller sends a cotangent of z[T]
  bool sends_trajectory = false;  // ... of z[0..T]
};

// Writes a recipe, line by line.
class Script {
 public:
  explicit Script(int64_t n);

  // Context of the lines that follow; every line gets a label of its own: prefix, number.
  Role role = Role::kDynamics;
  std::string site;
  std::string label;  // of the next line only

  int Do(const std::string& what, std::vector<int> in);
  int Literal(double value);              // as wide as values are here
  int Scalar(double value);               // []
  int Array(std::vector<double> values);  // [n]
  int Product(int x);                     // of all elements: []
  int Total(int x);                       // sum over all elements: []
  int Spread(int scalar);                 // [] to [n]
  // Linear algebra: of two vectors as a row and a column, of a vector as a norm (a scalar); of vectors as matrices
  // of one element each; of four numbers as one matrix.
  int Linear(const std::string& what, std::vector<int> in, int64_t width);
  int Part(int x, int64_t start, int64_t count);
  int Cast(int x, Format format, Overflow overflow = Overflow::kIeee);
  int Event(const std::string& name, int a, const std::string& order, int b);
  int Select(int condition, int a, int b);
  int Integer(int x);
  int Real(int x);

  std::vector<int> For(
      int64_t count, std::vector<int> carried,
      const std::function<std::vector<int>(int index, const std::vector<int>&)>& body);
  // Runs `limit` times at most `cap` times; carried[0] counts. `mapped` only where per element.
  std::vector<int> While(
      const std::string& name, int64_t cap, bool per_element, int limit, std::vector<int> carried,
      std::vector<int> mapped,
      const std::function<std::vector<int>(const std::vector<int>& carried,
                                           const std::vector<int>& mapped)>& body,
      const std::function<int(int, const std::vector<int>&, const std::vector<int>&)>& lhs =
          nullptr);

  void BeginStage();
  void BeginTerminal();
  Recipe& recipe() { return recipe_; }

 private:
  int NewValue(int64_t width, bool integer = false);
  int Push(Line line, int64_t width, bool integer = false);
  int64_t WidthOf(int x) const { return recipe_.width[static_cast<size_t>(x)]; }

  Recipe recipe_;
  std::vector<std::vector<Line>*> stack_;
  bool scalar_ = false;  // inside a loop per element values are scalars
  int lines_ = 0;
};

sim::Program ToProgram(const Recipe& recipe);

}  // namespace simgrad::nonfinite
