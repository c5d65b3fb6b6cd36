// grpc.health.v1.Health, answered from IncomingCalls like every other service of the port: gRPC's
// own would read requests of any size, without a token, beside the bound of uploads.
//
// Check answers NOT_FOUND for a service that was never set; Watch says SERVICE_UNKNOWN of it, and
// each change from then on. The messages are two fields, written by hand: Debian has no
// health.proto.
// Threads: any.
#pragma once

#include <grpcpp/health_check_service_interface.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "server/service/service_call.h"

namespace simgrad::server::service {

// HealthCheckResponse.ServingStatus.
enum class Serving : uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

class HealthWatch;

class HealthService final : public grpc::HealthCheckServiceInterface {
 public:
  // The server as a whole, "", serves until told otherwise.
  HealthService() : status_{{"", Serving::kServing}} {}

  void SetServingStatus(const std::string& service, bool serving) override;
  void SetServingStatus(bool serving) override;
  // Nothing serves any more, and what is set afterwards changes nothing.
  void Shutdown() override;

  void Check(const ServiceCall& call, UnaryAnswer& answer);
  void Watch(const ServiceCall& call, StreamAnswer& answer);

 private:
  friend class HealthWatch;
  Serving StatusOf(const std::string& service) const;  // mutex_ held
  void TellWatches(const std::string& service);        // mutex_ held
  void Forget(HealthWatch* watch);

  std::mutex mutex_;
  std::map<std::string, Serving> status_;
  std::map<std::string, std::set<HealthWatch*>> watches_;
  bool shut_down_ = false;
};

}  // namespace simgrad::server::service
