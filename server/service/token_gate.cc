#include "server/service/token_gate.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

}  // namespace

TokenGate::Digest TokenGate::DigestOf(const std::string& token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<std::unique_ptr<TokenGate>> TokenGate::Create(const std::string& path) {
  std::unique_ptr<TokenGate> gate(new TokenGate(path));
  if (absl::Status status = gate->Read(); !status.ok()) return status;
  return gate;
}

absl::Status TokenGate::Read() {
  std::error_code error;
  changed_ = std::filesystem::last_write_time(path_, error);
  looked_ = absl::Now();
  std::ifstream file(path_);
  std::vector<Digest> tokens;
  for (std::string line; std::getline(file, line);) {
    const std::string token(absl::StripAsciiWhitespace(line));
    if (!token.empty() && token[0] != '#') tokens.push_back(DigestOf(token));
  }
  if (error || tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token_file=", path_, ": must be a readable file with at least one token on a line"));
  }
  tokens_ = std::move(tokens);
  return absl::OkStatus();
}

void TokenGate::ReadIfChanged() {
  if (absl::Now() - looked_ < kLookEvery) return;
  looked_ = absl::Now();
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(path_, error);
  if (!error && changed == changed_) return;
  const absl::Status status = Read();
  if (!status.ok()) {
    // A file that is being written may change once more within the resolution of its time.
    changed_ = std::filesystem::file_time_type::min();
    if (!complained_) {
      LogNote(LogLevel::kWarning,
              absl::StrCat(std::string(status.message()), "; the tokens known before stay good"));
    }
  }
  complained_ = !status.ok();
}

absl::Status TokenGate::Check(const std::string& authorization) {
  constexpr absl::string_view kScheme = "Bearer ";  // in any case, RFC 9110 section 11.1
  absl::string_view token = authorization;
  const bool bearer = absl::StartsWithIgnoreCase(token, kScheme);
  if (bearer) token.remove_prefix(kScheme.size());
  const Digest digest = DigestOf(std::string(token));
  bool known = false;
  {
    std::lock_guard lock(mutex_);
    ReadIfChanged();
    for (const Digest& good : tokens_) {
      known |= CRYPTO_memcmp(good.data(), digest.data(), digest.size()) == 0;
    }
  }
  if (bearer && known) return absl::OkStatus();
  return absl::UnauthenticatedError(
      "this server wants a token: send the metadata entry 'authorization: Bearer TOKEN'");
}

}  // namespace simgrad::server::service
