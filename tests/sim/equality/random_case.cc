#include "tests/sim/equality/random_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "precision/policy.h"
#include "sim/engine/random_keys.h"
#include "sim/op/op_info.h"
#include "sim/program/draws.h"
#include "sim/program/field_error.h"
#include "sim/program/lower.h"

namespace simgrad::sim::equality {
namespace {

using precision::RoleOverride;

RoleOverride RandomOverride(Random& random, bool may_be_fp8) {
  RoleOverride change;
  if (random.Chance(0.6)) {
    change.format = static_cast<Format>(random.Integer(0, may_be_fp8 ? 5 : 3));
  }
  if (random.Chance(0.2)) {
    change.overflow = random.Chance(0.5) ? Overflow::kIeee : Overflow::kSaturate;
  }
  if (random.Chance(0.6)) {
    change.order = static_cast<Order>(random.Integer(0, precision::kOrderCount - 1));
    if (change.order->kind == Order::kShuffled) change.order->seed = random.Bits();
  }
  if (random.Chance(0.25)) change.accumulator = static_cast<Format>(random.Integer(0, 3));
  if (random.Chance(0.4)) change.rounding = static_cast<CastRounding>(random.Integer(0, 3));
  return change;
}

// A rounding that could do nothing is refused, and so is a scale beside another overflow or rounding.
void DropRefused(const precision::PolicySpec& spec, RoleOverride& last) {
  const auto refuses = [&] {
    return !std::holds_alternative<precision::Policy>(precision::Resolve(spec));
  };
  if (refuses()) last.rounding.reset();
  if (refuses()) last.overflow.reset();
  if (refuses()) last.scale.reset();
}

precision::PolicySpec RandomPolicy(Random& random, const Program& world) {
  precision::PolicySpec spec;
  spec.preset = random.Pick(precision::PresetNames());
  for (int i = 0; i < precision::kRoleCount; ++i) {
    const Role role = static_cast<Role>(i);
    if (!random.Chance(0.2)) continue;
    const bool storage = role == Role::kTape || role == Role::kNetwork;
    spec.roles.push_back({std::string(precision::RoleName(role)), RandomOverride(random, storage)});
    RoleOverride& change = spec.roles.back().second;
    if (role == Role::kNetwork && random.Chance(0.5)) change.scale = precision::Scale::kAmax;
    DropRefused(spec, change);
  }
  for (const Site& site : SitesOf(world)) {
    if (!random.Chance(0.15)) continue;
    spec.sites.push_back({site.name, RandomOverride(random, false)});
    DropRefused(spec, spec.sites.back().second);
  }
  if (random.Chance(0.3))
    spec.loss_scale = std::ldexp(1.0, static_cast<int>(random.Integer(0, 12)));
  for (auto& [role, change] : spec.roles) {  // a gradient that saturates takes no scale
    if (role == precision::RoleName(Role::kGradient)) DropRefused(spec, change);
  }
  if (random.Chance(0.25)) spec.nonfinite = precision::NonFinite::kStop;
  return spec;
}

// Draws from numbers of its own, so that cases without it stay as they are.
void ChooseProducts(Random random, precision::PolicySpec& spec) {
  for (const Role role :
       {Role::kDynamics, Role::kSolver, Role::kNetwork, Role::kObjective, Role::kAdjoint}) {
    const std::string name(precision::RoleName(role));
    auto known = std::find_if(spec.roles.begin(), spec.roles.end(),
                              [&](const auto& one) { return one.first == name; });
    if (known == spec.roles.end()) known = spec.roles.insert(known, {name, {}});
    RoleOverride& change = known->second;
    if (random.Chance(0.8)) {
      precision::SumOrder order = static_cast<Order>(random.Integer(0, precision::kOrderCount - 1));
      if (order.kind == Order::kShuffled) order.seed = random.Bits();
      change.products = precision::Products{order};
    }
    if (random.Chance(0.6)) {
      change.format = Format::kF32;
      change.is_tf32 = true;
      change.scale.reset();
      change.rounding = static_cast<CastRounding>(random.Integer(0, 2));
    }
  }
  // One that is stochastic would be refused where a role has tf32.
  for (auto& [site, change] : spec.sites) change.rounding.reset();
}

// What numbers a case is fed with.
struct Feed {
  Random& random;
  const std::vector<double>& thresholds;
  bool smooth;
  bool nonfinite;  // NaN and Inf among them
  bool extreme;    // subnormal and huge ones

