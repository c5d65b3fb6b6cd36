// How much work a prepared request is, in element-operations (some 10 ns each) with every loop at its cap.
//
// Threads: any.
#pragma once

#include "server/service/prepare.h"

namespace simgrad::server::service {

double WorkAtCaps(const PreparedWork& prepared);

// So few steps that its messages are best sent together at the end, unless they take long.
bool IsSmall(const sim::Work& work);

}  // namespace simgrad::server::service
