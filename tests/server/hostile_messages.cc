#include "tests/server/hostile_messages.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "server/conversion/program_to_proto.h"
#include "tests/server/ball_request.h"
#include "tests/server/deterministic_bytes.h"
#include "tests/server/hostile_programs.h"
#include "tests/sim/equality/random_program.h"
#include "tests/sim/program/woven_programs.h"

namespace simgrad::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
// ---- Requests ----

std::string ObjectiveOf(const v1::Program& program) {
  return program.objectives_size() > 0 ? program.objectives(0).name() : "";
}

// A value for everything that has none.
v1::RolloutSpec SpecOf(const v1::Program& program, Dice& dice) {
  v1::RolloutSpec spec;
  *spec.mutable_world()->mutable_program() = program;
  spec.set_steps(dice.Between(0, 3));
  spec.set_instances(dice.Between(1, 3));
  for (const v1::Input& input : program.inputs()) {
    auto* list = input.kind() == v1::INPUT_KIND_STATE     ? spec.mutable_initial()
                 : input.kind() == v1::INPUT_KIND_PARAM   ? spec.mutable_params()
                 : input.kind() == v1::INPUT_KIND_CONTROL ? spec.mutable_controls()
                 : input.kind() == v1::INPUT_KIND_DATA    ? spec.mutable_data()
                                                          : nullptr;
    if (list == nullptr || input.value() < 0 || input.value() >= program.values_size()) continue;
    const auto& shape = program.values(input.value()).shape();
    int64_t count = 1;
    for (const int64_t dim : shape) count *= std::clamp<int64_t>(dim, 0, 1 << 21);
    if (count > 1 << 20) continue;
    AddTensor(list, input.name(), std::vector<double>(static_cast<size_t>(count), 0.75),
              {shape.begin(), shape.end()});
  }
  return spec;
}

const char* const kPresets[] = {"f64", "f32", "bf16_unsafe", "f16_safe", "fp8_storage"};

HostileMessage MessageOf(const v1::Program& program, Dice& dice,
                         const std::function<void(Message&)>& spoil) {
  HostileMessage message;
  message.rpc = static_cast<Rpc>(dice.Below(3));
  if (message.rpc == Rpc::kDescribe) {
    v1::DescribeProgramRequest request;
    *request.mutable_world()->mutable_program() = program;
    request.mutable_policy()->set_preset(kPresets[dice.Below(5)]);
    request.set_objective(ObjectiveOf(program));
    request.set_adjoint(!request.objective().empty() && !dice.OneIn(4));
    if (dice.OneIn(2)) request.mutable_cuda();
    spoil(request);
    message.request = DeterministicBytes(request);
    return message;
  }
  v1::GradientRequest request;
  *request.mutable_spec() = SpecOf(program, dice);
  request.mutable_spec()->mutable_policy()->set_preset(kPresets[dice.Below(5)]);
  request.mutable_spec()->set_objective(ObjectiveOf(program));
  if (message.rpc == Rpc::kGradient) {
    spoil(request);
    message.request = DeterministicBytes(request);
    return message;
  }
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = request.spec();
  spoil(rollout);
  message.request = DeterministicBytes(rollout);
  return message;
}

// ---- Damage ----