  double Real() {
    const double kind = random.Uniform(0.0, 1.0);
    const double plain = random.Uniform(-2.0, 2.0);
    if (smooth || kind < 0.55) return plain;
    if (nonfinite && kind > 0.93) {
      static const std::vector<double> kBad = {std::numeric_limits<double>::quiet_NaN(),
                                               std::numeric_limits<double>::infinity(),
                                               -std::numeric_limits<double>::infinity()};
      return random.Pick(kBad);
    }
    if (extreme && kind > 0.85) {
      static const std::vector<double> kExtreme = {1e-40, -3e-41, 6e-8,   0x1p-24, 7e4,
                                                   -1e30, 3e38,   1e-310, -0.0,    1e300};
      return random.Pick(kExtreme);
    }
    if (kind < 0.75 && !thresholds.empty()) {
      const double at = random.Pick(thresholds);
      static const std::vector<double> kSteps = {0.0, 0.0, 0x1p-52, -0x1p-24, 0x1p-11, -0x1p-8};
      return random.Chance(0.2) ? -at : at * (1.0 + random.Pick(kSteps));
    }
    return plain * std::exp2(random.Uniform(-8.0, 3.0));
  }
};

Tensor RandomTensor(Feed& feed, const Type& type, int64_t copies) {
  static const std::vector<DType> kReals = {DType::kF64, DType::kF64, DType::kF32, DType::kF16,
                                            DType::kBf16};
  DType dtype = feed.smooth ? DType::kF64 : feed.random.Pick(kReals);
  if (type.element == ElementType::kI32) dtype = DType::kI32;
  if (type.element == ElementType::kI64) dtype = DType::kI64;
  if (type.element == ElementType::kBool) dtype = DType::kBool;
  if (type.element == ElementType::kU32) dtype = DType::kU32;
  if (type.element == ElementType::kU8) dtype = DType::kU8;
  const int64_t largest = dtype == DType::kU32 ? UINT32_MAX : dtype == DType::kU8 ? UINT8_MAX : 0;
  Tensor tensor = Tensor::Zeros(dtype, {copies * ElementCount(type.shape)});
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (type.element == ElementType::kReal) {
      tensor.Set(i, feed.Real());
    } else if (largest > 0) {
      const int64_t n = feed.random.Integer(0, 9);
      tensor.SetInt(i, feed.random.Chance(0.5) ? n : largest - n);
    } else {
      tensor.SetInt(i, feed.random.Integer(0, type.element == ElementType::kBool ? 1 : 9));
    }
  }
  return tensor;
}

std::vector<Binding> RandomBindings(Feed& feed, const Program& program, const Batch& batch) {
  std::vector<Binding> bindings;
  for (const Input& input : program.inputs) {
    if (input.name == kRandomKey) {
      bindings.push_back(RandomKeys(feed.random.Bits(), batch.instance_ids));
      continue;
    }
    Binding& binding = bindings.emplace_back();
    if (input.kind == InputKind::kConfig || input.kind == InputKind::kStep) continue;
    if (input.name == kHaltedState) continue;
    if (!feed.smooth && input.default_value && feed.random.Chance(0.3)) continue;
    const bool varies = input.kind == InputKind::kControl || input.kind == InputKind::kData;
    const bool state = input.kind == InputKind::kState;
    const bool own = feed.random.Chance(state ? 0.95 : 0.4);
    binding.per_instance = own;
    binding.per_step = varies && feed.random.Chance(0.5);
    const int64_t copies =
        (binding.per_instance ? batch.instances : 1) * (binding.per_step ? batch.steps : 1);
    binding.tensor = RandomTensor(feed, program[input.value].type, copies);
    if (!input.weights) continue;
    // All instances share them. As much is drawn as for a param, so that a seed's case stays the same.
    binding.per_instance = false;
    const Type& type = program[input.value].type;
    if (copies == 0) binding.tensor = RandomTensor(feed, type, 1);
    Tensor first = Tensor::Zeros(binding.tensor.dtype, {ElementCount(type.shape)});
    for (int64_t k = 0; k < first.count(); ++k) first.Set(k, binding.tensor.Get(k));
    binding.tensor = std::move(first);
  }
  return bindings;
}

// Sizes around the widths of vector blocks; few instances times steps, because the reference is
// slow.
void ChooseSizes(Random& random, const CaseOptions& options, Batch& batch) {
  const bool smooth = options.smooth;
  static const std::vector<int64_t> kInstances = {1,  2,  3,  4,  5,  7,  8,  9,  15,
                                                  16, 17, 31, 32, 33, 63, 64, 65, 70};
  batch.instances = smooth ? random.Integer(1, 4) : random.Pick(kInstances);
  const int64_t most = std::clamp<int64_t>(160 / batch.instances, 3, 12);
  batch.steps = !smooth && random.Chance(0.05) ? 0 : random.Integer(1, smooth ? 5 : most);
  if (options.instances >= 0) batch.instances = options.instances;
  if (options.steps >= 0) batch.steps = options.steps;
  const uint64_t first = random.Chance(0.5) ? 0 : random.Bits();
  for (int64_t i = 0; i < batch.instances; ++i) {
    batch.instance_ids.push_back(first + static_cast<uint64_t>(i) * (first % 3 + 1));
  }
}

AdjointSpec RandomSpec(Random& random, const Program& world, const std::string& objective,
                       bool all) {
  AdjointSpec spec;
  spec.objective = objective;
  const double share = objective.empty() ? 0.6 : all ? 0.1 : 0.25;
  for (size_t i = 0; i < world.InputsOf(InputKind::kState).size(); ++i) {
    const Input& input = world.inputs[i];
    const bool real = world[input.value].type.element == ElementType::kReal;
    spec.final_state.push_back(real && random.Chance(share));
    spec.trajectory_state.push_back(real && random.Chance(share));
  }
  for (const Export& item : world.exports) {
    const bool real = world[item.value].type.element == ElementType::kReal;
    spec.trajectory_export.push_back(real && random.Chance(share));
  }
  for (const Input& input : world.inputs) {
    spec.wanted.push_back(IsDifferentiable(world, input) && (all || random.Chance(0.85)));
  }
  return spec;
}

// Truncated, or as a fixed point: damped, so that w stays moderate.
std::vector<LoopChoice> RandomChoices(Random& random, const Program& world) {
  std::vector<LoopChoice> choices;
  std::set<std::string_view> named;
  const std::vector<Site> sites = SitesOf(world);
  for (const Site& site : sites) {
    const bool loop = site.kind == SiteKind::kTermination;
    if (!loop || !random.Chance(0.25) || !named.insert(site.name).second) continue;
    LoopChoice& choice = choices.emplace_back();
    choice.site = site.name;
    choice.last = random.Integer(1, 4);
    if (random.Chance(0.5)) continue;
    choice.how = LoopChoice::How::kImplicit;
    choice.solver = static_cast<LoopChoice::Solver>(random.Integer(0, 3));
    choice.tol = random.Chance(0.5) ? 1e-2 : 1e-6;
    choice.max_iter = random.Integer(1, 6);
    choice.damping = random.Chance(0.5) ? 0.0 : 2.0;
    if (choice.solver != LoopChoice::Solver::kGmres) continue;
    choice.max_iter += 1;
    choice.restart = random.Integer(0, 4);
  }
  return choices;
}

void SendCotangents(Random& random, const AdjointSpec& spec, Batch& batch) {
  const Program& program = batch.program->program;
  const auto numbers = [&](bool sent, const Type& type, int64_t copies) {
    std::vector<double> values;
    const int64_t count = sent ? copies * ElementCount(type.shape) : 0;
    for (int64_t i = 0; i < count; ++i) values.push_back(random.Uniform(-1.0, 1.0));
    return values;
  };
  const int64_t n = batch.instances;
  for (size_t i = 0; i < spec.final_state.size(); ++i) {
    const Type& type = program[program.inputs[i].value].type;
    batch.cotangents.final_state.push_back(numbers(spec.final_state[i], type, n));
    batch.cotangents.trajectory_state.push_back(
        numbers(spec.trajectory_state[i], type, n * (batch.steps + 1)));
  }
  for (size_t i = 0; i < spec.trajectory_export.size(); ++i) {
    const Type& type = program[program.exports[i].value].type;
    batch.cotangents.trajectory_export.push_back(
        numbers(spec.trajectory_export[i], type, n * batch.steps));
  }
}

void ChooseOptions(Random& random, bool smooth, Work& work) {
  const Program& program = work.batch.program->program;
  const double level = random.Uniform(0.0, 1.0);
  work.options.recording = smooth || level < 0.75 ? Recording::kInstances
                           : level < 0.95         ? Recording::kSummary
                                                  : Recording::kNone;
  work.options.stride = static_cast<int32_t>(random.Integer(1, 5));
  for (int32_t input : program.InputsOf(InputKind::kState)) {
    if (smooth || random.Chance(0.6)) work.options.record_states.push_back(input);
  }
  for (size_t i = 0; i < program.exports.size(); ++i) {
    if (smooth || random.Chance(0.6)) {
      work.options.record_exports.push_back(static_cast<int32_t>(i));
    }
  }
}

// Whether a terminal cost would read exports of a step that never ran.
bool ReadsMissingExports(const Program& program, int64_t steps) {
  if (steps > 0 || program.objectives.empty()) return false;
  return program.objectives.front().HasTerminal() && !program.exports.empty();
}

void ChooseGradient(Random& random, Work& work) {
  if (random.Chance(0.3)) {
    for (int64_t i = 0; i < work.batch.instances; ++i) {
      work.weights.push_back(random.Uniform(-1.0, 2.0));
    }
  }
  if (random.Chance(0.3)) work.gradient->reduction = InstanceReduction::kFiniteOnly;
}

}  // namespace

