// The built-in worlds: schemas for people and clients, and the programs they build.
//
// Maths: docs/numerics.md section 9. Every world is built with the builder (sim/program/builder.h),
// the same door as a caller's own program.
// Errors: INVALID_ARGUMENT with the field "config.<name>" (sim/program/field_error.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/program/program.h"

namespace simgrad::sim {

using ConfigValue = std::variant<double, std::string, bool>;
using Config = std::map<std::string, ConfigValue>;

enum class ConfigType : uint8_t { kNumber, kInteger, kWord, kFlag };

struct ConfigField {
  std::string name;
  ConfigType type = ConfigType::kNumber;
  std::optional<ConfigValue> default_value;  // unset: may be left out, and then does not apply
  std::vector<std::string> words;            // kWord: what it may be
  std::string description;
};

struct WorldSchema {
  std::string name;
  std::string description;
  std::vector<ConfigField> config;
  std::vector<std::string> termination_sites;  // over all configurations
  std::vector<std::string> event_sites;
};

// In a fixed order.
const std::vector<WorldSchema>& BuiltInWorlds();
const WorldSchema* FindWorld(std::string_view name);

// NOT_FOUND for an unknown name.
absl::StatusOr<Program> BuildWorld(std::string_view name, const Config& config);

}  // namespace simgrad::sim
