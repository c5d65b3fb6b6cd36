#include "server/config/parse_flags.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace simgrad::server::config {
namespace {

// Empty: the value was taken. Otherwise: what would be right.
using Setter = std::function<std::string(const std::string& value, ServerConfig& config)>;

template <class T>
Setter Integer(T ServerConfig::*field, int64_t least, int64_t most) {
  return [=](const std::string& value, ServerConfig& config) -> std::string {
    int64_t number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < least || number > most) {
      return absl::StrCat("an integer from ", least, " to ", most);
    }
    config.*field = static_cast<T>(number);
    return "";
  };
}

// Less would refuse every gradient: a compile asks for 4 MiB at a time, beside work and answer.
std::string SetMemoryLimit(const std::string& value, ServerConfig& config) {
  constexpr int64_t kLeast = int64_t{16} << 20;
  int64_t bytes = 0;
  const bool parsed = absl::SimpleAtoi(value, &bytes);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  const bool in_range = bytes >= kLeast && bytes <= kMost;
  if (!parsed || (bytes != 0 && !in_range)) {
    return absl::StrCat("0, or at least ", kLeast, " bytes and at most ", kMost);
  }
  config.memory_limit_bytes = bytes;
  return "";
}

std::string SetAddress(const std::string& value, ServerConfig& config) {
  if (value.empty()) return "an address of this machine, for example 127.0.0.1 or 0.0.0.0";
  config.address = value;
  return "";
}

std::string SetDevice(const std::string& value, ServerConfig& config) {
  int index = 0;
  const bool indexed =
      value.rfind("cuda:", 0) == 0 && absl::SimpleAtoi(value.substr(5), &index) && index >= 0;
  if (value != "auto" && value != "cpu" && value != "cuda" && !indexed) {
    return "auto, cpu, cuda or cuda:N";
  }
  config.device = value;
  return "";
}

// `zero_is_never`: 0 stands for no limit.
enum class ZeroIs { kZero, kNever };
Setter Duration(absl::Duration ServerConfig::*field, absl::Duration least, ZeroIs zero) {
  return [=](const std::string& value, ServerConfig& config) -> std::string {
    absl::Duration duration;
    const bool parsed = absl::ParseDuration(value, &duration);
    const bool never = parsed && zero == ZeroIs::kNever && duration == absl::ZeroDuration();
    if (!parsed || (!never && duration < least) || duration > absl::Hours(24)) {
      return absl::StrCat("a duration from ", absl::FormatDuration(least), " to 24h",
                          zero == ZeroIs::kNever ? ", or 0 for never" : "", ", for example 30s");
    }
    config.*field = never ? absl::InfiniteDuration() : duration;
    return "";
  };
}

Setter Boolean(bool ServerConfig::*field) {
  return [=](const std::string& value, ServerConfig& config) -> std::string {
    if (value != "true" && value != "false") return "true or false";
    config.*field = value == "true";
    return "";
  };
}

Setter File(std::string ServerConfig::*field) {
  return [=](const std::string& value, ServerConfig& config) -> std::string {
    if (value.empty()) return "the path of a file";
    config.*field = value;
    return "";
  };
}

std::string SetNearBand(const std::string& value, ServerConfig& config) {
  double number = 0;
  if (!absl::SimpleAtod(value, &number) || !std::isfinite(number) || number < 0) {
    return "a finite number of ulps, at least 0";
  }
  config.near_band_ulps = number;
  return "";
}

std::string SetLogLevel(const std::string& value, ServerConfig& config) {
  if (value != "info" && value != "warning" && value != "error") return "info, warning or error";
  config.log_level = value;
  return "";
}

std::string SetCallers(const std::string& value, ServerConfig& config) {
  config.callers = absl::StrSplit(value, ',', absl::SkipEmpty());
  return config.callers.empty() ? "names of callers, with commas between" : "";
}

std::string SetReplica(const std::string& value, ServerConfig& config) {
  constexpr size_t kLongest = 253;  // of a host's name
  const bool fits = value.size() <= kLongest && std::all_of(value.begin(), value.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                             c == '.' || c == '_';
                    });
  if (!fits) return "letters, digits, '-', '.' and '_', at most 253";
  config.replica = value;
  return "";
}

// The port behind the last colon; 0: there is none.
int PortOf(const std::string& endpoint) {
  int port = 0;
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) return 0;
  const std::string digits = endpoint.substr(colon + 1);
  const bool is_port = digits.find_first_not_of("0123456789") == std::string::npos &&
                       absl::SimpleAtoi(digits, &port) && port >= 1 && port <= 65535;
  return is_port ? port : 0;
}

