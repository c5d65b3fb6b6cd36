#include "server/service/caller_identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/service/peer_address.h"

namespace simgrad::server::service {

std::string MetadataOf(const grpc::ServerContextBase& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

std::string AddressOf(const std::string& peer) {
  absl::string_view address = peer;
  const bool is_v6 = absl::ConsumePrefix(&address, "ipv6:");
  if (!is_v6 && !absl::ConsumePrefix(&address, "ipv4:")) return peer;
  const std::string host = absl::StrReplaceAll(address.substr(0, address.rfind(':')),
                                               {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  sockaddr_storage socket{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(socket);
  const std::string without_zone = host.substr(0, host.find('%'));
  if (!is_v6 || inet_pton(AF_INET6, without_zone.c_str(), &v6.sin6_addr) != 1) return host;
  v6.sin6_family = AF_INET6;
  return PeerAddressOf(socket).host;
}

absl::StatusOr<std::shared_ptr<scheduling::Caller>> CallerOf(const grpc::ServerContextBase& context,
                                                             TokenGate* tokens,
                                                             scheduling::Callers& callers) {
  if (tokens != nullptr) {
    // A proxy in between may have looked at any of them, so several are refused.
    if (context.client_metadata().count("authorization") > 1) {
      return absl::UnauthenticatedError("send one metadata entry 'authorization', not several");
    }
    auto owner = tokens->Check(MetadataOf(context, "authorization"));
    if (!owner.ok()) return owner.status();
    return callers.Find(owner->name, owner->limits);
  }
  return callers.Find(PeerOf(context));
}

std::string PeerOf(const grpc::ServerContextBase& context) {
  if (const auto auth = context.auth_context(); auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) return std::string(names[0].data(), names[0].size());
  }
  return AddressOf(context.peer());
}

}  // namespace simgrad::server::service
