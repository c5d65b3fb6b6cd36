// How many file descriptors this process may have, and what connections may take of them.
#pragma once

#include <cstdint>

namespace simgrad::server::service {

// Raises the soft limit to the hard one, and notes in the log where few remain. Returns the limit.
int64_t RaiseDescriptorLimit();

// Connections of the service's port where no flag says how many: two descriptors each, of what
// `descriptors` leave beside files, threads and the other ports.
int64_t ConnectionsWithin(int64_t descriptors);

}  // namespace simgrad::server::service
