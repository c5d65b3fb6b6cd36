// A shared library that is opened at run time, and its functions.
//
// Errors: FAILED_PRECONDITION with the names that were tried. Threads: any; never closed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace simgrad::sim::cuda {

class SharedObject {
 public:
  // The first of the names that can be opened.
  static absl::StatusOr<SharedObject> Open(const std::vector<std::string>& names);
  // Null where it has no such function.
  void* Find(const char* name) const;

 private:
  explicit SharedObject(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace simgrad::sim::cuda