absl::StatusOr<Case> MakeCase(uint64_t seed, const CaseOptions& options) {
  Random random(seed);
  WorldOptions world_options;
  world_options.smooth = options.smooth;
  world_options.size = options.size;
  world_options.focus = static_cast<OpCode>(seed % static_cast<uint64_t>(OpCode::kTape));
  if (!InfoOf(world_options.focus).in_worlds) {
    // What gives it.
    const std::map<OpCode, OpCode> makers = {{OpCode::kExclusiveProd, OpCode::kProd},
                                             {OpCode::kLuPivots, OpCode::kLuPermutation},
                                             {OpCode::kCholeskyPivots, OpCode::kCholesky},
                                             {OpCode::kScatterWinner, OpCode::kScatter},
                                             {OpCode::kFakeQuantizeKept, OpCode::kFakeQuantize},
                                             {OpCode::kOwnVjp, OpCode::kCall}};
    world_options.counts_choices =
        world_options.focus == OpCode::kLuPivots || world_options.focus == OpCode::kCholeskyPivots;
    const auto maker = makers.find(world_options.focus);
    world_options.focus = maker == makers.end() ? OpCode::kSlice : maker->second;
  }
  if (options.multiplies) world_options.focus = OpCode::kMatmul;
  absl::StatusOr<RandomWorld> world = MakeRandomWorld(random, world_options);
  if (!world.ok()) return world.status();
  precision::PolicySpec spec = RandomPolicy(random, world->program);
  if (options.smooth) spec = {.preset = "f64"};
  if (options.multiplies) ChooseProducts(Random(seed ^ 0x9A7217u), spec);
  auto policy = precision::Resolve(spec);
  if (const auto* error = std::get_if<precision::PolicyError>(&policy)) {
    return absl::InvalidArgumentError(absl::StrCat(error->field, ": ", error->message));
  }
  Case made;
  made.seed = seed;
  Batch& batch = made.work.batch;
  ChooseSizes(random, options, batch);
  const bool differentiates = options.smooth || random.Chance(0.8);
  std::string objective = random.Pick(world->program.objectives).name;
  if (random.Chance(0.2)) objective.clear();
  std::optional<AdjointSpec> adjoint;
  if (differentiates) {
    adjoint = RandomSpec(random, world->program, objective, options.smooth);
    made.work.gradient.emplace();
    if (!options.smooth) ChooseGradient(random, made.work);
  }
  if (adjoint && !options.smooth) adjoint->loops = RandomChoices(random, world->program);
  const auto lower = [&] {
    return Lower(world->program, std::get<precision::Policy>(policy), objective, adjoint);
  };
  absl::StatusOr<NumericalProgram> lowered = lower();
  // Either may be refused first.
  for (int refusal = 0; refusal < 2; ++refusal) {
    const std::string field = FieldOf(lowered.status());
    if (adjoint && field.starts_with("loops")) {
      // A loop per element, or one whose exports have cotangents, is no fixed point.
      std::erase_if(adjoint->loops, [](const LoopChoice& choice) {
        return choice.how == LoopChoice::How::kImplicit;
      });
    } else if (field.starts_with("policy.sites[")) {
      // Casts of a site that would change nothing are refused.
      for (auto& [site, change] : std::get<precision::Policy>(policy).sites) {
        change.rounding.reset();
        change.overflow.reset();
      }
    } else {
      break;
    }
    lowered = lower();
  }
  if (!lowered.ok()) return lowered.status();
  if (ReadsMissingExports(lowered->program, batch.steps)) batch.steps = 1;
  batch.program = std::make_shared<const NumericalProgram>(std::move(*lowered));
  const bool extreme = random.Chance(0.15);
  Feed feed{random, world->thresholds, options.smooth, random.Chance(0.12), extreme};
  batch.inputs = RandomBindings(feed, batch.program->program, batch);
  if (adjoint) SendCotangents(random, *batch.program->adjoint_spec, batch);
  ChooseOptions(random, options.smooth, made.work);
  made.world = std::move(world->program);
  made.asked = adjoint;
  made.work = Recut(made.work, random.Bits());
  return made;
}

Work Recut(const Work& work, uint64_t seed) {
  Random random(seed);
  Work cut = work;
  cut.chunk_steps =
      random.Chance(0.3) ? 0 : random.Integer(1, std::max<int64_t>(1, work.batch.steps));
  cut.checkpoint_interval = random.Chance(0.3) ? 0 : random.Integer(1, 5);
  cut.options.threads = static_cast<int>(random.Integer(1, 2));
  return cut;
}

}  // namespace simgrad::sim::equality
