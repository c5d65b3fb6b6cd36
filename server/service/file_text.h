// The text of a file.
//
// Threads: any.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace simgrad::server::service {

// Empty where it cannot be read: a folder opens as a file does, and fails when it is read.
inline std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text ? std::move(text).str() : "";
}

}  // namespace simgrad::server::service
