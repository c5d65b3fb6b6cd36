// Reads a world's configuration against its schema, one clear error per mistake.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "sim/worlds/worlds.h"

namespace simgrad::sim {

// Checks names, types and words; then the getters cannot fail. Errors: FieldError "config.<name>".
absl::Status CheckConfig(const WorldSchema& schema, const Config& config);

class ConfigReader {
 public:
  ConfigReader(const WorldSchema& schema, const Config& config)
      : schema_(schema), config_(config) {}
  bool Has(std::string_view name) const;  // set, or with a default
  double Number(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  const std::string& Word(std::string_view name) const;
  bool Flag(std::string_view name) const;

 private:
  const ConfigValue* Find(std::string_view name) const;
  const WorldSchema& schema_;
  const Config& config_;
};

}  // namespace simgrad::sim
