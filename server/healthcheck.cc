#include "server/healthcheck.h"

#include <grpcpp/create_channel.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/service/health_call.h"

namespace simgrad::server {
namespace {

constexpr auto kTimeout = std::chrono::seconds(3);

}  // namespace

absl::Status CheckHealth(const config::ServerConfig& config) {
  if (config.HasTls() && config.health_port == 0) {
    return absl::FailedPreconditionError(
        "--healthcheck speaks plaintext: with TLS it needs --health_port");
  }
  const std::string host = config::HostFromHere(config.address);
  const bool v6 = host.find(':') != std::string::npos;
  const int port = config.health_port != 0 ? config.health_port : config.port;
  const std::string target =
      v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
  grpc::ChannelArguments direct;
  direct.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // that a container engine sets for everyone
  const service::HealthAnswer answer = service::AskHealth(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), direct),
      std::chrono::system_clock::now() + kTimeout);
  if (!answer.status.ok()) {
    return absl::UnavailableError(absl::StrCat(target, ": ", answer.status.error_message()));
  }
  if (answer.serving) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(target, " says that it does not serve"));
}

}  // namespace simgrad::server
