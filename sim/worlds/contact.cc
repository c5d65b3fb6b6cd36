#include "sim/worlds/contact.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/worlds/config_reader.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kMaxElements = 1 << 20;
constexpr int64_t kMaxIterations = 100'000;

std::vector<ConfigField> ProjectionConfig() {
  return {
      {"elements", ConfigType::kInteger, 1.0, {}, "bodies per instance, 1 to 1048576"},
      {"tol",
       ConfigType::kNumber,
       1e-4,
       {},
       "projection: stop where the summed penetration is below"},
      {"tol_enter",
       ConfigType::kNumber,
       std::nullopt,
       {},
       "projection: enter the loop only from this summed penetration on, >= tol; unset: always"},
      {"max_iter",
       ConfigType::kInteger,
       25.0,
       {},
       "projection: cap of the iterations, 1 to 100000"},
      {"scope",
       ConfigType::kWord,
       std::string("instance"),
       {"instance", "element"},
       "projection: who stops alone"},
  };
}

absl::Status InRange(const ConfigReader& config, const std::string& name, int64_t low,
                     int64_t high) {
  const double x = config.Number(name);
  if (x >= static_cast<double>(low) && x <= static_cast<double>(high)) return absl::OkStatus();
  return FieldError("config." + name, absl::StrCat(x, " is not in ", low, " to ", high));
}

absl::Status CheckProjection(const ConfigReader& config) {
  if (absl::Status s = InRange(config, "elements", 1, kMaxElements); !s.ok()) return s;
  if (absl::Status s = InRange(config, "max_iter", 1, kMaxIterations); !s.ok()) return s;
  const double tol = config.Number("tol");
  if (tol <= 0) return FieldError("config.tol", absl::StrCat(tol, " is not above 0"));
  if (!config.Has("tol_enter") || config.Number("tol_enter") >= tol) return absl::OkStatus();
  return FieldError("config.tol_enter",
                    absl::StrCat(config.Number("tol_enter"), " is below tol, ", tol));
}

struct Projected {
  Var y;
  Var penetration;
};

// y <- y + (alpha k) relu(-y) until sum relu(-y) < tol; NUMERICS section 9.
Projected Project(Builder& b, Var y, Var alpha, Var k, const ConfigReader& config,
                  CapOrder cap_order) {
  RoleScope role(b, Role::kSolver);
  const Var tol = b.Config("tol", config.Number("tol"));
  std::optional<Var> tol_enter;
  if (config.Has("tol_enter")) tol_enter = b.Config("tol_enter", config.Number("tol_enter"));
  WhileOptions options;
  options.site = "projection";
  options.max_iter = config.Integer("max_iter");
  options.cap_order = cap_order;
  const bool per_element = config.Word("scope") == "element";
  Vars mapped;
  if (per_element) {
    options.elements = y.shape()[0];
    mapped = {b.Broadcast(alpha, y.shape(), {}), b.Broadcast(k, y.shape(), {})};
  }
  b.Label("repeat until sum(relu(-y)) < tol");
  const auto test = [&](const Vars& carried, const Vars&) {
    LoopTest tested;
    {
      RoleScope solver(b, Role::kSolver);
      SiteScope none(b, "");
      b.Label("p = relu(-y)");
      tested.exports = {b.Named(Relu(-carried[0]), "p")};
    }
    b.Label("S = sum(p)");
    tested.lhs = b.Named(b.Reduce(OpCode::kSum, tested.exports[0]), "S");
    tested.rhs = tol;
    tested.entry = tol_enter;
    return tested;
  };
  const auto body = [&](const Vars& carried, const Vars& exports, const Vars& inside) {
    b.Label("y = y + (alpha * k) * p");
    const Var gain = per_element ? inside[0] * inside[1] : alpha * k;
    return Vars{b.Named(carried[0] + gain * exports[0], "y")};
  };
  const LoopResult result = b.While(options, {y}, std::move(mapped), test, body);
  return {result.carried[0], result.exports[0]};
}

