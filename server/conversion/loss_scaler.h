// The dynamic loss scale of a request, and what the answer says of the next one.
//
// Maths: precision/loss_scale.h. The server keeps no state: the message holds it. Numbers that are 0 and
//   an empty mode stand for their defaults. Errors: INVALID_ARGUMENT with the field. Threads: pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "precision/loss_scale.h"
#include "sim/engine.h"
#include "simgrad/v1/policy.pb.h"

namespace simgrad::server::conversion {

absl::Status CheckLossScaler(const v1::DynamicLossScale& scaler, const std::string& field);

// Both expect a message that was checked.
double ScaleOf(const v1::DynamicLossScale& scaler);
precision::LossScaleRule RuleOf(const v1::DynamicLossScale& scaler);

// Whether a gradient counts as clean: a guarded scaler looks at what was unscaled too.
bool IsClean(const v1::DynamicLossScale& scaler, const sim::WorkResult& result);
// The state behind a gradient, with the rule, every number filled in.
v1::DynamicLossScale NextScaler(const v1::DynamicLossScale& scaler, bool is_clean);

// A sentence that names the operation and the site where a skipped gradient stopped being finite.
std::string WhySkipped(const sim::WorkResult& result);

}  // namespace simgrad::server::conversion