// One number, word or list somewhere in the message becomes another one, and may become many.
void Spoil(Message& message, Dice& dice) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  if (fields.empty()) return;
  const FieldDescriptor* field =
      fields[static_cast<size_t>(dice.Below(static_cast<int64_t>(fields.size())))];
  if (field->is_map()) return reflection->ClearField(&message, field);
  const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 0;
  const int at = size > 0 ? static_cast<int>(dice.Below(size)) : 0;
  const int64_t numbers[] = {-1, 0, 1, 2, 3, 7, 100, 1 << 20, int64_t{1} << 40, INT64_MAX};
  const int64_t number = numbers[dice.Below(10)];
  if (field->is_repeated() && dice.OneIn(8)) return reflection->RemoveLast(&message, field);
  if (field->is_repeated() && dice.OneIn(8))
    return reflection->SwapElements(&message, field, at, size - 1);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      if (field->is_repeated() && dice.OneIn(6)) {  // the same once more, or many times
        const int copies = static_cast<int>(dice.Doubling(10));
        for (int i = 0; i < copies; ++i) {
          Message* added = reflection->AddMessage(&message, field);
          added->CopyFrom(reflection->GetRepeatedMessage(message, field, at));
        }
        return;
      }
      return Spoil(field->is_repeated() ? *reflection->MutableRepeatedMessage(&message, field, at)
                                        : *reflection->MutableMessage(&message, field),
                   dice);
    }
    case FieldDescriptor::CPPTYPE_INT64:
      if (field->is_repeated()) return reflection->SetRepeatedInt64(&message, field, at, number);
      return reflection->SetInt64(&message, field, number);
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto narrow = static_cast<int32_t>(dice.OneIn(3) ? number : dice.Below(64));
      if (field->is_repeated()) return reflection->SetRepeatedInt32(&message, field, at, narrow);
      return reflection->SetInt32(&message, field, narrow);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const char* const words[] = {"", "sum", "while", "for", "add", "select", "x", "y", "cost"};
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        return reflection->SetString(&message, field, "bytes");
      }
      if (field->is_repeated()) {
        return reflection->SetRepeatedString(&message, field, at, words[dice.Below(9)]);
      }
      return reflection->SetString(&message, field, words[dice.Below(9)]);
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      if (!field->is_repeated())
        reflection->SetEnumValue(&message, field, static_cast<int>(dice.Below(12)));
      return;
    default:
      return reflection->ClearField(&message, field);
  }
}

// A field that no message has, in a message somewhere inside.
void AddUnknown(Message& message, Dice& dice) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields, messages;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->message_type() != nullptr && !field->is_map()) messages.push_back(field);
  }
  if (messages.empty() || dice.OneIn(4)) {
    reflection->MutableUnknownFields(&message)->AddVarint(static_cast<int>(dice.Between(1, 4000)),
                                                          7);
    return;
  }
  const FieldDescriptor* field =
      messages[static_cast<size_t>(dice.Below(static_cast<int64_t>(messages.size())))];
  if (!field->is_repeated()) return AddUnknown(*reflection->MutableMessage(&message, field), dice);
  const int at = static_cast<int>(dice.Below(reflection->FieldSize(message, field)));
  AddUnknown(*reflection->MutableRepeatedMessage(&message, field, at), dice);
}

void Damage(std::string& bytes, Dice& dice) {
  for (int64_t changes = dice.Between(1, 4); changes > 0 && !bytes.empty(); --changes) {
    const auto at = static_cast<size_t>(dice.Below(static_cast<int64_t>(bytes.size())));
    switch (dice.Below(4)) {
      case 0:
        bytes[at] = static_cast<char>(dice.Word());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.erase(at, static_cast<size_t>(dice.Between(1, 8)));
        break;
      default:
        bytes.insert(at, bytes.substr(at / 2, static_cast<size_t>(dice.Between(1, 64))));
    }
  }
}

// Of loops in loops, or of every operation that there is.
v1::Program Woven(Dice& dice) {
  const uint64_t seed = dice.Word() % 100'000;
  if (dice.Below(3) > 0) return conversion::ProgramToProto(sim::woven::Weave(seed).world);
  sim::equality::Random random(seed);
  sim::equality::WorldOptions options;
  options.focus = static_cast<sim::OpCode>(dice.Below(sim::kOpCodeCount));
  options.counts_choices = dice.Below(2) == 0;
  if (dice.Below(4) == 0) options.size = dice.Doubling(10);
  const auto world = sim::equality::MakeRandomWorld(random, options);
  return world.ok() ? conversion::ProgramToProto(world->program)
                    : conversion::ProgramToProto(sim::woven::Weave(seed).world);
}

