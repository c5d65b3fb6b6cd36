#include "server/service/tls_files.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/file_text.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

struct OpenSslDeleter {
  void operator()(BIO* x) const { BIO_free(x); }
  void operator()(X509* x) const { X509_free(x); }
  void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
};
using Memory = std::unique_ptr<BIO, OpenSslDeleter>;
using Certificate = std::unique_ptr<X509, OpenSslDeleter>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslDeleter>;

// A server has no one to type a passphrase, so a key that needs one is refused.
int NoPassphrase(char*, int, int, void*) { return 0; }

Memory MemoryOf(const std::string& pem) {
  return Memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// The first certificate; null where there is none, or one after it cannot be read.
Certificate FirstOf(const std::string& pem) {
  ERR_clear_error();
  const Memory memory = MemoryOf(pem);
  Certificate first(PEM_read_bio_X509(memory.get(), nullptr, &NoPassphrase, nullptr));
  if (first == nullptr) return nullptr;
  while (Certificate(PEM_read_bio_X509(memory.get(), nullptr, &NoPassphrase, nullptr)) != nullptr) {
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return at_end ? std::move(first) : nullptr;
}

absl::Status NotReadable(const std::string& flag, const std::string& path,
                         const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", path, ": must be a readable PEM file with ", what));
}

// gRPC asks for the configuration of each connection that begins.
struct Fetcher {
  std::shared_ptr<TlsFiles> files;
  int64_t handed_over = 0;  // version; gRPC calls under a lock of its own
};

grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                grpc_ssl_server_certificate_config** config) {
  auto* const fetcher = static_cast<Fetcher*>(user_data);
  const TlsFiles::Versioned current = fetcher->files->Current();
  if (current.version == fetcher->handed_over) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }
  fetcher->handed_over = current.version;
  const TlsSet& set = current.set;
  const grpc_ssl_pem_key_cert_pair pair = {set.key.c_str(), set.certificate.c_str()};
  // gRPC 1.51 wants roots though it asks no caller for a certificate: then these are not used.
  const std::string& roots = set.client_ca.empty() ? set.certificate : set.client_ca;
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// gRPC's C++ interface has no credentials that ask for their certificates; its C interface does.
class AskingCredentials final : public grpc::ServerCredentials {
 public:
  explicit AskingCredentials(std::shared_ptr<TlsFiles> files) {
    const auto request = files->Current().set.client_ca.empty()
                             ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    // Never freed: gRPC does not say when it asks for the last time. A process has one.
    auto* const fetcher = new Fetcher{std::move(files)};
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, &Fetch, fetcher));
  }
  ~AskingCredentials() override { grpc_server_credentials_release(credentials_); }
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }
  grpc_server_credentials* credentials_;
};

}  // namespace

absl::StatusOr<TlsSet> ReadTlsSet(const config::ServerConfig& config) {
  TlsSet set = {TextOf(config.tls_certificate), TextOf(config.tls_key), "", absl::InfinitePast()};
  const Certificate certificate = FirstOf(set.certificate);
  std::tm utc{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &utc) != 1) {
    return NotReadable("tls_certificate", config.tls_certificate, "a certificate chain");
  }
  set.expiry = absl::FromTimeT(timegm(&utc));
  const Key key(PEM_read_bio_PrivateKey(MemoryOf(set.key).get(), nullptr, &NoPassphrase, nullptr));
  if (key == nullptr) {
    return NotReadable("tls_key", config.tls_key, "a private key without a passphrase");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--tls_key=", config.tls_key,
                                                   ": must be the key of the certificate in ",
                                                   config.tls_certificate));
  }
  if (config.tls_client_ca.empty()) return set;
  auto ca = ReadCa("tls_client_ca", config.tls_client_ca);
  if (!ca.ok()) return ca.status();
  set.client_ca = *std::move(ca);
  return set;
}

absl::StatusOr<std::string> ReadCa(const std::string& flag, const std::string& path) {
  std::string text = TextOf(path);
  if (FirstOf(text) == nullptr) return NotReadable(flag, path, "the certificates of a CA");
  return text;
}

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Create(const config::ServerConfig& config) {
  auto set = ReadTlsSet(config);
  if (!set.ok()) return set.status();
  std::shared_ptr<TlsFiles> files(new TlsFiles(config));
  files->current_.set = *std::move(set);
  return files;
}

bool TlsFiles::Refresh() {
  auto set = ReadTlsSet(config_);
  // Files that are being replaced may be read as a pair that does not fit; a moment later they do.
  if (!set.ok()) set = ReadTlsSet(config_);
  std::lock_guard lock(mutex_);
  if (!set.ok()) {
    const std::string complaint(set.status().message());
    if (complaint != std::exchange(complaint_, complaint)) {
      LogNote(LogLevel::kWarning,
              absl::StrCat(complaint, "; the certificate known before stays in use"));
    }
    return false;
  }
  complaint_.clear();
  if (*set == current_.set) return true;
  current_ = {*std::move(set), current_.version + 1};
  LogNote(LogLevel::kInfo, absl::StrCat("the TLS files were read again; the certificate expires ",
                                        absl::FormatTime(absl::RFC3339_sec, current_.set.expiry,
                                                         absl::UTCTimeZone())));
  return true;
}

absl::Time TlsFiles::expiry() const {
  std::lock_guard lock(mutex_);
  return current_.set.expiry;
}

TlsFiles::Versioned TlsFiles::Current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials(std::shared_ptr<TlsFiles> files) {
  return std::make_shared<AskingCredentials>(std::move(files));
}

}  // namespace simgrad::server::service
