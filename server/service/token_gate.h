// Lets a call in whose metadata carries a bearer token of a file, and names the token's owner.
//
// The file has one token per line, and behind it what is to be known of its caller, each once:
//   name=WORD  weight=NUMBER  requests=COUNT  instance_steps_per_second=NUMBER  memory_bytes=COUNT
// A token without a name is a caller called "token-" and the beginning of its digest. Empty lines
// and lines that begin with # do not count. The file is looked at once a second, and another text
// counts at once, whatever its time of change; while it cannot be used the tokens known before stay
// good. Tokens are compared by their SHA-256 in constant time, all of them at every call. Errors:
// UNAUTHENTICATED, which says what to send and nothing of what is expected. Threads: any. Cost: one
// hash, and once a second the file is read and hashed.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduling/caller.h"

namespace simgrad::server::service {

struct TokenOwner {
  std::string name;
  scheduling::CallerLimits limits;
};

// The content of one line of the file; nullopt for a line that does not count.
// Errors: INVALID_ARGUMENT with what would be right.
struct TokenLine {
  std::string token;
  TokenOwner owner;
};
absl::StatusOr<std::optional<TokenLine>> ParseTokenLine(const std::string& line);

class TokenGate {
 public:
  // Errors: INVALID_ARGUMENT with the line, for a file that cannot be read, holds no token or one token
  // twice, or gives one name several limits. No error tells a token.
  static absl::StatusOr<std::unique_ptr<TokenGate>> Create(const std::string& path);

  // `authorization`: the value of that metadata entry, empty where there is none.
  absl::StatusOr<TokenOwner> Check(const std::string& authorization);
  // Calls `told` whenever the file is read again and cannot be used. Before the first Check.
  void OnFailedRead(std::function<void()> told) { failed_read_ = std::move(told); }
  // Names that the file gives, in its order.
  std::vector<std::string> names() const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Known {
    Digest digest;
    TokenOwner owner;
    bool named = false;
  };
  explicit TokenGate(std::string path) : path_(std::move(path)) {}
  static Digest DigestOf(const std::string& token);
  // Takes the tokens of a text; an error leaves those known before.
  absl::Status Take(const std::string& text);
  void ReadIfChanged();

  const std::string path_;
  mutable std::mutex mutex_;
  std::vector<Known> tokens_;
  std::optional<Digest>
      text_;  // the tokens are those of this text; nullopt: the last one was refused
  absl::Time looked_;
  bool complained_ = false;  // told once of a file that cannot be used
  std::function<void()> failed_read_ = [] {};
};

}  // namespace simgrad::server::service