// Sums in an order drawn by a seed, choices of how loops are differentiated, a path.
// Choices of loops are for programs that have some, or of others now and then.
void AskMore(Message& message, bool has_loops, Dice& dice) {
  const bool shuffles = dice.OneIn(2), records = dice.OneIn(2);
  const bool chooses = dice.OneIn(has_loops ? 2 : 20);
  const auto add_loops = [&](auto& request) {
    const int64_t most = chooses ? dice.Doubling(5) : 0;
    for (int64_t n = 1; n <= most; ++n) {
      v1::LoopDerivative& loop = *request.add_loops();
      loop.set_site("loop" + std::to_string(n));
      if (dice.OneIn(2)) {
        loop.set_truncated(dice.Between(0, 3));
      } else {
        constexpr std::array<const char*, 3> kSolvers = {"lu", "iteration", "gmres"};
        loop.mutable_implicit()->set_solver(kSolvers[static_cast<size_t>(dice.Below(3))]);
        if (dice.OneIn(4)) loop.mutable_implicit()->set_restart(dice.Doubling(10));
        loop.mutable_implicit()->set_max_iter(dice.Doubling(20));
      }
      if (dice.OneIn(2)) break;
    }
  };
  const auto shuffle = [&](v1::Policy& policy) {
    if (!shuffles) return;
    const char* const roles[] = {"dynamics", "objective", "solver", "adjoint"};
    v1::RoleOverride& role = *policy.add_roles();
    role.set_role(roles[dice.Below(4)]);
    role.mutable_setting()->set_order("shuffled(" + std::to_string(dice.Below(1000)) + ")");
  };
  if (auto* describe =
          google::protobuf::DynamicCastToGenerated<v1::DescribeProgramRequest>(&message)) {
    shuffle(*describe->mutable_policy());
    if (records) describe->set_path(dice.OneIn(2) ? v1::PATH_USE_RECORDED : v1::PATH_USE_FORCED);
    add_loops(*describe);
  }
  if (auto* gradient = google::protobuf::DynamicCastToGenerated<v1::GradientRequest>(&message)) {
    shuffle(*gradient->mutable_spec()->mutable_policy());
    gradient->mutable_spec()->mutable_path()->set_record(records);
    add_loops(*gradient);
  }
  if (auto* rollout = google::protobuf::DynamicCastToGenerated<v1::RolloutRequest>(&message)) {
    shuffle(*rollout->mutable_spec()->mutable_policy());
    rollout->mutable_spec()->mutable_path()->set_record(records);
  }
}

// A list of a request, as long as it wants.
HostileMessage LongList(Dice& dice) {
  HostileMessage message;
  message.rpc = Rpc::kGradient;
  v1::GradientRequest request = BallGradient(2, 2);
  v1::RolloutSpec* spec = request.mutable_spec();
  const int64_t n = dice.Doubling(16);
  const int64_t what = dice.Below(7);
  for (int64_t i = 0; i < n; ++i) {
    const std::string name = "n" + std::to_string(i);
    if (what == 0) spec->add_record(name);
    if (what == 1) request.add_wrt()->set_name(name);
    if (what == 2) request.add_weights(1.0);
    if (what == 3) spec->add_instance_ids(static_cast<uint64_t>(i));
    if (what == 4) AddTensor(spec->mutable_params(), name, {1.0}, {});
    if (what == 5) (*spec->mutable_world()->mutable_config())[name].set_number(1);
    if (what == 6) spec->mutable_policy()->add_roles()->set_role(name);
  }
  message.family = "long list " + std::to_string(what) + " of " + std::to_string(n);
  message.request = DeterministicBytes(request);
  return message;
}

// ---- Rollouts that are kept, and their reversals ----

constexpr int64_t kKeptSteps = 20;
constexpr int64_t kKeptInstances = 4;

// Of a shape that is right, or not.
void AddSomeTensor(google::protobuf::RepeatedPtrField<v1::NamedTensor>* list, const char* name,
                   std::vector<int64_t> shape, Dice& dice) {
  if (dice.OneIn(6)) shape[static_cast<size_t>(dice.Below(static_cast<int64_t>(shape.size())))]++;
  if (dice.OneIn(12)) shape.pop_back();
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  AddTensor(list, name, std::vector<double>(static_cast<size_t>(count), 0.5), shape);
}

