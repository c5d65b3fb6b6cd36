// The RPCs of simgrad.v1.Simgrad: each only hands over to what does the work.
//
// Threads: gRPC's; the callback API, nothing here takes long: a request whose preparation may (its
// size says so) is prepared by workers of their own.
#pragma once

#include <memory>

#include "server/conversion/program_cache.h"
#include "server/service/prepare.h"
#include "server/service/streaming_call.h"
#include "simgrad/v1/simgrad.grpc.pb.h"

namespace simgrad::server::service {

// Requests come as bytes and are parsed here: gRPC would answer what does not parse by itself, with
// no word of what was wrong, and uncounted.
template <class Base>
using RawUnaries =
    v1::Simgrad::WithRawCallbackMethod_GetServerInfo<v1::Simgrad::WithRawCallbackMethod_ListWorlds<
        v1::Simgrad::WithRawCallbackMethod_DescribeProgram<Base>>>;
template <class Base>
using RawStreams =
    v1::Simgrad::WithRawCallbackMethod_Rollout<v1::Simgrad::WithRawCallbackMethod_Gradient<Base>>;

class SimgradService final : public RawUnaries<RawStreams<v1::Simgrad::Service>> {
 public:
  // `info` is complete but for the ports, which SetPorts adds once they are bound.
  // `cache` says how much is kept; its memory is the scheduler's.
  SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                 conversion::ProgramCacheOptions cache);
  const conversion::ProgramCache& cache() const { return cache_; }
  void SetPorts(int port, int metrics_port);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListWorlds(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DescribeProgram(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Rollout(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Gradient(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;

 private:
  absl::StatusOr<v1::DescribeProgramResponse> Describe(const v1::DescribeProgramRequest& request,
                                                       const conversion::CompileControl& control);

  const CallContext context_;
  const PrepareOptions options_;
  v1::ServerInfo info_;
  conversion::ProgramCache cache_;
};

}  // namespace simgrad::server::service
