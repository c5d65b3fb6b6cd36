// Command line to ServerConfig, strictly: `--name=value` and nothing else.
//
// Errors: INVALID_ARGUMENT for an unknown flag, a positional argument, a flag given twice, a value
//   that does not parse or is out of range; flags that do not go together (TLS with a certificate
//   but no key, plaintext beyond loopback that nobody has allowed); the message says what would be
//   right.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"

namespace simgrad::server::config {

// `arguments` without the program's name.
absl::StatusOr<ServerConfig> ParseFlags(const std::vector<std::string>& arguments);

// The action that the process is asked for: serve, or one of those that end at once.
enum class Action { kServe, kHelp, kVersion, kValidateConfig, kHealthCheck };

// Takes --help, --version, --validate_config or --healthcheck out of the arguments.
Action TakeAction(std::vector<std::string>& arguments);

// The flags of a simgrad-server in a command line as /proc/PID/cmdline holds it, where an init may
// stand before the server; none where it is another program's.
std::vector<std::string> FlagsInCommandLine(const std::string& command_line);

// Allowed, and probably not meant: one sentence each, with what would be better.
std::vector<std::string> Warnings(const ServerConfig& config);

// One line per flag, with its default.
std::string FlagsHelp();

}  // namespace simgrad::server::config
