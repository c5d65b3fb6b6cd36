#include "server/conversion/world.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/conversion/program_from_proto.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::conversion {
namespace {

sim::Config ConfigFromProto(const v1::World& world) {
  sim::Config config;
  for (const auto& [name, value] : world.config()) {
    switch (value.value_case()) {
      case v1::ConfigValue::kNumber:
        config[name] = value.number();
        break;
      case v1::ConfigValue::kWord:
        config[name] = value.word();
        break;
      case v1::ConfigValue::kFlag:
        config[name] = value.flag();
        break;
      default:
        break;
    }
  }
  return config;
}

// The program of a configuration that asks for more than a program may be: its places are none of
// the message's, so that the configuration is named.
absl::Status BeyondLimit(const absl::Status& status, const std::string& field) {
  const std::string path = sim::FieldOf(status);
  std::string message(status.message());
  if (message.rfind(path + ": ", 0) == 0) message.erase(0, path.size() + 2);
  const bool of_loops = absl::EndsWith(path, ".max_iter");
  return validation::LimitExceeded(
      absl::StrCat(field, ".config[", of_loops ? "max_iter" : "elements", "]"), message);
}

// Worlds name "config.tol"; in the message it is an entry of a map, "config[tol]".
absl::Status InWorld(const absl::Status& status, const std::string& field) {
  const std::string path = sim::FieldOf(status);
  const std::string prefix = "config.";
  if (sim::IsLimit(status) && path.rfind(prefix, 0) != 0) return BeyondLimit(status, field);
  if (path.rfind(prefix, 0) != 0) {
    return validation::WithReason(sim::InField(field, status), "INVALID_FIELD");
  }
  std::string message(status.message());
  if (message.rfind(path + ": ", 0) == 0) message.erase(0, path.size() + 2);
  return validation::InvalidField(absl::StrCat(field, ".config[", path.substr(prefix.size()), "]"),
                                  message);
}

absl::StatusOr<sim::Program> BuiltIn(const v1::World& world, const std::string& field) {
  if (sim::FindWorld(world.name()) == nullptr) {
    std::string known;
    for (const sim::WorldSchema& schema : sim::BuiltInWorlds()) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", schema.name);
    }
    return validation::InvalidField(
        field + ".name", absl::StrCat("unknown world '", world.name(), "'; one of ", known));
  }
  auto program = sim::BuildWorld(world.name(), ConfigFromProto(world));
  if (!program.ok()) return InWorld(program.status(), field);
  return program;
}

}  // namespace

absl::StatusOr<sim::Program> WorldFromProto(const v1::World& world, const std::string& field,
                                            Compilation& compilation,
                                            const sim::ProgramLimits& limits) {
  if (!world.has_program()) {
    auto program = BuiltIn(world, field);
    if (!program.ok()) return program;
    if (absl::Status status = sim::Verify(*program, limits); !status.ok()) {
      return BeyondLimit(status, field);
    }
    return program;
  }
  auto program = ProgramFromProto(world.program(), limits);
  if (!program.ok()) {
    return validation::WithReason(sim::InField(field + ".program", program.status()),
                                  validation::ReasonOf(program.status()));
  }
  if (absl::Status status = sim::Verify(*program, limits, compilation.budget()); !status.ok()) {
    if (!absl::IsInvalidArgument(status)) return compilation.StatusOf(status, "");
    return compilation.StatusOf(sim::InField(field + ".program", status), "INVALID_PROGRAM");
  }
  return program;
}

std::string WorldLabel(const v1::World& world) {
  const bool built_in = !world.has_program() && sim::FindWorld(world.name()) != nullptr;
  return built_in ? world.name() : "custom";
}

}  // namespace simgrad::server::conversion