// Right as long as dice say nothing else.
v1::VjpRequest SomeReversal(Dice& dice, const std::string& handle) {
  v1::VjpRequest request;
  request.set_handle(dice.OneIn(16) ? handle.substr(1) : handle);
  const char* const names[] = {"y", "v", "height", "n0"};
  const int64_t last_state = dice.Below(3), last_trajectory = dice.Below(3);
  for (int64_t n = dice.Below(4); n > 0; --n) {
    v1::Cotangent& cotangent = *request.add_cotangents();
    for (int64_t i = 0; i < last_state; ++i) {
      AddSomeTensor(cotangent.mutable_final_state(), names[i], {kKeptInstances, 1}, dice);
    }
    for (int64_t i = 0; i < last_trajectory; ++i) {
      AddSomeTensor(cotangent.mutable_trajectory(), names[i], {kKeptInstances, kKeptSteps + 1, 1},
                    dice);
    }
  }
  if (dice.OneIn(2)) {
    for (int64_t i = 0; i < kKeptInstances; ++i) request.add_weights(static_cast<double>(i));
  }
  if (dice.OneIn(3)) request.add_wrt()->set_name(names[dice.Below(4)]);
  request.set_return_tree(dice.OneIn(4));
  return request;
}

void LengthenReversal(v1::VjpRequest& request, Dice& dice, std::string& family) {
  const int64_t n = dice.Doubling(16);
  const int64_t what = dice.Below(5);
  // What is larger than any message gRPC refuses, in words of its own.
  constexpr size_t kMostBytes = size_t{48} << 20;
  size_t bytes = 0;
  for (int64_t i = 0; i < n && bytes < kMostBytes; ++i) {
    if (what == 0) {
      request.add_cotangents();
      bytes += request.cotangents(0).ByteSizeLong();
      if (request.cotangents_size() > 1) {
        *request.mutable_cotangents()->rbegin() = request.cotangents(0);
      }
    }
    if (what == 1) request.add_wrt()->set_name("n" + std::to_string(i));
    if (what == 2) request.add_weights(1.0);
    if (what == 3) request.add_loops()->set_truncated(1);
    if (what == 4) *request.mutable_handle() += "0";
  }
  family = "long reversal " + std::to_string(what) + " of " + std::to_string(n);
}

HostileMessage KeptWoven(Dice& dice) {
  const v1::Program program = Woven(dice);
  v1::RolloutRequest request;
  *request.mutable_spec() = SpecOf(program, dice);
  request.mutable_spec()->mutable_policy()->set_preset(kPresets[dice.Below(5)]);
  request.mutable_spec()->set_objective(ObjectiveOf(program));
  v1::KeepOptions& keep = *request.mutable_keep();
  for (const v1::Input& input : program.inputs()) {
    if (dice.OneIn(4)) keep.add_wrt()->set_name(input.name());
    if (dice.OneIn(4)) keep.add_cotangent_final_state(input.name());
    if (dice.OneIn(4)) keep.add_cotangent_trajectory(input.name());
  }
  if (dice.OneIn(4)) keep.add_loops()->set_site("loop1");
  if (dice.OneIn(3)) Spoil(keep, dice);
  return {Rpc::kRollout, DeterministicBytes(request), "kept woven"};
}

}  // namespace

v1::RolloutRequest RolloutToReverse() {
  v1::RolloutRequest request;
  *request.mutable_spec() = BallGradient(kKeptSteps, kKeptInstances).spec();
  request.mutable_keep()->add_cotangent_final_state("y");
  request.mutable_keep()->add_cotangent_trajectory("v");
  return request;
}

HostileMessage MakeHostileReversal(uint64_t seed, uint64_t index, const std::string& handle) {
  Dice dice(~(seed * 0x9E3779B97F4A7C15u + index));
  const int64_t kind = dice.Below(100);
  if (kind < 30) return KeptWoven(dice);
  v1::VjpRequest request = SomeReversal(dice, handle);
  HostileMessage message{Rpc::kVjp, "", "reversal"};
  if (kind >= 50 && kind < 70) {
    for (int64_t n = dice.Between(1, 3); n > 0; --n) Spoil(request, dice);
    message.family = "spoilt reversal";
  }
  if (kind >= 70 && kind < 78) {
    AddUnknown(request, dice);
    message.family = "reversal with an unknown field";
  }
  if (kind >= 78 && kind < 90) LengthenReversal(request, dice, message.family);
  message.request = DeterministicBytes(request);
  if (kind >= 90) {
    Damage(message.request, dice);
    message.family = "damaged reversal";
  }
  return message;
}