// The next y as it is stored, which is what `tracking` compares with what was observed: where role
// state is narrower than the role that computed y', the two differ.
Var Stored(Builder& b, Var y_next) {
  RoleScope role(b, Role::kState);
  b.Label("y[t + 1] = y' as it is stored");
  return b.Named(b.Cast(y_next), "y_next");
}

// Means over the elements, docs/numerics.md section 9; state y is the first state, `y_next` what is
// stored of it.
void AddObjectives(Builder& b, const Shape& shape, Var y_next, Var penetration) {
  const Var target = b.Data("target", shape, {}, "target_height: where y should end [m]");
  const Var observed = b.Data("y", shape, {}, "tracking: observed y[t + 1] at step t [m]");
  b.Export("penetration", penetration);
  b.Export("y_next", y_next, false);
  const auto squared = [&b](Var x) { return b.Mean(x * x); };
  b.Label("final_penetration: mean(p * p)");
  b.AddObjective("final_penetration", nullptr,
                 [&](const Vars&, const Vars& exports) { return squared(exports[0]); });
  b.Label("final_height: mean(y)");
  b.AddObjective("final_height", nullptr,
                 [&](const Vars& states, const Vars&) { return b.Mean(states[0]); });
  b.Label("target_height: mean((y - target) * (y - target))");
  b.AddObjective("target_height", nullptr,
                 [&](const Vars& states, const Vars&) { return squared(states[0] - target); });
  b.Label("tracking: mean((y - data.y) * (y - data.y))");
  b.AddObjective(
      "tracking", [&] { return squared(y_next - observed); }, nullptr);
}

// The ball's inputs and what every contact model computes from them.
struct Ball {
  Var y, v, u;
  Var k, g, h, restitution, damping, alpha;
  Var zero;
};

Ball BallInputs(Builder& b, const Shape& shape) {
  Ball ball;
  ball.y = b.State("y", shape, "height [m]");
  ball.v = b.State("v", shape, "velocity [m/s]");
  ball.k = b.Param("k", {}, {}, "penalty: stiffness [1/s^2]; projection: solver gain");
  ball.g = b.Param("g", {}, 9.81, "gravity [m/s^2]");
  ball.h = b.Param("h", {}, 0.01, "step size [s]");
  ball.restitution = b.Param("restitution", {}, 0.8, "speed after over speed before a bounce");
  ball.damping = b.Param("damping", {}, 0.0, "penalty: damping in contact [1/s]");
  ball.alpha = b.Param("alpha", {}, 0.5, "projection: damping of the correction");
  ball.u = b.Control("u", shape, 0.0, "acceleration [m/s^2]");
  return ball;
}

struct Stepped {
  Var y, v, penetration;
};

// C++ leaves the order of two operands open; where both append operations, they are statements
// here.
Stepped PenaltyStep(Builder& b, const Ball& ball, const ConfigReader& config, Var y_free,
                    Var v_free, Var contact) {
  Var p;
  if (config.Word("smoothing") == "softplus") {
    const Var eps = b.Config("eps", config.Number("eps"));
    b.Label("p = eps * softplus(-y_free / eps)");
    p = eps * b.Apply(OpCode::kSoftplus, {-y_free / eps});
  } else {
    b.Label("p = relu(-y_free)");
    p = Relu(-y_free);
  }
  b.Named(p, "p");
  b.Label("f = k * p - (damping * v_free where contact, else 0)");
  const Var force = ball.damping * v_free;
  const Var damped = Select(contact, force, b.Literal(0.0));
  const Var f = b.Named(ball.k * p - damped, "f");
  b.Label("v' = v_free + h * f");
  return {y_free, b.Named(v_free + ball.h * f, "v_next"), p};
}

