#include "server/config/parse_flags.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

std::string SetDrainTimeout(const std::string& value, ServerConfig& config) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24)) {
    return "a duration from 0 to 24h, for example 30s";
  }
  config.drain_timeout = duration;
  return "";
}

std::string SetKernelCache(const std::string& value, ServerConfig& config) {
  config.kernel_cache = value;
  return "";
}

std::string SetWarm(const std::string& value, ServerConfig& config) {
  if (value != "true" && value != "false") return "true or false";
  config.warm = value == "true";
  return "";
}

std::string SetFatalExitAfter(const std::string& value, ServerConfig& config) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(1)) {
    return "a duration from 0 to 1h, for example 10s";
  }
  config.fatal_exit_after = duration;
  return "";
}

std::string SetNearBand(const std::string& value, ServerConfig& config) {
  double number = 0;
  if (!absl::SimpleAtod(value, &number) || !std::isfinite(number) || number < 0) {
    return "a finite number of ulps, at least 0";
  }
  config.near_band_ulps = number;
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
      {"threads", "0", "threads of one rollout; 0: all cores",
       Integer(&ServerConfig::threads, 0, 4096)},
      {"workers", "0", "rollouts that run at once; 0: as threads",
       Integer(&ServerConfig::workers, 0, 4096)},
      {"queue_capacity", "64", "requests that may wait",
       Integer(&ServerConfig::queue_capacity, 0, kInt)},
      {"memory_limit_bytes", "0", "memory of all admitted requests; 0: half of the machine",
       Integer(&ServerConfig::memory_limit_bytes, 0, kMany)},
      {"drain_timeout", "30s", "how long running work may take after SIGTERM", SetDrainTimeout},
      {"near_band_ulps", "8", "margins within are counted as near the boundary", SetNearBand},
      {"max_message_bytes", "4194304", "largest message, both directions",
       Integer(&ServerConfig::max_message_bytes, kSmallestMessageLimit, kInt)},
      {"max_steps", "10000000", "largest number of steps of a request",
       Integer(&ServerConfig::max_steps, 1, kMany)},
      {"max_instances", "1048576", "largest number of instances of a request",
       Integer(&ServerConfig::max_instances, 1, kInt)},
      {"program_cache_entries", "256", "lowered programs that are kept",
       Integer(&ServerConfig::program_cache_entries, 1, 1'000'000)},
      {"kernel_cache", "", "folder that keeps compiled GPU kernels", SetKernelCache},
      {"warm", "false", "true: compile the built-in worlds for the GPU at start", SetWarm},
      {"fatal_exit_after", "10s", "how long work may take after a fatal device error",
       SetFatalExitAfter},
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

}  // namespace

absl::StatusOr<ServerConfig> ParseFlags(const std::vector<std::string>& arguments) {
  ServerConfig config;
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (absl::Status status = Apply(argument, seen, config); !status.ok()) return status;
  }
  return config;
}

std::string FlagsHelp() {
  std::string help = "simgrad-server: simulates and differentiates worlds over gRPC.\n\n";
  for (const Flag& flag : Flags()) {
    absl::StrAppend(
        &help, absl::StrFormat("  --%-40s %s\n", flag.name + "=" + flag.default_text, flag.help));
  }
  absl::StrAppend(&help,
                  "\nExit codes: 0 drained, 1 could not start, 2 bad flags, "
                  "3 drained but work had to be cancelled, 4 the device was lost.\n");
  return help;
}

}  // namespace simgrad::server::config
