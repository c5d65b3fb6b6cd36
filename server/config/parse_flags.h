// Command line to ServerConfig, strictly: `--name=value` and nothing else.
//
// Errors: INVALID_ARGUMENT for an unknown flag, a positional argument, a flag given twice, a value
//   that does not parse or is out of range; the message says what would be right.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"

namespace simgrad::server::config {

// `arguments` without the program's name.
absl::StatusOr<ServerConfig> ParseFlags(const std::vector<std::string>& arguments);

// One line per flag, with its default.
std::string FlagsHelp();

}  // namespace simgrad::server::config