Stepped ProjectionStep(Builder& b, const Ball& ball, const ConfigReader& config, Var y_free,
                       Var v_free, Var contact) {
  const Projected projected = Project(b, y_free, ball.alpha, ball.k, config, CapOrder::kTestFirst);
  Var y = projected.y;
  if (config.Flag("clamp")) {
    RoleScope role(b, Role::kSolver);
    b.Label("y' = relu(y)");
    y = Relu(y);
  }
  b.Label("v' = -restitution * min(v_free, 0) where contact, else v_free");
  const Var reversed = -ball.restitution;
  const Var bounced = reversed * Min(v_free, b.Literal(0.0));
  return {y, b.Named(Select(contact, bounced, v_free), "v_next"), projected.penetration};
}

// Contact at the time of impact inside the step. Where there is no contact the square root and the
// divisor get 1 instead, so that nothing non-finite is born in a branch that is not taken; and a
// ball that rests on the floor (y = v = 0, so d - v = 0) divides by 1, not by 0 (docs/adr/0008).
Stepped ImpactStep(Builder& b, const Ball& ball, Var a) {
  b.Label("y_free = y + h * v + (0.5 * a) * (h * h)");
  const Var half_a = 0.5 * a;
  const Var moved = ball.y + ball.h * ball.v;
  const Var fallen = half_a * (ball.h * ball.h);
  const Var y_free = b.Named(moved + fallen, "y_free");
  b.Label("v_free = v + h * a");
  const Var v_free = b.Named(ball.v + ball.h * a, "v_free");
  b.Label("contact: y_free < 0");
  const Var contact = b.Event("contact", y_free, Comparison::kLt, b.Literal(0.0));
  const Var one = b.Broadcast(b.Literal(1.0), ball.y.shape(), {});
  b.Label("d = sqrt(v * v - (2 * a) * y)");
  const Var squared = ball.v * ball.v;
  const Var radicand = squared - (2.0 * a) * ball.y;
  const Var d = b.Named(Sqrt(Select(contact, radicand, one)), "d");
  b.Label("tau = (2 * y) / (d - v)");
  const Var twice = 2.0 * ball.y;
  const Var gap = d - ball.v;
  const Var still = b.Event("still", gap, Comparison::kEq, b.Literal(0.0), contact);
  const Var closing = Select(And(contact, Not(still)), gap, one);
  const Var tau = b.Named(twice / closing, "tau");
  b.Label("w = restitution * d");
  const Var w = b.Named(ball.restitution * d, "w");
  b.Label("r = h - tau");
  const Var r = b.Named(ball.h - tau, "r");
  b.Label("y' = w * r + (0.5 * a) * (r * r)");
  const Var risen = w * r;
  const Var y_bounced = risen + half_a * (r * r);
  b.Label("v' = w + a * r");
  const Var v_bounced = w + a * r;
  b.Label("rest: y' < 0");
  const Var rest = b.Event("rest", y_bounced, Comparison::kLt, b.Literal(0.0), contact);
  const Var zero = b.Broadcast(b.Literal(0.0), ball.y.shape(), {});
  b.Label("y' = 0 at rest, the bounce in contact, else y_free");
  const Var y = Select(contact, Select(rest, zero, y_bounced), y_free);
  b.Label("v' = 0 at rest, the bounce in contact, else v_free");
  const Var v = Select(contact, Select(rest, zero, v_bounced), v_free);
  b.Label("p = relu(-y_free)");
  return {b.Named(y, "y_next"), b.Named(v, "v_next"), b.Named(Relu(-y_free), "p")};
}

Stepped FreeStep(Builder& b, const Ball& ball, const ConfigReader& config, Var a) {
  b.Label("v_free = v + h * a");
  const Var v_free = b.Named(ball.v + ball.h * a, "v_free");
  const bool explicit_euler = config.Word("integrator") == "explicit";
  b.Label(explicit_euler ? "y_free = y + h * v" : "y_free = y + h * v_free");
  const Var y_free = b.Named(ball.y + ball.h * (explicit_euler ? ball.v : v_free), "y_free");
  b.Label("contact: y_free < 0");
  const Var contact = b.Event("contact", y_free, Comparison::kLt, b.Literal(0.0));
  if (config.Word("contact") == "penalty") {
    return PenaltyStep(b, ball, config, y_free, v_free, contact);
  }
  return ProjectionStep(b, ball, config, y_free, v_free, contact);
}

}  // namespace

