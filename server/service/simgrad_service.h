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

class SimgradService final : public v1::Simgrad::CallbackService {
 public:
  // `info` is complete but for the ports, which SetPorts adds once they are bound.
  SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                 int64_t cache_entries);
  void SetPorts(int port, int metrics_port);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* ListWorlds(grpc::CallbackServerContext* context,
                                       const v1::ListWorldsRequest* request,
                                       v1::ListWorldsResponse* response) override;
  grpc::ServerUnaryReactor* DescribeProgram(grpc::CallbackServerContext* context,
                                            const v1::DescribeProgramRequest* request,
                                            v1::DescribeProgramResponse* response) override;
  grpc::ServerWriteReactor<v1::RolloutResponse>* Rollout(
      grpc::CallbackServerContext* context, const v1::RolloutRequest* request) override;
  grpc::ServerWriteReactor<v1::GradientResponse>* Gradient(
      grpc::CallbackServerContext* context, const v1::GradientRequest* request) override;

 private:
  absl::StatusOr<v1::DescribeProgramResponse> Describe(const v1::DescribeProgramRequest& request);

  const CallContext context_;
  const PrepareOptions options_;
  v1::ServerInfo info_;
  conversion::ProgramCache cache_;
};

}  // namespace simgrad::server::service