// Whether it is a name, an IPv4 address, or an IPv6 address in brackets.
bool IsHost(const std::string& host) {
  const bool is_v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_v6) {
    in6_addr v6{};
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6) == 1;
  }
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
  });
}

std::string SetOtlpEndpoint(const std::string& value, ServerConfig& config) {
  if (!value.empty() && (PortOf(value) == 0 || !IsHost(value.substr(0, value.rfind(':'))))) {
    return "HOST:PORT without a scheme, for example collector.observability:4317 or [::1]:4317";
  }
  config.otlp_endpoint = value;
  return "";
}

struct Flag {
  std::string name;
  std::string default_text;
  std::string help;
  Setter set;
};

const std::vector<Flag>& Flags() {
  constexpr int64_t kMany = std::numeric_limits<int64_t>::max() / 4;
  // gRPC measures messages with an int.
  constexpr int64_t kInt = std::numeric_limits<int>::max();
  static const auto* const flags = new std::vector<Flag>{
      {"port", "8001", "gRPC port; 0 picks a free one", Integer(&ServerConfig::port, 0, 65535)},
      {"metrics_port", "8002", "port of /metrics; 0 picks a free one",
       Integer(&ServerConfig::metrics_port, 0, 65535)},
      {"address", "127.0.0.1", "address both ports listen on", SetAddress},
      {"device", "auto", "auto, cpu, cuda or cuda:N", SetDevice},
      {"threads", "0", "threads of one rollout; 0: all cores that the container or machine has",
       Integer(&ServerConfig::threads, 0, 4096)},
      {"workers", "0", "rollouts that run at once; 0: as threads",
       Integer(&ServerConfig::workers, 0, 4096)},
      {"queue_capacity", "64", "requests that may wait",
       Integer(&ServerConfig::queue_capacity, 0, kInt)},
      {"memory_limit_bytes", "0",
       "memory of all admitted requests; 0: on the CPU half of the container's or machine's, on "
       "GPUs half of theirs, at most three quarters of the container's or machine's",
       SetMemoryLimit},
      {"drain_timeout", "30s", "how long running work may take after SIGTERM",
       Duration(&ServerConfig::drain_timeout, absl::ZeroDuration(), ZeroIs::kZero)},
      {"near_band_ulps", "8", "margins within are counted as near the boundary", SetNearBand},
      {"max_message_bytes", "4194304", "largest message of an answer; what is larger is cut",
       Integer(&ServerConfig::max_message_bytes, kSmallestMessageLimit, kInt)},
      {"max_request_bytes", "67108864", "largest request",
       Integer(&ServerConfig::max_request_bytes, kSmallestMessageLimit, kInt)},
      {"slow_reader_timeout", "60s",
       "how long a caller may be slower than --min_read_bytes_per_second before its answer is "
       "given up; 0: no limit",
       Duration(&ServerConfig::slow_reader_timeout, absl::Milliseconds(1), ZeroIs::kNever)},
      {"min_read_bytes_per_second", "16384",
       "what a caller that keeps its answer waiting must take over --slow_reader_timeout, else the "
       "answer is given up",
       Integer(&ServerConfig::min_read_bytes_per_second, 0, kMany)},
      {"max_steps", "10000000", "largest number of steps of a request",
       Integer(&ServerConfig::max_steps, 1, kMany)},
      {"max_instances", "1048576", "largest number of instances of a request",
       Integer(&ServerConfig::max_instances, 1, kInt)},
      {"program_cache_entries", "256", "lowered programs that are kept",
       Integer(&ServerConfig::program_cache_entries, 1, 1'000'000)},
      {"kept_run_ttl", "10m", "how long a rollout is kept for Vjp after its last use",
       Duration(&ServerConfig::kept_run_ttl, absl::Seconds(1), ZeroIs::kZero)},
      {"kept_run_bytes", "0",
       "memory of all rollouts that are kept for Vjp; 0: a quarter of the memory limit",
       Integer(&ServerConfig::kept_run_bytes, 0, kMany)},
      {"replica", "", "name of this server in the handles of kept rollouts; empty: the machine's",
       SetReplica},
      {"content_ttl", "10m", "how long uploaded content is kept after its last use",
       Duration(&ServerConfig::content_ttl, absl::Seconds(1), ZeroIs::kZero)},
      {"content_bytes", "0",
       "memory of all uploaded content that is kept; 0: an eighth of the memory limit",
       Integer(&ServerConfig::content_bytes, 0, kMany)},
      {"tls_certificate", "", "PEM file with our certificate chain; needs --tls_key",
       File(&ServerConfig::tls_certificate)},
      {"tls_key", "", "PEM file with its private key", File(&ServerConfig::tls_key)},
      {"tls_client_ca", "", "PEM file; callers must show a certificate that it signed",
       File(&ServerConfig::tls_client_ca)},
      {"tls_reload_interval", "10s", "how often the TLS files are looked at for a change",
       Duration(&ServerConfig::tls_reload_interval, absl::Seconds(1), ZeroIs::kZero)},
      {"token_file", "", "file with bearer tokens, one per line; callers must send one",
       File(&ServerConfig::token_file)},
      {"callers", "",
       "names in callers' certificates that metrics tell apart, with commas between; named tokens "
       "are told apart anyway, at most 20 in all",
       SetCallers},
      {"allow_insecure", "false", "plaintext on an address beyond loopback, metrics included",
       Boolean(&ServerConfig::allow_insecure)},
      {"allow_insecure_metrics", "false", "plaintext metrics on an address beyond loopback",
       Boolean(&ServerConfig::allow_insecure_metrics)},
      {"health_port", "0", "plaintext port with the health service alone; 0: none",
       Integer(&ServerConfig::health_port, 0, 65535)},
      {"reflection", "true", "the gRPC reflection service", Boolean(&ServerConfig::reflection)},
      {"channelz", "false", "the gRPC channelz service", Boolean(&ServerConfig::channelz)},
      {"max_metadata_bytes", "16384", "largest metadata of a call",
       Integer(&ServerConfig::max_metadata_bytes, 1024, 1 << 20)},
      {"max_concurrent_streams", "1024", "calls of one connection at once",
       Integer(&ServerConfig::max_concurrent_streams, 1, 1'000'000)},
      {"max_connection_age", "0", "after which a connection is closed gracefully; 0: no limit",
       Duration(&ServerConfig::max_connection_age, absl::Seconds(1), ZeroIs::kNever)},
      {"max_connections", "0",
       "open connections; 0: what the limit of file descriptors allows, at most 4096",
       Integer(&ServerConfig::max_connections, 0, 1'000'000)},
      {"max_connections_per_peer", "0",
       "open connections of one IPv4 address or IPv6 network of 64 bits; 0: half of all",
       Integer(&ServerConfig::max_connections_per_peer, 0, 1'000'000)},
      {"handshake_timeout", "10s", "after which a connection that does not say hello is closed",
       Duration(&ServerConfig::handshake_timeout, absl::Milliseconds(100), ZeroIs::kZero)},
      {"upload_timeout", "120s", "in which a request must have come completely; 0: no limit",
       Duration(&ServerConfig::upload_timeout, absl::Milliseconds(100), ZeroIs::kNever)},
      {"kernel_cache", "", "folder that keeps compiled kernels", File(&ServerConfig::kernel_cache)},
      {"warm", "false", "compile the built-in worlds for the GPU at start",
       Boolean(&ServerConfig::warm)},
      {"fatal_exit_after", "10s", "how long work may take after a fatal device error",
       Duration(&ServerConfig::fatal_exit_after, absl::ZeroDuration(), ZeroIs::kZero)},
      {"self_check_interval", "10s",
       "how often the server checks whether it serves, and how long a check may take; 0: never",
       Duration(&ServerConfig::self_check_interval, absl::Milliseconds(100), ZeroIs::kNever)},
      {"log_level", "info", "least level of the lines of the log: info, warning or error",
       SetLogLevel},
      {"log_lines_per_second", "200",
       "log lines of requests that end with one code; others are left out and counted; 0: all are "
       "written",
       Integer(&ServerConfig::log_lines_per_second, 0, kMany)},
      {"otlp_endpoint", "",
       "HOST:PORT of a collector that takes traces as OTLP over gRPC; empty: no traces",
       SetOtlpEndpoint},
      {"otlp_ca", "",
       "PEM file; the collector must show a certificate that it signed; without it traces are sent "
       "as plaintext",
       File(&ServerConfig::otlp_ca)},
  };
  return *flags;
}

