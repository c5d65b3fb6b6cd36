// Cases in which one value of one instance is made non-finite at a place known by construction.
//
// Maths: the data input `trigger` is compared with the number of the iteration (outside loops with
//   0), and u = |number - trigger| is 0 in exactly one execution of one element and a whole number
//   from 1 to 40 in all others. Every plant is an operation that is well behaved for u >= 1 and fails
//   at u = 0.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/equality/random.h"
#include "tests/sim/nonfinite/recipe.h"
#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {

using sim::equality::Random;

struct Planted {
  std::string kind;
  Recipe recipe;
  precision::PolicySpec policy;
  int64_t steps = 1;
  int64_t row = 0;         // of the instance that fails
  std::vector<Sent> sent;  // by instance
  bool gradient = false;
  bool finite_inputs = true;
  bool exact_states = true;  // false: f64 functions, which may be an ulp from the witness's
  // What must come out, known before anything runs.
  sim::Phase phase = sim::Phase::kForward;
  sim::NonFiniteClass non_finite_class = sim::NonFiniteClass::kInvalid;
  std::string operation;
  std::string label;
  int64_t step = 0;
  int64_t element = 0;
  int64_t iteration = 0;
};

// Where in the step a plant stands.
enum class Where { kTop, kFor, kForFor, kWhile, kForWhile, kWhileFor, kPerElement, kPerElementFor };
inline constexpr int kWheres = 8;

// A case being made: formats, inputs that are harmless, and the frame of a step around a plant.
class Plot {
 public:
  Plot(Random& random, const std::string& preset, int64_t least_elements);

  Random& random;
  Script script;
  Planted planted;
  int64_t n;
  int64_t instances;
  Where where = Where::kTop;

  Format base() const { return base_; }
  double largest() const { return RangeOf(base_).largest; }
  int top_exponent() const {
    return base_ == Format::kF64 ? 1023 : base_ == Format::kF16 ? 15 : 127;
  }
  double smallest() const;
  bool per_element() const { return where == Where::kPerElement || where == Where::kPerElementFor; }
  Sent& mine() { return planted.sent[static_cast<size_t>(planted.row)]; }
  size_t hit() const { return static_cast<size_t>(planted.element); }
  double& At(int input, int64_t t) { return mine().input[input][static_cast<size_t>(t)][hit()]; }
  void SetRole(const std::string& role, Format format);

  // A bounded value made of states, param and control by a few random operations.
  int Filler();
  int Bounded(int x);   // x / (1 + |x|)
  int Positive(int u);  // 1 at u = 0, else 0
  int Pulse(int u, double height);
  // Runs `plant` at `where` and adds what it gives to `sum`; picks step, element and iteration.
  using Emit = std::function<int(int u, int a)>;
  int Sow(int a, int sum, const Emit& plant);
  // Makes the failing instance leave the loop just before the iteration chosen by Sow, while the
  // others stay to the cap.
  void LeaveBefore();
  // Sets the trigger of step t, for the iteration chosen by Sow.
  void Fire(int64_t t) { At(kTrigger, t) = trigger_; }

  // Ends the step, writes the objective total(z * weight), and hands the case over.
  void Close(int x, int z);

  // The cotangent of z at every step is `scale` times weight, both powers of two.
  double scale = 1.0;
  int cotangent_exponent() const;

 private:
  void FillInputs();
  int UAt(int number, int trigger);
  void ChooseIteration(int64_t inner_radix, bool outer_for, bool inner_while);
  int SowInLoop(int a, int sum, const Emit& plant);

  Format base_;
  double trigger_ = 0.0;
  double harmless_ = 1.0;
  double leave_ = 0.0;  // number of that iteration in its own loop
};

// In what the plants of both phases fail, and how.
struct Failure {
  std::string operation;
  sim::NonFiniteClass non_finite_class;
};
std::vector<Failure> ForwardFailures();
std::vector<Failure> AdjointFailures();

// One case of the given phase; `number` varies the kind.
Planted PlantForward(Random& random, int number);
Planted PlantInput(Random& random, int number);
Planted PlantAdjoint(Random& random, int number);

}  // namespace simgrad::nonfinite
