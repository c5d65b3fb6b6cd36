#include "server/validation/weights_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"

namespace simgrad::server::validation {

absl::Status CheckWeights(const Weights& weights) {
  for (int i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i])) continue;
    return InvalidField(absl::StrCat("weights[", i, "]"),
                        absl::StrCat("must be finite, not ", weights[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckWeightCount(const Weights& weights, int64_t instances) {
  if (weights.empty() || weights.size() == instances) return absl::OkStatus();
  return InvalidField(
      "weights", absl::StrCat("has ", weights.size(), " entries; send none or one per instance (",
                              instances, ")"));
}

}  // namespace simgrad::server::validation