const Flag* FindFlag(const std::string& name) {
  for (const Flag& flag : Flags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status Apply(const std::string& argument, std::set<std::string>& seen, ServerConfig& config) {
  if (argument.rfind("--", 0) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unexpected argument '", argument, "'; flags are written --name=value, see --help"));
  }
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  const Flag* flag = FindFlag(name);
  if (flag == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown flag '--", name, "'; see --help"));
  }
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --", name, " needs a value: --", name, "=", flag->default_text));
  }
  if (!seen.insert(name).second) {
    return absl::InvalidArgumentError(absl::StrCat("flag --", name, " is given twice"));
  }
  const std::string value = argument.substr(equals + 1);
  const std::string right = flag->set(value, config);
  if (right.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, "=", value, ": must be ", right));
}

// Checks what concerns several flags at once.
absl::Status CheckTogether(const ServerConfig& config) {
  if (config.tls_certificate.empty() != config.tls_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(config.tls_key.empty()
                                                       ? "--tls_certificate needs --tls_key"
                                                       : "--tls_key needs --tls_certificate",
                                                   "; TLS takes both"));
  }
  if (!config.tls_client_ca.empty() && !config.HasTls()) {
    return absl::InvalidArgumentError(
        "--tls_client_ca needs --tls_certificate and --tls_key: without TLS nobody shows one");
  }
  if (!config.callers.empty() && !config.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--callers names the callers that certificates name; with --token_file its names are the "
        "callers: give one of both");
  }
  if (!config.otlp_ca.empty() && config.otlp_endpoint.empty()) {
    return absl::InvalidArgumentError(
        "--otlp_ca needs --otlp_endpoint: without it no traces are sent");
  }
  const int ports[] = {config.port, config.metrics_port, config.health_port};
  for (const int port : ports) {
    if (port != 0 && std::count(std::begin(ports), std::end(ports), port) > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--port, --metrics_port and --health_port must differ: ", port, " is given twice"));
    }
  }
  if (config.allow_insecure || IsLoopback(config.address)) return absl::OkStatus();
  if (!config.HasTls()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--address=", config.address,
                     " is reachable by others: give --tls_certificate and "
                     "--tls_key, or --allow_insecure=true to serve plaintext"));
  }
  if (config.allow_insecure_metrics) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--address=", config.address,
                   " is reachable by others, and /metrics is plaintext: give "
                   "--allow_insecure_metrics=true if that is meant"));
}

}  // namespace

