// Tells the connections of a port of the calls that gRPC's own services answer (reflection,
// channelz, the health port); IncomingCall tells of its own. An interceptor makes each step of a
// call go through the completion queue twice, so only calls that need one have it.
//
// Threads: gRPC's. Cost: the peer's name once a call, and two look-ups of it.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>

#include "server/service/connections.h"

namespace simgrad::server::service {

enum class Watched : uint8_t { kAll, kSynchronous };
// `connections` outlives the server.
void WatchCalls(grpc::ServerBuilder& builder, Connections& connections, Watched watched);

}  // namespace simgrad::server::service
