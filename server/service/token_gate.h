// Lets a call in whose metadata carries one of the bearer tokens of a file.
//
// The file has one token per line; empty lines and lines that begin with # do not count. It is read
// again when it changes; while it cannot be read the tokens known before stay good. Tokens are
// compared by their SHA-256 in constant time, all of them at every call.
// Errors: UNAUTHENTICATED, which says what to send and nothing of what is expected.
// Threads: any. Cost: one hash, and a look at the file's time of change once a second.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

class TokenGate {
 public:
  // Errors: INVALID_ARGUMENT for a file that cannot be read or holds no token.
  static absl::StatusOr<std::unique_ptr<TokenGate>> Create(const std::string& path);

  // `authorization`: the value of that metadata entry, empty where there is none.
  absl::Status Check(const std::string& authorization);

 private:
  using Digest = std::array<unsigned char, 32>;
  explicit TokenGate(std::string path) : path_(std::move(path)) {}
  static Digest DigestOf(const std::string& token);
  absl::Status Read();
  void ReadIfChanged();

  const std::string path_;
  std::mutex mutex_;
  std::vector<Digest> tokens_;
  std::filesystem::file_time_type changed_;
  absl::Time looked_;
  bool complained_ = false;  // told once of a file that cannot be used
};

}  // namespace simgrad::server::service
