// Finds the caller of a call: the owner of its token, the name in its certificate, or its address.
//
// Threads: any. Cost: a look at the token file once a second, a look-up.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/scheduling/caller.h"
#include "server/service/token_gate.h"

namespace simgrad::server::service {

// `tokens` may be null: then no call needs one. Errors: UNAUTHENTICATED.
absl::StatusOr<std::shared_ptr<scheduling::Caller>> CallerOf(const grpc::ServerContextBase& context,
                                                             TokenGate* tokens,
                                                             scheduling::Callers& callers);

// The name in the certificate of a call's peer, else its address: whoever has no token that counts.
std::string PeerOf(const grpc::ServerContextBase& context);

// The host of "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000", as PeerAddress::host says it: of IPv6
// the network of 64 bits, or one host would be as many callers as it likes. Else as it is.
std::string AddressOf(const std::string& peer);

// One entry of a call's metadata; empty where there is none.
std::string MetadataOf(const grpc::ServerContextBase& context, const char* key);

}  // namespace simgrad::server::service
