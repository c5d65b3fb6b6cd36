#include "server/service/transport_security.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/service/token_gate.h"

namespace simgrad::server::service {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct OpenSslDeleter {
  void operator()(X509* x) const { X509_free(x); }
  void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
};
using Certificate = std::unique_ptr<X509, OpenSslDeleter>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslDeleter>;

// A key with a passphrase cannot be used by a server that nobody sits at.
int NoPassphrase(char*, int, int, void*) { return 0; }

template <class Object, class Read>
Object ReadPem(const std::string& path, Read read) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "r"));
  if (file == nullptr) return nullptr;
  return Object(read(file.get(), nullptr, &NoPassphrase, nullptr));
}

absl::Status NotReadable(const std::string& flag, const std::string& path,
                         const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", path, ": must be a readable PEM file with ", what));
}

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  const Certificate certificate = ReadPem<Certificate>(path, &PEM_read_X509);
  std::tm utc{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &utc) != 1) {
    return NotReadable("tls_certificate", path, "a certificate");
  }
  return absl::FromTimeT(timegm(&utc));
}

absl::Status CheckSecurityFiles(const config::ServerConfig& config) {
  if (!config.token_file.empty()) {
    if (auto gate = TokenGate::Create(config.token_file); !gate.ok()) return gate.status();
  }
  if (!config.HasTls()) return absl::OkStatus();
  const Certificate certificate = ReadPem<Certificate>(config.tls_certificate, &PEM_read_X509);
  if (certificate == nullptr) {
    return NotReadable("tls_certificate", config.tls_certificate, "a certificate chain");
  }
  const Key key = ReadPem<Key>(config.tls_key, &PEM_read_PrivateKey);
  if (key == nullptr) {
    return NotReadable("tls_key", config.tls_key, "a private key without a passphrase");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--tls_key=", config.tls_key,
                                                   ": must be the key of the certificate in ",
                                                   config.tls_certificate));
  }
  if (!config.tls_client_ca.empty() &&
      ReadPem<Certificate>(config.tls_client_ca, &PEM_read_X509) == nullptr) {
    return NotReadable("tls_client_ca", config.tls_client_ca, "the certificates of a CA");
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const config::ServerConfig& config) {
  if (!config.HasTls()) return grpc::InsecureServerCredentials();
  const bool mutual = !config.tls_client_ca.empty();
  const auto seconds = static_cast<unsigned>(absl::ToInt64Seconds(config.tls_reload_interval));
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          config.tls_key, config.tls_certificate, config.tls_client_ca, seconds));
  options.watch_identity_key_cert_pairs();
  if (mutual) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace simgrad::server::service
