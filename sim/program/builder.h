// Writes programs: expressions in C++ that append operations to the region being built.
//
//   Builder b("decay");
//   Var x = b.State("x", {}), k = b.Param("k", {}, 1.0);
//   b.SetNext({x - k * x});
//   absl::StatusOr<Program> program = b.Finish();
//
// Operations take the current role, site and source label (RoleScope, SiteScope, Label). A scalar
// meets an array by an explicit broadcast that the builder inserts. Mistakes (shapes, types) are
// kept and returned by Finish, which verifies the whole program. Threads: one builder, one thread.
// Vars are valid as long as their builder.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class Builder;

// A value being built.
struct Var {
  Builder* builder = nullptr;
  ValueId id = ValueId::kNone;
  Shape shape() const;
  bool valid() const { return builder != nullptr; }
};

struct WhileOptions {
  std::string site;
  int64_t max_iter = 1;
  Comparison comparison = Comparison::kLt;
  CapOrder cap_order = CapOrder::kTestFirst;
  int64_t elements = 0;
};

struct LoopTest {
  Var lhs;
  Var rhs;
  std::optional<Var> entry;
  std::vector<Var> exports;
};

// The test of a loop with a predicate.
struct LoopPredicate {
  Var stop;
  std::vector<Var> exports;
};

struct LoopResult {
  std::vector<Var> carried;
  std::vector<Var> exports;
  Var iterations;
};

using Vars = std::vector<Var>;

class Builder {
 public:
  explicit Builder(std::string world_name);

  // Inputs.
  Var State(std::string name, Shape shape, std::string description = "",
            ElementType element = ElementType::kReal);
  Var Param(std::string name, Shape shape, std::optional<double> default_value = {},
            std::string description = "");
  Var Weights(std::string name, Shape shape, std::optional<double> default_value = {},
              std::string description = "");
  Var Control(std::string name, Shape shape, std::optional<double> default_value = {},
              std::string description = "");
  Var Data(std::string name, Shape shape, std::optional<double> default_value = {},
           std::string description = "");
  Var Config(std::string name, double value);
  Var StepIndex();

  // Context of the operations that follow.
  Role role() const { return role_; }
  const std::string& site() const { return site_; }
  void Label(std::string label) { label_ = std::move(label); }

  // One operation with one result; scalars are broadcast for elementwise codes.
  Var Apply(OpCode code, Vars operands);
  Var Literal(double value, Shape shape = {});
  Var LiteralArray(std::vector<double> values, Shape shape);
  Var Integer(int64_t value, ElementType type = ElementType::kI32, Shape shape = {});
  Var IntegerArray(std::vector<double> values, Shape shape);  // of i32
  Var Broadcast(Var x, Shape shape, std::vector<int64_t> dims);
  Var Reshape(Var x, Shape shape);
  Var Slice(Var x, std::vector<int64_t> start, Shape shape);
  Var Concat(Vars parts, int64_t axis);
  // An operation on these operands as they are, with its attributes.
  Var Do(OpCode code, const Vars& operands, Attributes attributes = {});
  Var Iota(Shape shape, int64_t axis, ElementType type = ElementType::kI32);
  // Over the given axes; empty: over all.
  Var Reduce(OpCode code, Var x, std::vector<int64_t> axes = {});
  Var Cumsum(Var x, int64_t axis, bool reverse = false);
  Var Mean(Var x);  // over all elements: sum / n
  Var Cast(Var x, std::optional<Format> format = {}, std::optional<Overflow> overflow = {},
           std::optional<CastRounding> rounding = {});
  Var Convert(Var x, ElementType type);
  Var Event(std::string site, Var a, Comparison comparison, Var b, std::optional<Var> guard = {});
  // `chosen`, because a is above b.
  Var Choice(std::string site, Var chosen, Var a, Var b);
  // `trial` where (a comparison b), else `current`.
  Var Accept(std::string site, Var a, Comparison comparison, Var b, Var trial, Var current);
  LoopResult While(const WhileOptions& options, Vars carried, Vars mapped,
                   const std::function<LoopTest(const Vars& carried, const Vars& mapped)>& test,
                   const std::function<Vars(const Vars& carried, const Vars& exports,
                                            const Vars& mapped)>& body);
  // Stops where the predicate holds.
  LoopResult While(
      const WhileOptions& options, Vars carried, Vars mapped,
      const std::function<LoopPredicate(const Vars& carried, const Vars& mapped)>& test,
      const std::function<Vars(const Vars& carried, const Vars& exports, const Vars& mapped)>&
          body);
  // One of the regions, by number; a bool chooses the second where it holds.
  Vars Cond(Var choice, Vars args,
            const std::vector<std::function<Vars(const Vars& args)>>& regions);
  // Returns what `body` gives for the arguments. A `vjp` takes arguments, results and cotangents of
  // real results; the cotangents of real arguments that it gives take the place of the body's
  // derivative, and neither sees values around it.
  Vars Call(Vars args, const std::function<Vars(const Vars& args)>& body,
            const std::function<Vars(const Vars& args, const Vars& results,
                                     const Vars& cotangents)>& vjp = nullptr);
  void Halt(std::string name, Var condition, bool error = false);
  Vars For(int64_t count, Vars carried,
           const std::function<Vars(Var index, const Vars& carried)>& body);
  // A for over the leading axis of `scanned`, with `reverse` from its last element; gives the
  // carried values, then what the body returns behind them, stacked along a leading axis.
  Vars Scan(int64_t count, Vars carried, Vars scanned, bool reverse,
            const std::function<Vars(Var index, const Vars& carried, const Vars& scanned)>& body);
  Var Named(Var x, std::string name);

