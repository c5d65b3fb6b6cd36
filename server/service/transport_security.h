// TLS of the gRPC port: credentials from PEM files that are read again when they change.
//
// Replace the files atomically (a renamed folder or a changed symlink, as Kubernetes does with
// secrets): certificate and key are then read as one pair. Connections that exist stay; new ones
// get the new certificate. A caller's certificate is asked for where there is a client CA.
// Errors: INVALID_ARGUMENT with the flag for a file that cannot be read or parsed, or a key that
// does not
//   belong to the certificate. Threads: any.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/server_config.h"

namespace simgrad::server::service {

// Whether the TLS files and the token file of a configuration can be used. Nothing is kept.
absl::Status CheckSecurityFiles(const config::ServerConfig& config);

// Plaintext without TLS in the configuration.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const config::ServerConfig& config);

// When the first certificate of a PEM file expires.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace simgrad::server::service
