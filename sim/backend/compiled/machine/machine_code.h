// The functions of an object file, loaded: their pages are written first and executable afterwards.
//
// Errors: INTERNAL with LLVM's words. Threads: load in one; the code may run in any.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace llvm::orc {
class LLJIT;
}

namespace simgrad::sim::compiled {

class MachineCode {
 public:
  static absl::StatusOr<std::unique_ptr<MachineCode>> Load(std::string_view object);
  ~MachineCode();
  // The address of a function; NOT_FOUND where the object has none of this name.
  absl::StatusOr<void*> Find(const std::string& name) const;
  // The memory of the code: pages of code and of constants.
  int64_t bytes() const { return bytes_; }

 private:
  MachineCode() = default;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::set<std::string> names_;
  int64_t bytes_ = 0;
};

}  // namespace simgrad::sim::compiled