  // Results.
  void SetInitial(const std::function<Vars()>& states);
  void SetNext(Vars next_states);
  void Export(std::string name, Var value, bool observable = true);
  // Either may be null. Terminal: states of z[T], exports of the last step.
  void AddObjective(std::string name, const std::function<Var()>& stage,
                    const std::function<Var(const Vars& states, const Vars& exports)>& terminal);

  absl::StatusOr<Program> Finish();
  Program& program() { return program_; }

 private:
  friend class RoleScope;
  friend class SiteScope;
  Var AddInput(InputKind kind, std::string name, Type type, std::optional<double> default_value,
               std::string description);
  Var Emit(Op op);  // of the type that its entry says
  Var Emit(Op op, Type type);
  Op LoopOp(OpCode code, size_t carried) const;
  // The yields of the test of a while.
  struct Tested {
    Vars tested;
    Vars exports;
    bool is_predicate = false;
  };
  LoopResult WhileTested(const WhileOptions& options, Vars carried, Vars mapped,
                         const std::function<Tested(const Vars&, const Vars&)>& test,
                         const std::function<Vars(const Vars&, const Vars&, const Vars&)>& body);
  Var WidenTo(Var x, const Shape& shape);
  Var NewArg(Region& region, const Type& type, std::string name);
  void Fail(std::string message);
  Type TypeOf(Var x) const;
  Shape WithAxis(int64_t n, const Shape& shape) const;

  Program program_;
  std::vector<Region*> stack_;
  Role role_ = Role::kDynamics;
  std::string site_;
  std::string label_;
  std::string error_;
};

// Sets the role of operations while it lives.
class RoleScope {
 public:
  RoleScope(Builder& builder, Role role) : builder_(builder), before_(builder.role_) {
    builder.role_ = role;
  }
  ~RoleScope() { builder_.role_ = before_; }
  RoleScope(const RoleScope&) = delete;
  RoleScope& operator=(const RoleScope&) = delete;

 private:
  Builder& builder_;
  Role before_;
};

// Sets the site on whose behalf operations are computed while it lives.
class SiteScope {
 public:
  SiteScope(Builder& builder, std::string site) : builder_(builder), before_(builder.site_) {
    builder.site_ = std::move(site);
  }
  ~SiteScope() { builder_.site_ = before_; }
  SiteScope(const SiteScope&) = delete;
  SiteScope& operator=(const SiteScope&) = delete;

 private:
  Builder& builder_;
  std::string before_;
};

Var operator+(Var a, Var b);
Var operator-(Var a, Var b);
Var operator*(Var a, Var b);
Var operator/(Var a, Var b);
Var operator-(Var a);
Var operator*(double a, Var b);
Var Max(Var a, Var b);
Var Min(Var a, Var b);
Var Relu(Var x);  // max(x, 0)
Var Sqrt(Var x);
Var Select(Var condition, Var a, Var b);
Var And(Var a, Var b);
Var Not(Var a);

}  // namespace simgrad::sim
