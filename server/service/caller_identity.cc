#include "server/service/caller_identity.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace simgrad::server::service {

std::string MetadataOf(const grpc::ServerContextBase& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

std::string AddressOf(const std::string& peer) {
  absl::string_view address = peer;
  if (!absl::ConsumePrefix(&address, "ipv4:") && !absl::ConsumePrefix(&address, "ipv6:")) {
    return peer;
  }
  return absl::StrReplaceAll(address.substr(0, address.rfind(':')),
                             {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
}

absl::StatusOr<std::shared_ptr<scheduling::Caller>> CallerOf(const grpc::ServerContextBase& context,
                                                             TokenGate* tokens,
                                                             scheduling::Callers& callers) {
  if (tokens != nullptr) {
    // Which of them a proxy in between looked at is not for us to guess.
    if (context.client_metadata().count("authorization") > 1) {
      return absl::UnauthenticatedError("send one metadata entry 'authorization', not several");
    }
    auto owner = tokens->Check(MetadataOf(context, "authorization"));
    if (!owner.ok()) return owner.status();
    return callers.Find(owner->name, owner->limits);
  }
  if (const auto auth = context.auth_context(); auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) return callers.Find(std::string(names[0].data(), names[0].size()));
  }
  return callers.Find(AddressOf(context.peer()));
}

}  // namespace simgrad::server::service
