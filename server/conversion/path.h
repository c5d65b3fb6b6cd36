// Paths between messages and work.
#pragma once

#include "sim/backend/executor.h"
#include "sim/program/path_layout.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

sim::PathUse PathUseOf(const v1::PathOptions& path);
sim::PathUse PathUseOf(v1::PathUse use);  // of a checked message

v1::PathLayout PathLayoutToProto(const sim::PathLayout& layout);

// The input that a forced run reads; of a checked message.
sim::Binding PathBinding(const v1::Path& path);

}  // namespace simgrad::server::conversion
