// Checks a RolloutSpec against what its program declares: names, ranks, shapes, batch size.
//
// Shapes: the declared rank means shared, one more axis in front means per instance; with per_step
//   one more axis for the steps, after the instances: [instance, time, field shape].
// Errors: INVALID_FIELD, LIMIT_EXCEEDED with the field path below `field`; names come with those
// that exist.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/validation/program_schema.h"
#include "server/validation/request_limits.h"
#include "sim/work_meter.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::validation {

// The number of instances of the batch. Expects that CheckSpec has passed. Throws
// sim::StopRequested.
absl::StatusOr<int64_t> CheckInputs(const v1::RolloutSpec& spec, const ProgramSchema& schema,
                                    const RequestLimits& limits, const std::string& field,
                                    sim::WorkMeter& meter);

// That one time of a recorded field of this shape fits into a message: a trajectory message holds
// whole times, eight bytes at most per element. `path` is the field that an error names.
absl::Status CheckOneTime(const std::string& name, const std::vector<int64_t>& shape,
                          const RequestLimits& limits, const std::string& path);

// That everything is there which the lowered program reads and which has no default.
absl::Status CheckRequired(const v1::RolloutSpec& spec, const std::vector<FieldSchema>& required,
                           const std::string& field);

}  // namespace simgrad::server::validation
