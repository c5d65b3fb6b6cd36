#include "server/service/serving_state.h"

#include <grpcpp/health_check_service_interface.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/metrics/methods.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {

ServingState::ServingState(metrics::GuardedGauge& ready, std::vector<grpc::Server*> servers)
    : ready_(ready), servers_(std::move(servers)) {}

void ServingState::SetAdmitting(bool admitting) {
  const std::lock_guard lock(mutex_);
  admitting_ = admitting;
  Tell();
}

void ServingState::OnSelfCheck(const absl::Status& outcome) {
  const std::lock_guard lock(mutex_);
  well_ = outcome.ok();
  Tell();
  if (!admitting_) return;
  if (well_) return LogNote(LogLevel::kInfo, "the check of the server itself succeeds again");
  LogNote(LogLevel::kError,
          absl::StrCat("the check of the server itself fails: ", std::string(outcome.message())));
}

void ServingState::Tell() {
  const bool serving = admitting_ && well_;
  ready_.Set(serving ? 1.0 : 0.0);
  for (grpc::Server* const server : servers_) {
    grpc::HealthCheckServiceInterface* const health = server->GetHealthCheckService();
    health->SetServingStatus(serving);
    health->SetServingStatus(metrics::kGrpcService, serving);
  }
}

}  // namespace simgrad::server::service
