// Paths between messages and work.
#pragma once

#include <string_view>

#include "sim/backend/executor.h"
#include "sim/program/path_layout.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

sim::PathUse PathUseOf(const v1::PathOptions& path);
sim::PathUse PathUseOf(v1::PathUse use);  // of a checked message

v1::PathLayout PathLayoutToProto(const sim::PathLayout& layout);

// Whether an input of this name has its numbers from a path; no request sends it by name.
bool IsOfPath(std::string_view input);
// The numbers of such an input; of a checked message.
sim::Binding PathBinding(const v1::Path& path, std::string_view input);

}  // namespace simgrad::server::conversion
