// The limits of a container on its machine: those of this process's control groups (versions 1
// and 2), which neither the number of processors nor of memory pages tells.
//
// A limit counts wherever it stands between the process's own group and the root. `root` is where
// /proc and /sys are; what cannot be read limits nothing.
#pragma once

#include <cstdint>
#include <filesystem>

namespace simgrad::server::service {

// Bytes; the largest integer where there is no limit.
int64_t ContainerMemoryBytes(const std::filesystem::path& root = "/");
// Processors' worth of time, rounded up; the largest integer where there is no limit.
int ContainerProcessors(const std::filesystem::path& root = "/");

}  // namespace simgrad::server::service
