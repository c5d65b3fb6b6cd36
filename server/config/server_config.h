// The settings of the server at start, as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace simgrad::server::config {

struct ServerConfig {
  std::string address = "127.0.0.1";  // loopback unless told otherwise
  int port = 8001;                    // 0: a free one
  int metrics_port = 8002;            // 0: a free one
  std::string device = "auto";        // auto, cpu, cuda, cuda:N
  int threads = 0;                    // of one rollout; 0: all cores that we may use
  int workers = 0;                    // rollouts that run at once; 0: as `threads`
  int64_t queue_capacity = 64;        // requests that wait
  int64_t memory_limit_bytes = 0;     // of all admitted requests; 0: service::DefaultMemoryBudget
  absl::Duration drain_timeout = absl::Seconds(30);
  double near_band_ulps = 8.0;  // margins within are counted as near the boundary
  // The most of one message of an answer; more is cut. 4 MiB is gRPC's default for receiving, so
  // a client that states nothing can talk to us.
  int64_t max_message_bytes = int64_t{4} << 20;
  // The most of one request, which is never cut: controls per step of some thousand instances fit.
  int64_t max_request_bytes = int64_t{64} << 20;
  // How long a reader may leave one message of its answer untaken before the answer is given up.
  absl::Duration slow_reader_timeout = absl::Seconds(60);
  // The least that a reader must take over that time while its answer waits. A laptop on a bad line
  // takes more.
  int64_t min_read_bytes_per_second = int64_t{16} << 10;
  int64_t max_steps = 10'000'000;
  int64_t max_instances = int64_t{1} << 20;
  int64_t program_cache_entries = 256;
  // Rollouts that callers keep for Vjp: for how long after their last use, of how many bytes in
  // all (0: a quarter of the memory limit), and the name of this server in their handles (empty:
  // that of the machine).
  absl::Duration kept_run_ttl = absl::Minutes(10);
  int64_t kept_run_bytes = 0;
  std::string replica;
  // Content that callers uploaded: for how long after its last use, of how many bytes in all (0: an
  // eighth of the memory limit).
  absl::Duration content_ttl = absl::Minutes(10);
  int64_t content_bytes = 0;
  std::string kernel_cache;  // folder of compiled kernels; empty: none
  bool warm = false;         // compile the kernels of the built-in worlds at start
  // How long after a fatal device error the process ends, so that its supervisor starts it
  // anew.
  absl::Duration fatal_exit_after = absl::Seconds(10);
  // How often the server checks whether it serves, and how long a check may take; infinite: never.
  absl::Duration self_check_interval = absl::Seconds(10);
  std::string log_level = "info";  // of the lines that are written: info, warning, error
  // Log lines of requests that end with one code; more are left out and counted. 0: all are written.
  int64_t log_lines_per_second = 200;

  std::string otlp_endpoint;  // HOST:PORT of a collector of traces; empty: none
  std::string otlp_ca;        // PEM file with the CA of its certificate; empty: plaintext

  // The credentials of connections. TLS needs both files; a client CA makes it mutual.
  std::string tls_certificate, tls_key, tls_client_ca;  // PEM files; empty: none
  absl::Duration tls_reload_interval = absl::Seconds(10);
  std::string token_file;               // bearer tokens, one per line; empty: no tokens
  std::vector<std::string> callers;     // names in certificates that metrics tell apart
  bool allow_insecure = false;          // plaintext beyond loopback, the metrics port too
  bool allow_insecure_metrics = false;  // plaintext beyond loopback, the metrics port alone
  int health_port = 0;                  // plaintext, health service alone; 0: none
  bool reflection = true;
  bool channelz = false;
  int64_t max_metadata_bytes = int64_t{16} << 10;
  int max_concurrent_streams = 1024;  // per connection
  absl::Duration max_connection_age = absl::InfiniteDuration();
  int64_t max_connections = 0;           // 0: what the limit of file descriptors allows
  int64_t max_connections_per_peer = 0;  // 0: half of `max_connections`
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration upload_timeout = absl::Seconds(120);  // from a call's begin to its request's end
  // The most memory that gRPC itself may hold for calls; 0: follows from the memory limit. It has no
  // flag, as it stands behind limits that have: a test makes it small.
  int64_t grpc_memory_bytes = 0;

  bool HasTls() const { return !tls_certificate.empty(); }
};

// Whether only this machine can reach the address.
bool IsLoopback(const std::string& address);

// The host at which this machine reaches a server that listens on the address: all have loopback.
std::string HostFromHere(const std::string& address);

// The smallest of both: a header, a block of one step and a result fit in.
inline constexpr int64_t kSmallestMessageLimit = int64_t{64} << 10;

}  // namespace simgrad::server::config
