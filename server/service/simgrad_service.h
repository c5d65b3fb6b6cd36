// The RPCs of simgrad.v1.Simgrad: each only hands over to what does the work.
//
// Threads: those of CallQueue, so nothing here takes long: a request whose preparation may (its
// size says so) is prepared by workers of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/conversion/program_cache.h"
#include "server/service/contents.h"
#include "server/service/kept_runs.h"
#include "server/service/prepare.h"
#include "server/service/references.h"
#include "server/service/service_call.h"
#include "server/service/streaming_call.h"
#include "simgrad/v1/simgrad.grpc.pb.h"

namespace simgrad::server::service {

// Requests come as bytes and are parsed here: gRPC would answer what does not parse by itself, with
// no word of what was wrong, and uncounted.
class SimgradService final {
 public:
  // `info` is complete but for the ports, which SetPorts adds once they are bound, before any call.
  // `cache`, `kept` and `contents` say how much is kept; its memory is the scheduler's.
  SimgradService(CallContext context, PrepareOptions options, v1::ServerInfo info,
                 conversion::ProgramCacheOptions cache, KeptRunsOptions kept,
                 ContentsOptions contents);
  const conversion::ProgramCache& cache() const { return cache_; }
  const KeptRuns& kept() const { return kept_; }
  const Contents& contents() const { return contents_; }
  int64_t max_upload_bytes() const { return info_.limits().max_upload_bytes(); }
  void SetPorts(int port, int metrics_port);

  void GetServerInfo(const ServiceCall& call, UnaryAnswer& answer);
  void ListWorlds(const ServiceCall& call, UnaryAnswer& answer);
  void DescribeProgram(const ServiceCall& call, UnaryAnswer& answer);
  void Rollout(const ServiceCall& call, StreamAnswer& answer);
  void Gradient(const ServiceCall& call, StreamAnswer& answer);
  void Vjp(const ServiceCall& call, StreamAnswer& answer);
  void Compare(const ServiceCall& call, StreamAnswer& answer);
  void Upload(const ServiceCall& call, UnaryAnswer& answer);

 private:
  ReferenceOptions ReferencesOf(const std::string& caller,
                                const conversion::CompileControl& compile,
                                std::function<bool(int64_t bytes)> take);
  template <class Request>
  absl::StatusOr<PreparedWork> PrepareResolved(
      Request& request, const std::string& caller, const PrepareControl& control,
      const std::function<absl::StatusOr<PreparedWork>(const PrepareOptions& options)>& prepare);
  template <class Request>
  void StreamSpec(const std::string& method, metrics::Mode mode, const ServiceCall& asked,
                  StreamAnswer& answer);

  KeptRuns kept_;
  Contents contents_;
  const CallContext context_;
  const PrepareOptions options_;
  v1::ServerInfo info_;
  absl::StatusOr<grpc::ByteBuffer> info_bytes_, worlds_bytes_;  // which calls share
  conversion::ProgramCache cache_;
};

}  // namespace simgrad::server::service
