// The TLS files of the gRPC port as one set that fits together, read again when they change.
//
// A set is taken only if it can be used: certificates that can be read, a key that belongs to the
// first, a client CA where there is one. Anything else is told once in the log, and the set before
// it stays: a half-written rotation, a missing file or a wrong key costs no caller his connection.
// Threads: any. Cost: the files are read whenever Refresh is called.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/server_config.h"

namespace simgrad::server::service {

struct TlsSet {
  std::string certificate, key, client_ca;  // PEM; client_ca empty: callers show none
  absl::Time expiry;                        // of the first certificate
  bool operator==(const TlsSet&) const = default;
};

// Errors: INVALID_ARGUMENT with the flag for a file that cannot be read or parsed, or a key that
// does not belong to the certificate.
absl::StatusOr<TlsSet> ReadTlsSet(const config::ServerConfig& config);

// The certificates of a CA, as PEM text. `flag` has this path. Errors: as ReadTlsSet.
absl::StatusOr<std::string> ReadCa(const std::string& flag, const std::string& path);

class TlsFiles {
 public:
  // Errors: as ReadTlsSet. The configuration has TLS.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Create(const config::ServerConfig& config);

  // Takes the files as they are now, if they differ from the set in force. Returns whether they can be
  // used.
  bool Refresh();
  // When the certificate in force expires: the one that is presented, whatever the files hold.
  absl::Time expiry() const;

  struct Versioned {
    TlsSet set;
    int64_t version = 1;  // grows with every set taken
  };
  Versioned Current() const;

 private:
  explicit TlsFiles(config::ServerConfig config) : config_(std::move(config)) {}

  const config::ServerConfig config_;
  mutable std::mutex mutex_;
  Versioned current_;
  std::string complaint_;  // the last one told
};

// Credentials that present the set in force when a connection begins; those that exist stay.
std::shared_ptr<grpc::ServerCredentials> TlsCredentials(std::shared_ptr<TlsFiles> files);

}  // namespace simgrad::server::service
