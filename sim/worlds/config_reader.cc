#include "sim/worlds/config_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/program/field_error.h"

namespace simgrad::sim {
namespace {

const ConfigField* FindField(const WorldSchema& schema, std::string_view name) {
  for (const ConfigField& field : schema.config) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

absl::Status CheckValue(const ConfigField& field, const ConfigValue& value) {
  const std::string path = "config." + field.name;
  switch (field.type) {
    case ConfigType::kNumber:
    case ConfigType::kInteger: {
      const double* number = std::get_if<double>(&value);
      if (number == nullptr) return FieldError(path, "must be a number");
      if (!std::isfinite(*number)) {
        return FieldError(path, absl::StrCat("must be finite, is ", *number));
      }
      if (field.type == ConfigType::kInteger &&
          (*number != std::floor(*number) || std::abs(*number) > 9007199254740992.0)) {
        return FieldError(path,
                          absl::StrCat("must be an integer from -2^53 to 2^53, is ", *number));
      }
      return absl::OkStatus();
    }
    case ConfigType::kFlag:
      if (std::get_if<bool>(&value) == nullptr) return FieldError(path, "must be true or false");
      return absl::OkStatus();
    case ConfigType::kWord:
      break;
  }
  const std::string* word = std::get_if<std::string>(&value);
  const std::string words = absl::StrJoin(field.words, ", ");
  if (word == nullptr) return FieldError(path, absl::StrCat("must be one of ", words));
  if (std::find(field.words.begin(), field.words.end(), *word) == field.words.end()) {
    return FieldError(path, absl::StrCat("'", *word, "' is not one of ", words));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConfig(const WorldSchema& schema, const Config& config) {
  for (const auto& [name, value] : config) {
    const ConfigField* field = FindField(schema, name);
    if (field == nullptr) {
      std::vector<std::string> names;
      for (const ConfigField& known : schema.config) names.push_back(known.name);
      return FieldError("config." + name,
                        absl::StrCat("world '", schema.name, "' has no such configuration; it has ",
                                     absl::StrJoin(names, ", ")));
    }
    if (absl::Status status = CheckValue(*field, value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

const ConfigValue* ConfigReader::Find(std::string_view name) const {
  const auto set = config_.find(std::string(name));
  if (set != config_.end()) return &set->second;
  const ConfigField* field = FindField(schema_, name);
  return field != nullptr && field->default_value ? &*field->default_value : nullptr;
}

bool ConfigReader::Has(std::string_view name) const { return Find(name) != nullptr; }
double ConfigReader::Number(std::string_view name) const { return std::get<double>(*Find(name)); }
int64_t ConfigReader::Integer(std::string_view name) const {
  return static_cast<int64_t>(Number(name));
}
const std::string& ConfigReader::Word(std::string_view name) const {
  return std::get<std::string>(*Find(name));
}
bool ConfigReader::Flag(std::string_view name) const { return std::get<bool>(*Find(name)); }

}  // namespace simgrad::sim
