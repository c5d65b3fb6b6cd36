// The contact worlds of docs/numerics.md section 9: bouncing_ball and boundary_projection.
#pragma once

#include "absl/status/statusor.h"
#include "sim/worlds/worlds.h"

namespace simgrad::sim {

WorldSchema BouncingBallSchema();
WorldSchema BoundaryProjectionSchema();

// The configuration has passed CheckConfig. Errors: numbers out of range.
absl::StatusOr<Program> BuildBouncingBall(const WorldSchema& schema, const Config& config);
absl::StatusOr<Program> BuildBoundaryProjection(const WorldSchema& schema, const Config& config);

}  // namespace simgrad::sim