HostileMessage MakeHostileMessage(uint64_t seed, uint64_t index) {
  Dice dice(seed * 0x9E3779B97F4A7C15u + index);
  const auto as_it_is = [](Message&) {};
  const auto spoilt = [&](Message& message) {
    for (int64_t n = dice.Between(1, 3); n > 0; --n) Spoil(message, dice);
  };
  std::string family;
  HostileMessage message;
  const int64_t kind = dice.Below(120);
  if (kind >= 100) {
    const auto program = kind < 112   ? ShapedProgram(dice, family)
                         : kind < 115 ? CalledProgram(dice, family)
                         : kind < 118 ? DecidingProgram(dice, family)
                                      : NestedProgram(dice, family);
    message = MessageOf(program, dice, [&](Message& sent) { AskMore(sent, kind >= 118, dice); });
  } else if (kind < 25) {
    message = MessageOf(Woven(dice), dice, as_it_is);
    family = "woven";
  } else if (kind < 55) {
    message = MessageOf(Woven(dice), dice, spoilt);
    family = "woven and spoilt";
  } else if (kind < 65) {
    message = MessageOf(Woven(dice), dice, [&](Message& sent) { AddUnknown(sent, dice); });
    family = "unknown field";
  } else if (kind < 75) {
    message = MessageOf(Woven(dice), dice, as_it_is);
    Damage(message.request, dice);
    family = "damaged bytes";
  } else if (kind < 88) {
    const v1::Program program = NestedProgram(dice, family);
    message = MessageOf(program, dice, as_it_is);
  } else if (kind < 94) {
    const v1::Program program = DoubledProgram(dice, family);
    message = MessageOf(program, dice, as_it_is);
  } else if (kind < 99) {
    message = LongList(dice);
    family = message.family;
  } else {
    const v1::Program program = WideProgram(dice, family);
    message = MessageOf(program, dice, as_it_is);
  }
  message.family = std::move(family);
  return message;
}

HostileMessage MakeHostileComparison(uint64_t seed, uint64_t index) {
  HostileMessage message = MakeHostileMessage(~seed, index);
  for (uint64_t other = index; message.rpc == Rpc::kDescribe;) {
    other += uint64_t{1} << 32;
    message = MakeHostileMessage(~seed, other);
  }
  Dice dice(seed * 0xD1B54A32D192ED03u + index);
  v1::CompareRequest request;
  if (dice.OneIn(60)) {
    *request.mutable_rollout() = EndlessRollout();
    request.mutable_rollout()->mutable_spec()->set_steps(4);
    request.set_without_paths(true);
    request.add_variants()->set_steps(10'000'000);
    return {Rpc::kCompare, DeterministicBytes(request), "endless variant"};
  }
  const bool is_whole = message.rpc == Rpc::kGradient
                            ? request.mutable_gradient()->ParseFromString(message.request)
                            : request.mutable_rollout()->ParseFromString(message.request);
  message.rpc = Rpc::kCompare;
  if (!is_whole || dice.OneIn(16)) return message;  // the bytes are of another request
  const v1::RolloutSpec& spec =
      request.has_gradient() ? request.gradient().spec() : request.rollout().spec();
  for (int64_t n = dice.OneIn(8) ? dice.Doubling(8) : dice.Between(1, 4); n > 0; --n) {
    v1::Variant& variant = *request.add_variants();
    if (dice.OneIn(2)) variant.mutable_policy()->set_preset(kPresets[dice.Below(5)]);
    if (dice.OneIn(3)) *variant.mutable_world() = spec.world();
    if (dice.OneIn(4)) variant.set_steps(dice.Between(0, 3));
    if (dice.OneIn(4)) variant.set_seed(static_cast<uint64_t>(n));
    if (dice.OneIn(3)) *variant.mutable_params() = spec.params();
    if (dice.OneIn(4)) *variant.mutable_initial() = spec.initial();
    if (dice.OneIn(6)) Spoil(variant, dice);
  }
  request.set_without_paths(dice.OneIn(3));
  if (dice.OneIn(12)) AddUnknown(request, dice);
  message.request = DeterministicBytes(request);
  if (dice.OneIn(12)) Damage(message.request, dice);
  message.family = "compared " + message.family;
  return message;
}

}  // namespace simgrad::server
