// Whether a port of this machine takes connections and says something.
//
// Plaintext: connects, begins HTTP/2 and waits for the first byte. TLS: the same within a handshake
// that trusts whatever certificate is shown and shows none. Any answer counts, also a refusal, an
// alert or a close: only a port that cannot be connected to, or a silent one, is worth telling.
// What this process lacks to try at all (descriptors, ports of its own) is no failure of the port.
// Threads: any.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

enum class PortSpeaks { kPlaintext, kTls };

// Each of connecting, sending and receiving takes at most `limit`.
// Errors: UNAVAILABLE, DEADLINE_EXCEEDED.
absl::Status TryPort(const std::string& host, int port, PortSpeaks speaks, absl::Duration limit);

}  // namespace simgrad::server::service
