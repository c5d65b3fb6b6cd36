#include "sim/backend/cuda/shared_object.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace simgrad::sim::cuda {

absl::StatusOr<SharedObject> SharedObject::Open(const std::vector<std::string>& names) {
  std::string error;
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return SharedObject(handle);
    if (error.empty()) error = dlerror();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot open ", absl::StrJoin(names, " or "), ": ", error));
}

void* SharedObject::Find(const char* name) const { return dlsym(handle_, name); }

}  // namespace simgrad::sim::cuda
