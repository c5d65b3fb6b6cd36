#include "server/service/prepare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/conversion/answer_bounds.h"
#include "server/conversion/kept_work.h"
#include "server/conversion/path.h"
#include "server/service/outbox.h"
#include "server/validation/gradient_check.h"
#include "server/validation/input_check.h"
#include "server/validation/path_check.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "server/validation/weights_check.h"
#include "sim/backend/check_batch.h"
#include "sim/engine/random_keys.h"
#include "sim/program/draws.h"
#include "sim/program/field_error.h"
#include "sim/program/paths.h"

namespace simgrad::server::service {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsBetween(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// All that is not compiling is decoding.
void EndDecode(Clock::time_point start, PreparedWork& prepared) {
  prepared.decode = {start, Clock::now()};
  prepared.decode_seconds = SecondsBetween(start, prepared.decode.last) - prepared.compile_seconds;
}

// The work of checking one cotangent, whatever it has, in element-operations.
constexpr int64_t kCotangentWork = 4096;
// Passes may write numbers for each element: positions along an axis, permutations.
constexpr int64_t kQuickElements = int64_t{1} << 14;
// The largest number in the configuration of a built-in world that is quick to prepare.
constexpr double kQuickNumber = 1024;

// Saturates above kQuickElements; what is no shape is refused later.
int64_t ElementsOf(const v1::Value& value) {
  int64_t elements = 1;
  for (const int64_t dim : value.shape()) {
    if (dim > kQuickElements) return kQuickElements + 1;
    elements = std::min(elements * std::max<int64_t>(dim, 0), kQuickElements + 1);
  }
  return elements;
}

bool HasFewElements(const v1::Program& program) {
  int64_t elements = 0;
  for (const v1::Value& value : program.values()) {
    elements += ElementsOf(value);
    if (elements > kQuickElements) return false;
  }
  return true;
}

// A built-in world has as many elements as its configuration says.
bool HasFewElements(const v1::World& world) {
  return std::all_of(world.config().begin(), world.config().end(), [](const auto& entry) {
    return !(std::abs(entry.second.number()) > kQuickNumber);
  });
}

// Reversing a loop may write its test three times over, and a loop in it each time again: so loops
// are few, and operands count as operations do. Lowering 200 operations with their adjoint takes
// about 2 ms.
struct ProgramSize {
  int64_t operations = 0;  // with their operands
  int64_t loops = 0;
};

// False: it is more than a quick program has.
bool Count(const v1::Region& region, ProgramSize& size) {
  constexpr ProgramSize kQuick = {600, 2};
  size.operations += region.args_size() + region.yields_size();
  for (const v1::Op& op : region.ops()) {
    size.operations += 1 + op.operands_size();
    size.loops += op.regions_size() > 0 ? 1 : 0;
    if (size.operations > kQuick.operations || size.loops > kQuick.loops) return false;
    for (const v1::Region& nested : op.regions()) {
      if (!Count(nested, size)) return false;
    }
  }
  return size.operations <= kQuick.operations;
}

// The executor knows better than a bound for all of them, and asking it costs a plan: so it is
// asked about large work alone, and about work that the bound, with the bytes `beside` it, would have
// refused. Compiled code has room for a group of instances, however few there are: work of few is large
// where a group of its kind would be.
absl::StatusOr<int64_t> WorkBytes(const sim::Work& work, int64_t beside,
                                  const PrepareOptions& options, const PrepareControl& control) {
  constexpr int64_t kLarge = int64_t{64} << 20;
  constexpr int64_t kGroup = 32;
  const int64_t bound = sim::EstimateBytes(work);
  const int64_t of_one = bound / std::max<int64_t>(work.batch.instances, 1);
  const bool is_large = bound > kLarge || of_one > kLarge / kGroup;
  const bool asks = is_large || (control.may_have && !control.may_have(bound + beside));
  if (!asks || options.engine == nullptr) return bound;
  return sim::EstimateBytes(work, options.engine->executor());
}

absl::Status CheckPathOf(const v1::RolloutSpec& spec, const sim::NumericalProgram& program,
                         int64_t instances, const validation::RequestLimits& limits) {
  if (!program.path) return absl::OkStatus();
  const sim::PathLayout& layout = *program.path;
  const std::vector<sim::Input>& inputs = program.program.inputs;
  const bool of_initial = std::any_of(inputs.begin(), inputs.end(), [](const sim::Input& input) {
    return input.name == sim::kPathGivenFirst;
  });
  return validation::CheckPathFits(
      spec.path(), {layout.structure, instances, spec.steps(), layout.bytes, of_initial}, limits,
      "spec.path");
}

// One time of the margins of each site fits into a message.
absl::Status CheckMargins(const std::vector<conversion::Recorded>& recorded,
                          const validation::RequestLimits& limits) {
  for (const conversion::Recorded& field : recorded) {
    if (!field.name.starts_with(sim::kMarginSite)) continue;
    absl::Status status =
        validation::CheckOneTime(field.name, field.shape, limits, "spec.diagnostics.margins");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Takes `bytes` of memory for numbers that a request sends in smaller formats.
absl::Status TakeNumbers(int64_t bytes, const PrepareControl& control) {
  if (bytes == 0 || !control.take_numbers || control.take_numbers(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "there is no memory for the ", bytes,
      " bytes that its numbers take beyond those that were sent; try later, or ask for less"));
}

template <class Make>
absl::StatusOr<PreparedWork> UnlessStopped(const Make& make) {
  absl::StatusOr<PreparedWork> made = absl::InternalError("nothing was made");
  const absl::Status ended = sim::UntilStopped([&] { made = make(); });
  if (!ended.ok()) return ended;
  return made;
}

// `gradient` null: a rollout; `keep` null: one that is not kept. Throws sim::StopRequested.
absl::StatusOr<PreparedWork> PrepareSpec(
    const v1::RolloutSpec& spec, const validation::Weights& weights,
    const v1::GradientRequest* gradient, const v1::KeepOptions* keep,
    conversion::ProgramCache& cache, const PrepareOptions& options, const PrepareControl& control) {
  const Clock::time_point start = Clock::now();
  sim::WorkMeter meter(control.compile.stop);
  absl::Status status = validation::CheckSpec(spec, options.limits, "spec", meter);
  if (status.ok() && gradient != nullptr)
    status = validation::CheckGradientMessage(*gradient, meter);
  if (status.ok()) status = validation::CheckWeights(weights);
  if (!status.ok()) return status;

  const Clock::time_point compile_start = Clock::now();
  auto world = cache.World(spec.world(), "spec.world", control.compile, options.worlds);
  if (!world.ok()) return world.status();
  double compile_seconds = SecondsBetween(compile_start, Clock::now());

  auto instances = validation::CheckInputs(spec, (*world)->schema, options.limits, "spec", meter);
  if (!instances.ok()) return instances.status();
  status = validation::CheckWeightCount(weights, *instances);
  if (!status.ok()) return status;
  std::optional<sim::AdjointSpec> adjoint;
  if (gradient != nullptr) {
    status = validation::CheckGradient(*gradient, (*world)->schema, *instances);
    if (!status.ok()) return status;
    adjoint = conversion::AdjointSpecFromProto(*gradient, (*world)->program);
  }
  if (keep != nullptr) {
    status = validation::CheckKeep(*keep, (*world)->schema);
    if (!status.ok()) return status;
  }

  if (keep != nullptr && spec.diagnostics().margins_size() > 0) {
    return validation::InvalidField("spec.diagnostics.margins",
                                    "a rollout that is kept does not tell them; leave out `keep`");
  }

  const Clock::time_point lower_start = Clock::now();
  const auto& margins = spec.diagnostics().margins();
  auto program = cache.Lower(
      *world, spec.policy(), spec.objective(), adjoint, "spec", control.compile,
      {.path = conversion::PathUseOf(spec.path()), .margins = {margins.begin(), margins.end()}});
  if (!program.ok()) return program.status();
  auto runs = program;
  if (keep != nullptr) {
    const v1::GradientRequest kept_for = conversion::KeptGradient(*keep, spec, (*world)->program);
    runs = cache.Lower(*world, spec.policy(), spec.objective(),
                       conversion::AdjointSpecFromProto(kept_for, (*world)->program), "keep",
                       control.compile, {.path = conversion::PathUseOf(spec.path())});
    if (!runs.ok()) return runs.status();
    // The answer names the rollout's program, unless the adjoint needs more of the forward pass.
    if (!sim::RunsForwardAlike(*(*program)->program, *(*runs)->program)) program = runs;
  }
  const Clock::time_point compile_end = Clock::now();
  compile_seconds += SecondsBetween(lower_start, compile_end);
  status = validation::CheckRequired(spec, (*program)->required, "spec");
  if (status.ok()) {
    status = CheckPathOf(spec, *(*program)->program, *instances, options.limits);
  }
  if (!status.ok()) return status;

  PreparedWork prepared;
  prepared.program = *program;
  conversion::WorkSettings settings = options.work;
  settings.threads = ThreadsFor(*instances, options.work.threads);
  status = TakeNumbers(conversion::BytesBeyondSent(spec, (*runs)->program->program), control);
  if (!status.ok()) return status;
  prepared.work = conversion::WorkFromProto(spec, (*runs)->program, *instances, settings, meter);
  prepared.work.weights.assign(weights.begin(), weights.end());
  if (gradient != nullptr) {
    for (const v1::Cotangent& cotangent : gradient->cotangents()) {
      status = TakeNumbers(conversion::BytesBeyondSent(cotangent), control);
      if (!status.ok()) return status;
    }
    conversion::AddGradient(*gradient, prepared.work, meter);
  }
  if (keep != nullptr) {
    prepared.work.keep = true;
    prepared.keep_spec = std::make_shared<const v1::RolloutSpec>(conversion::WithoutContents(spec));
  }
  status = sim::InField("spec", sim::CheckSteps(prepared.work.batch));
  if (!status.ok()) return status;
  prepared.recorded = conversion::RecordedFields(spec, *prepared.program->program);
  status = CheckMargins(prepared.recorded, options.limits);
  if (!status.ok()) return status;
  prepared.nonfinite_inputs = conversion::CountNonFinite(prepared.work.batch, meter);
  prepared.program_detail = spec.program();
  if (spec.policy().loss_scale().has_dynamic()) {
    prepared.loss_scaler = spec.policy().loss_scale().dynamic();
  }
  prepared.send_diagnostics = spec.diagnostics().level() != v1::DIAGNOSTICS_LEVEL_OFF;
  if (prepared.work.gradient) prepared.work.gradient->tell_steps = prepared.send_diagnostics;
  const conversion::AnswerLimits answer = {options.limits.max_message_bytes / 2,
                                           kQueuedMessages * options.limits.max_message_bytes};
  prepared.work.max_chunk_steps =
      conversion::MostChunkSteps(prepared.work, prepared.recorded, answer);
  prepared.work.options.stop = control.compile.stop;
  prepared.work.reserve = control.reserve;
  const int64_t beside =
      conversion::AnswerBytes(prepared.work, prepared.recorded, prepared.program_detail, answer);
  const auto work_bytes = WorkBytes(prepared.work, beside, options, control);
  if (!work_bytes.ok()) return work_bytes.status();
  prepared.memory_bytes = *work_bytes + beside;
  prepared.compile = {compile_start, compile_end};
  prepared.compile_seconds = compile_seconds;
  EndDecode(start, prepared);
  return prepared;
}

// The inputs of `kept` for `program`, which a Vjp runs. Both begin with the `of_world` inputs of the world.
// Those that passes added differ: one adjoint may draw, or count its solves, where another does not.
std::vector<sim::Binding> InputsOfVjp(sim::Batch& kept, const sim::Program& program,
                                      size_t of_world, uint64_t seed) {
  const std::vector<sim::Input>& known = kept.program->program.inputs;
  std::map<std::string_view, size_t> added;
  for (size_t i = of_world; i < known.size(); ++i) added[known[i].name] = i;
  std::vector<sim::Binding> inputs(program.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = program.inputs[i].name;
    const auto found = i < of_world ? added.end() : added.find(name);
    if (i < of_world) {
      inputs[i] = std::move(kept.inputs[i]);
    } else if (found != added.end()) {
      inputs[i] = std::move(kept.inputs[found->second]);
    } else if (name == sim::kRandomKey) {
      inputs[i] = sim::RandomKeys(seed, kept.instance_ids);
    }
  }
  return inputs;
}

// Takes the cotangents from the request. Throws sim::StopRequested.
absl::StatusOr<PreparedWork> PrepareVjp(v1::VjpRequest& request, const KeptRuns::Kept& kept,
                                        conversion::ProgramCache& cache,
                                        const PrepareOptions& options,
                                        const PrepareControl& control) {
  const Clock::time_point start = Clock::now();
  const sim::Batch& batch = kept.run->batch;
  sim::WorkMeter meter(control.compile.stop);
  const std::shared_ptr<const conversion::CachedWorld>& world = kept.world;
  absl::Status status = validation::CheckWeights(request.weights());
  if (status.ok()) status = validation::CheckWeightCount(request.weights(), batch.instances);
  if (!status.ok()) return status;

  if (request.cotangents_size() == 0 && kept.spec->objective().empty()) {
    return validation::InvalidField("cotangents",
                                    "send at least one, as the rollout names no objective");
  }

  v1::GradientRequest gradient = conversion::GradientOfVjp(request, *kept.spec);
  PreparedWork prepared;
  std::optional<sim::AdjointSpec> adjoint;
  for (int i = 0; i < std::max(request.cotangents_size(), 1); ++i) {
    meter.Add(kCotangentWork);
    if (request.cotangents_size() > 0) {
      gradient.mutable_cotangents(0)->Swap(request.mutable_cotangents(i));
      status = validation::CheckNotEmpty(gradient.cotangents(0));
    }
    if (status.ok()) status = validation::CheckGradientMessage(gradient, meter);
    if (status.ok()) {
      status = validation::CheckGradient(gradient, world->schema, batch.instances);
    }
    if (!status.ok()) return validation::OfCotangent(i, status);
    if (request.cotangents_size() > 0)
      status = TakeNumbers(conversion::BytesBeyondSent(gradient.cotangents(0)), control);
    if (!status.ok()) return status;
    const sim::AdjointSpec own = conversion::AdjointSpecFromProto(gradient, world->program);
    if (adjoint && !conversion::SameCotangents(own, *adjoint)) {
      return validation::InvalidField(
          absl::StrCat("cotangents[", i, "]"),
          "name the states and observables that cotangents[0] names, and no others");
    }
    adjoint = own;
    prepared.cotangents.push_back(conversion::CotangentsFromProto(gradient, world->program, meter));
  }

  const Clock::time_point lower_start = Clock::now();
  auto program = cache.Lower(world, kept.spec->policy(), kept.spec->objective(), adjoint, "handle",
                             control.compile, {.path = conversion::PathUseOf(kept.spec->path())});
  if (!program.ok()) return program.status();
  prepared.compile = {lower_start, Clock::now()};
  prepared.compile_seconds = SecondsBetween(lower_start, prepared.compile.last);
  prepared.program = *program;
  prepared.kept = kept.run;
  // Passes may have added states and exports, behind those of the world.
  const sim::Program& lowered = prepared.program->program->program;
  for (sim::Cotangents& cotangents : prepared.cotangents) {
    cotangents.final_state.resize(lowered.InputsOf(sim::InputKind::kState).size());
    cotangents.trajectory_state.resize(cotangents.final_state.size());
    cotangents.trajectory_export.resize(lowered.exports.size());
  }
  sim::Work& work = prepared.work;
  work = sim::WorkOf(*kept.run);
  work.batch.inputs =
      InputsOfVjp(work.batch, lowered, world->program.inputs.size(), kept.spec->seed());
  work.batch.program = prepared.program->program;
  work.weights.assign(request.weights().begin(), request.weights().end());
  work.gradient = conversion::GradientWorkFromProto(gradient);
  work.chunk_steps = kept.spec->chunk_steps();
  work.memory_budget_bytes = options.work.memory_budget_bytes;
  work.options.stop = control.compile.stop;
  work.reserve = control.reserve;
  if (kept.spec->policy().loss_scale().has_dynamic()) {
    prepared.loss_scaler = kept.spec->policy().loss_scale().dynamic();
  }
  prepared.send_diagnostics = kept.spec->diagnostics().level() != v1::DIAGNOSTICS_LEVEL_OFF;
  work.gradient->tell_steps = prepared.send_diagnostics;
  const conversion::AnswerLimits answer = {options.limits.max_message_bytes / 2,
                                           kQueuedMessages * options.limits.max_message_bytes};
  work.max_chunk_steps = conversion::MostChunkSteps(work, prepared.recorded, answer);
  const int64_t beside =
      conversion::CotangentBytes(prepared.cotangents) +
      conversion::AnswerBytes(work, prepared.recorded, prepared.program_detail, answer);
  const auto work_bytes = WorkBytes(work, beside, options, control);
  if (!work_bytes.ok()) return work_bytes.status();
  prepared.memory_bytes = *work_bytes + beside;
  EndDecode(start, prepared);
  return prepared;
}

}  // namespace

Preparation PreparationOf(const v1::World& world) {
  if (world.source_case() != v1::World::kProgram) {
    return HasFewElements(world) ? Preparation::kQuick : Preparation::kCostly;
  }
  const v1::Program& program = world.program();
  ProgramSize size = {static_cast<int64_t>(program.exports_size()) + program.objectives_size(), 0};
  bool quick =
      HasFewElements(program) && Count(program.initial(), size) && Count(program.step(), size);
  for (const v1::Objective& objective : program.objectives()) {
    quick = quick && Count(objective.stage(), size) && Count(objective.terminal(), size);
  }
  return quick ? Preparation::kQuick : Preparation::kCostly;
}

int ThreadsFor(int64_t instances, int most) {
  // Below this a thread costs more to start than it saves.
  constexpr int64_t kInstancesPerThread = 256;
  const int64_t worth = (instances + kInstancesPerThread - 1) / kInstancesPerThread;
  return static_cast<int>(std::clamp<int64_t>(worth, 1, std::max(1, most)));
}

absl::StatusOr<PreparedWork> Prepare(const v1::RolloutRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control) {
  if (absl::Status status = validation::CheckRolloutMessage(request); !status.ok()) return status;
  return UnlessStopped([&] {
    return PrepareSpec(request.spec(), request.weights(), nullptr,
                       request.has_keep() ? &request.keep() : nullptr, cache, options, control);
  });
}

absl::StatusOr<PreparedWork> Prepare(const v1::GradientRequest& request,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control) {
  return UnlessStopped([&] {
    return PrepareSpec(request.spec(), request.weights(), &request, nullptr, cache, options,
                       control);
  });
}

absl::StatusOr<PreparedWork> Prepare(v1::VjpRequest&& request, const KeptRuns::Kept& kept,
                                     conversion::ProgramCache& cache, const PrepareOptions& options,
                                     const PrepareControl& control) {
  return UnlessStopped([&] { return PrepareVjp(request, kept, cache, options, control); });
}

}  // namespace simgrad::server::service