WorldSchema BouncingBallSchema() {
  WorldSchema schema;
  schema.name = "bouncing_ball";
  schema.description =
      "Balls over a floor at y = 0; contact by a penalty force, by an iterative projection that "
      "stops at "
      "a tolerance, or at the time of impact (toi).";
  schema.config = ProjectionConfig();
  schema.config.push_back({"contact",
                           ConfigType::kWord,
                           std::string("projection"),
                           {"projection", "penalty", "toi"},
                           "contact model"});
  schema.config.push_back({"integrator",
                           ConfigType::kWord,
                           std::string("semi_implicit"),
                           {"semi_implicit", "explicit"},
                           "Euler's method for projection and penalty"});
  schema.config.push_back({"smoothing",
                           ConfigType::kWord,
                           std::string("relu"),
                           {"relu", "softplus"},
                           "penalty: how the penetration is smoothed"});
  schema.config.push_back(
      {"eps", ConfigType::kNumber, 1e-3, {}, "softplus: width of the smoothing [m]"});
  schema.config.push_back(
      {"clamp", ConfigType::kFlag, true, {}, "projection: y' = relu(y) after the loop"});
  schema.termination_sites = {"projection"};
  schema.event_sites = {"contact", "rest", "still"};
  return schema;
}

WorldSchema BoundaryProjectionSchema() {
  WorldSchema schema;
  schema.name = "boundary_projection";
  schema.description =
      "The projection loop alone: heights below 0 are corrected until their sum is below a "
      "tolerance.";
  schema.config = ProjectionConfig();
  schema.termination_sites = {"projection"};
  schema.event_sites = {"contact"};
  return schema;
}

absl::StatusOr<Program> BuildBouncingBall(const WorldSchema& schema, const Config& given) {
  const ConfigReader config(schema, given);
  if (absl::Status status = CheckProjection(config); !status.ok()) return status;
  if (config.Number("eps") <= 0) {
    return FieldError("config.eps", absl::StrCat(config.Number("eps"), " is not above 0"));
  }
  Builder b(schema.name);
  const Shape shape = {config.Integer("elements")};
  const Ball ball = BallInputs(b, shape);
  b.Label("a = u - g");
  const Var a = b.Named(ball.u - ball.g, "a");
  const Stepped next =
      config.Word("contact") == "toi" ? ImpactStep(b, ball, a) : FreeStep(b, ball, config, a);
  const Var y_next = Stored(b, next.y);
  b.SetNext({y_next, next.v});
  AddObjectives(b, shape, y_next, next.penetration);
  return b.Finish();
}

absl::StatusOr<Program> BuildBoundaryProjection(const WorldSchema& schema, const Config& given) {
  const ConfigReader config(schema, given);
  if (absl::Status status = CheckProjection(config); !status.ok()) return status;
  Builder b(schema.name);
  const Shape shape = {config.Integer("elements")};
  const Var y = b.State("y", shape, "height [m]");
  const Var k = b.Param("k", {}, {}, "solver gain");
  const Var alpha = b.Param("alpha", {}, 0.5, "damping of the correction");
  b.Label("contact: y < 0");
  b.Event("contact", y, Comparison::kLt, b.Literal(0.0));
  const Projected projected = Project(b, y, alpha, k, config, CapOrder::kCapFirst);
  const Var y_next = Stored(b, projected.y);
  b.SetNext({y_next});
  AddObjectives(b, shape, y_next, projected.penetration);
  return b.Finish();
}

}  // namespace simgrad::sim
