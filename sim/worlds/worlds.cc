#include "sim/worlds/worlds.h"

#include "absl/strings/str_cat.h"
#include "sim/worlds/config_reader.h"
#include "sim/worlds/contact.h"

namespace simgrad::sim {
namespace {

using BuildFunction = absl::StatusOr<Program> (*)(const WorldSchema&, const Config&);
constexpr BuildFunction kBuilders[] = {BuildBouncingBall, BuildBoundaryProjection};

}  // namespace

const std::vector<WorldSchema>& BuiltInWorlds() {
  static const auto* const worlds =
      new std::vector<WorldSchema>{BouncingBallSchema(), BoundaryProjectionSchema()};
  return *worlds;
}

const WorldSchema* FindWorld(std::string_view name) {
  for (const WorldSchema& schema : BuiltInWorlds()) {
    if (schema.name == name) return &schema;
  }
  return nullptr;
}

absl::StatusOr<Program> BuildWorld(std::string_view name, const Config& config) {
  const WorldSchema* schema = FindWorld(name);
  if (schema == nullptr) {
    return absl::NotFoundError(absl::StrCat("no world '", std::string(name), "'"));
  }
  if (absl::Status status = CheckConfig(*schema, config); !status.ok()) return status;
  return kBuilders[schema - BuiltInWorlds().data()](*schema, config);
}

}  // namespace simgrad::sim
