// The oracle: computes one instance of a recipe with exact arithmetic, forward and in reverse, and
// says where the first non-finite value is born.
//
// Maths: docs/numerics.md sections 2, 3, 6 and 7, written a second time: values are nodes of a
//   graph in order of execution, and the reverse walks that list backwards. No operation, loop,
//   rounding or adjoint rule of the project is used; only plain data types are shared.
// Cost: slow. Threads: one witness, one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/diagnostics/diagnostics.h"
#include "tests/sim/nonfinite/exact_rounding.h"
#include "tests/sim/nonfinite/recipe.h"

namespace simgrad::nonfinite {

// What is sent for one instance, by input number; rows by step where the input varies.
struct Sent {
  std::vector<std::vector<double>> input[kInputs];
  std::vector<std::vector<double>> final_cotangent;       // of z: one row, or none
  std::vector<std::vector<double>> trajectory_cotangent;  // of z: T + 1 rows, or none
};

struct Testimony {
  bool ok = true;
  sim::BirthCertificate birth;              // without instance
  std::vector<std::vector<double>> states;  // x, w, z as they end
};

// Why the operation of that name gave a non-finite result, from the operands that a certificate shows.
sim::NonFiniteClass ClassOf(const std::string& what, const std::vector<double>& operands,
                            double result);

class Witness {
 public:
  Witness(const Recipe& recipe, const precision::Policy& policy, const Sent& sent, int64_t steps)
      : recipe_(recipe), policy_(policy), sent_(sent), steps_(steps) {}

  Testimony Testify(bool gradient);

  // By the word of a line (recipe.h): whether no derivative passes through it, and whether the
  // witness has its rule.
  static bool Blocks(const std::string& what);
  static bool Reverses(const std::string& what);

 private:
  // Where something is executed.
  struct Place {
    int64_t iteration = 0;
    int64_t element = 0;
    std::string loop;
  };
  // A cotangent, present where the mask says; `partial`: the text knows it may be absent.
  struct Slot {
    std::vector<double> v;
    std::vector<char> mask;
    bool partial = false;
    Format format = Format::kF64;
  };
  struct Node;
  // Numbers that an adjoint operation reads.
  struct Read {
    std::vector<double> v;
    Format format = Format::kF64;
    bool exact = false;          // a literal or an input: rounded where it is used
    const Node* tape = nullptr;  // of a tape: what it holds
    std::string label = {};      // of its first reader
  };
  struct Node {
    std::string what;
    const Line* line = nullptr;
    Role role = Role::kState;
    std::string label;
    std::vector<double> v;
    std::vector<std::vector<double>> read;  // operands as the operation saw them
    Format format = Format::kF64;
    bool plain = false;  // integers and truth values
    bool exact = false;  // a literal, or an input that is no state
    bool active = false;
    int input = -1;        // of an input that is no state
    int64_t element = -1;  // of an element taken out of a vector
    Place place;
    std::vector<Node*> in;
    std::map<std::pair<int, int>, std::vector<double>> casts;  // by format and role
    std::optional<Slot> slot;
    std::optional<Read> taped;
  };
  struct Context {
    Role role = Role::kAdjoint;
    std::string label;
    Place place;
    std::vector<char> where;
  };
  struct Scene {
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Node*> env;
    std::map<Node*, Node*> in_objective;
    Node* state[3] = {};
    Node* next[3] = {};
    Node* cost = nullptr;
  };

  // witness.cc
  const precision::RoleSetting& Setting(Role role) const { return policy_[role]; }
  const std::vector<double>& Row(int input, int64_t t) const;
  static bool Varies(int input) { return input == kC || input == kTrigger || input == kWeight; }
  void CheckInputs(int64_t t);
  void Enter(Scene& scene, int64_t t);
  void Forward(int64_t t);
  void Finish();
  void AddCost(Node& cost);
  Node* New(Scene& scene, const std::string& what, std::vector<Node*> in, const Place& place);
  void Run(Scene& scene, const std::vector<Line>& lines, const Place& place);
  void RunLine(Scene& scene, const Line& line, const Place& place);
  std::vector<double> Bring(Node* x, Role role, const std::string& site, const std::string& label);
  void Evaluate(Node& node, const std::vector<std::vector<double>>& in);
  // One number of linear algebra, and what a certificate shows of it.
  double Linear(const Line& line, const std::vector<std::vector<double>>& in, size_t i,
                std::vector<double>& at) const;
  Node* IntoObjective(Scene& scene, Node* x, const Line& line, const Place& place);

  void Check(const std::string& what, const std::string& label, const std::string& site, Role role,
             Format format, const Place& place, size_t i, size_t n, std::vector<double> operands,
             double result);

  // witness_loops.cc
  void RunFor(Scene& scene, const Line& line, const Place& place);
  void RunWhile(Scene& scene, const Line& line, const Place& place);
  std::vector<Node*> RunOne(Scene& scene, const Line& line, const Place& around, const Place& place,
                            std::vector<Node*> now, const std::vector<Node*>& rest);
  Node* Moved(Scene& scene, Node* from, std::vector<double> v, Format format, const Place& place);
  Node* ElementOf(Scene& scene, Node* from, const std::vector<double>& v, Format format, int64_t e,
                  const Place& place);

  // witness_reverse.cc
  void Reverse();
  void ReverseScene(Scene& scene);
  void ReverseNode(Node& node);
  class Rules;  // witness_functions.cc
  static bool HasRule(const std::string& what);
  bool ReverseFunction(Node& node, const Slot& slot, const Context& context);
  // What is no function of numbers, by its word: moves, spreads or adds up the cotangent.
  using Reversal = void (Witness::*)(Node& node, const Slot& slot, const Context& context);
  static const std::map<std::string, Reversal>& Reversals();
  static Slot Absent(const Node& node, const Slot& slot);  // of the first operand
  void Pass(Node& node, const Slot& slot, const Context& context);
  void Hand(Node& node, const Slot& slot, const Context& context);
  void PutBack(Node& node, const Slot& slot, const Context& context);
  void Widen(Node& node, const Slot& slot, const Context& context);
  void Spread(Node& node, const Slot& slot, const Context& context);
  void AddUp(Node& node, const Slot& slot, const Context& context);
  void ReverseProduct(Node& node, const Slot& slot, const Context& context);
  void Choice(Node& node, const Slot& slot, const std::vector<char>& first_taken, size_t first,
              size_t second, const Context& context);
  void Contribute(Node* to, Slot slot, const Context& context);
  void Accumulate(Node& to, const Slot& slot, const Context& context);
  Slot Merged(const Slot& first, const Slot& second, Role role, const Context& context);
  Read Tape(Node& node, const Context& context);
  Read Do(const std::string& what, const std::vector<Read>& in, const Context& context);
  std::vector<double> BringRead(const Read& x, Role role, const std::vector<char>& where,
                                const Context& context);
  std::optional<Slot> LeaveRegion(const std::optional<Slot>& slot);
  Slot SentSlot(const std::vector<double>& row) const;

  const Recipe& recipe_;
  const precision::Policy& policy_;
  const Sent& sent_;
  int64_t steps_;
  std::vector<Scene> scenes_;  // by step; the last is the terminal cost
  std::vector<std::vector<double>> states_;
  double cost_ = 0.0;
  std::map<std::pair<int, int64_t>, std::vector<double>> gradients_;  // by input and step
  Testimony testimony_;
  sim::Phase phase_ = sim::Phase::kForward;
  int64_t now_ = 0;
};

}  // namespace simgrad::nonfinite
