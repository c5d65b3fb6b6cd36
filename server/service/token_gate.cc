#include "server/service/token_gate.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/scheduling/steady_time.h"
#include "server/service/file_text.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

constexpr std::array<absl::string_view, 5> kKeys = {"name", "weight", "requests",
                                                    "instance_steps_per_second", "memory_bytes"};

// False: the value is not of the kind that the key has.
bool SetLimit(absl::string_view key, absl::string_view value, TokenOwner& owner) {
  scheduling::CallerLimits& limits = owner.limits;
  const auto positive = [&](double& number) {
    return absl::SimpleAtod(value, &number) && std::isfinite(number) && number > 0;
  };
  const auto count = [&](int64_t& number) {
    return absl::SimpleAtoi(value, &number) && number > 0;
  };
  if (key == "weight") return positive(limits.weight);
  if (key == "requests") return count(limits.requests_in_flight);
  if (key == "instance_steps_per_second") return positive(limits.instance_steps_per_second);
  if (key == "memory_bytes") return count(limits.memory_bytes);
  constexpr size_t kLongest = 64;
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  owner.name = std::string(value);
  return key == "name" && !value.empty() && value.size() <= kLongest &&
         std::all_of(value.begin(), value.end(), is_plain);
}

}  // namespace

absl::StatusOr<std::optional<TokenLine>> ParseTokenLine(const std::string& line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r\n\v\f"), absl::SkipEmpty());
  if (words.empty() || words[0][0] == '#') return std::nullopt;
  TokenLine parsed;
  parsed.token = words[0];
  if (!std::all_of(parsed.token.begin(), parsed.token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        "word 1: a token must be of printable ASCII characters, as no call carries others (a byte "
        "order mark is none)");
  }
  std::set<std::string> seen;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const bool known = parts.size() == 2 && seen.insert(parts[0]).second &&
                       SetLimit(parts[0], parts[1], parsed.owner);
    if (known) continue;
    // A word that begins with none of these keys may be a token: it is not told.
    const bool is_key = std::find(kKeys.begin(), kKeys.end(), parts[0]) != kKeys.end();
    return absl::InvalidArgumentError(absl::StrCat(
        "word ", i + 1, is_key ? absl::StrCat(" (", parts[0], ")") : "",
        ": what stands behind a token must be one of name=WORD (letters, digits, '_', '-', '.'), "
        "weight=NUMBER, requests=COUNT, instance_steps_per_second=NUMBER, memory_bytes=COUNT, "
        "each positive and given once"));
  }
  return parsed;
}

TokenGate::Digest TokenGate::DigestOf(const std::string& token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<std::unique_ptr<TokenGate>> TokenGate::Create(const std::string& path) {
  std::unique_ptr<TokenGate> gate(new TokenGate(path));
  gate->looked_ = SteadyNow();
  if (absl::Status status = gate->Take(TextOf(path)); !status.ok()) return status;
  return gate;
}

absl::Status TokenGate::Take(const std::string& text) {
  text_.reset();
  std::istringstream file(text);
  std::vector<Known> tokens;
  std::map<Digest, int> lines;                                             // by token
  std::map<std::string, std::pair<int, scheduling::CallerLimits>> limits;  // by name, with the line
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const auto refused = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("--token_file=", path_, ": line ", number, ", ", why));
    };
    auto parsed = ParseTokenLine(line);
    if (!parsed.ok()) return refused(parsed.status().message());
    if (!*parsed) continue;
    Known known = {DigestOf((*parsed)->token), std::move((*parsed)->owner)};
    known.named = !known.owner.name.empty();
    if (const auto [other, is_new] = lines.emplace(known.digest, number); !is_new) {
      return refused(absl::StrCat("the token of line ", other->second, ": each token stands once"));
    }
    if (known.named) {
      const auto [other, is_new] =
          limits.emplace(known.owner.name, std::pair(number, known.owner.limits));
      if (!is_new && !(other->second.second == known.owner.limits)) {
        return refused(absl::StrCat(
            "name=", known.owner.name, " has other limits in line ", other->second.first,
            ": they are the caller's, and the same with each of its tokens"));
      }
    }
    if (!known.named) {
      known.owner.name =
          absl::StrCat("token-", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(known.digest.data()), 4)));
    }
    tokens.push_back(std::move(known));
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token_file=", path_, ": must be a readable file with at least one token on a line"));
  }
  tokens_ = std::move(tokens);
  text_ = DigestOf(text);
  return absl::OkStatus();
}

void TokenGate::ReadIfChanged() {
  // A clock that was set must not keep tokens good that are revoked.
  const absl::Time now = SteadyNow();
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  const std::string text = TextOf(path_);
  if (text_ == DigestOf(text)) return;
  const absl::Status status = Take(text);
  if (!status.ok()) {
    failed_read_();
    if (!complained_) {
      LogNote(LogLevel::kWarning,
              absl::StrCat(std::string(status.message()), "; the tokens known before stay good"));
    }
  }
  complained_ = !status.ok();
}

std::vector<std::string> TokenGate::names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Known& known : tokens_) {
    // An owner may have several tokens.
    const bool is_new = std::find(names.begin(), names.end(), known.owner.name) == names.end();
    if (known.named && is_new) names.push_back(known.owner.name);
  }
  return names;
}

absl::StatusOr<TokenOwner> TokenGate::Check(const std::string& authorization) {
  constexpr absl::string_view kScheme = "Bearer ";  // in any case, RFC 9110 section 11.1
  absl::string_view token = authorization;
  const bool bearer = absl::StartsWithIgnoreCase(token, kScheme);
  if (bearer) token.remove_prefix(kScheme.size());
  const Digest digest = DigestOf(std::string(token));
  std::optional<TokenOwner> owner;
  {
    std::lock_guard lock(mutex_);
    ReadIfChanged();
    for (const Known& good : tokens_) {
      if (CRYPTO_memcmp(good.digest.data(), digest.data(), digest.size()) == 0) owner = good.owner;
    }
  }
  if (bearer && owner) return *std::move(owner);
  return absl::UnauthenticatedError(
      "this server wants a token: send the metadata entry 'authorization: Bearer TOKEN'");
}

}  // namespace simgrad::server::service
