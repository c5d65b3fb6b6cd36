// Tells the connections of a port of every call on it, whatever service answers it: health and
// reflection are gRPC's own and need no token.
//
// Threads: gRPC's. Cost: the peer's name once a call, and two look-ups of it.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>

#include "server/service/connections.h"

namespace simgrad::server::service {

// `connections` outlives the server.
void WatchCalls(grpc::ServerBuilder& builder, Connections& connections);

}  // namespace simgrad::server::service