bool IsLoopback(const std::string& address) {
  // A name that begins with 127. may lead anywhere.
  in_addr v4{};
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4) == 1;
  return address == "localhost" || address == "::1" || (is_v4 && ntohl(v4.s_addr) >> 24 == 127);
}

std::string HostFromHere(const std::string& address) {
  if (address == "0.0.0.0") return "127.0.0.1";
  return address == "::" ? "::1" : address;
}

std::vector<std::string> FlagsInCommandLine(const std::string& command_line) {
  constexpr std::string_view kName = "simgrad-server";
  const std::vector<std::string> words = absl::StrSplit(command_line, '\0', absl::SkipEmpty());
  const auto server = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return word == kName || absl::EndsWith(word, absl::StrCat("/", std::string(kName)));
  });
  if (server == words.end()) return {};
  return {server + 1, words.end()};
}

Action TakeAction(std::vector<std::string>& arguments) {
  const std::pair<const char*, Action> actions[] = {{"--help", Action::kHelp},
                                                    {"--version", Action::kVersion},
                                                    {"--validate_config", Action::kValidateConfig},
                                                    {"--healthcheck", Action::kHealthCheck}};
  for (const auto& [name, action] : actions) {
    const auto found = std::find(arguments.begin(), arguments.end(), name);
    if (found == arguments.end()) continue;
    arguments.erase(found);
    return action;
  }
  return Action::kServe;
}

absl::StatusOr<ServerConfig> ParseFlags(const std::vector<std::string>& arguments) {
  ServerConfig config;
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (absl::Status status = Apply(argument, seen, config); !status.ok()) return status;
  }
  if (absl::Status status = CheckTogether(config); !status.ok()) return status;
  return config;
}

std::vector<std::string> Warnings(const ServerConfig& config) {
  std::vector<std::string> warnings;
  if (!config.token_file.empty() && !config.HasTls() && !IsLoopback(config.address)) {
    warnings.push_back(
        absl::StrCat("--token_file with plaintext on --address=", config.address,
                     ": tokens travel in the clear, for whoever can read the network; give "
                     "--tls_certificate and --tls_key"));
  }
  return warnings;
}

std::string FlagsHelp() {
  std::string help = "simgrad-server: simulates and differentiates worlds over gRPC.\n\n";
  for (const Flag& flag : Flags()) {
    absl::StrAppend(
        &help, absl::StrFormat("  --%-40s %s\n", flag.name + "=" + flag.default_text, flag.help));
  }
  absl::StrAppend(
      &help,
      "\nInstead of serving, with the same flags:\n"
      "  --version          prints version and revision, and ends\n"
      "  --validate_config  checks flags and files, and ends\n"
      "  --healthcheck      asks the server on these ports whether it serves, and ends; alone: the "
      "server of this container\n"
      "\nExit codes: 0 drained, 1 could not start (--healthcheck: not serving), 2 bad "
      "flags or files, 3 work had to be cancelled or did not end, 4 the device was lost, 5 the "
      "checks of the server itself failed.\n");
  return help;
}

}  // namespace simgrad::server::config
