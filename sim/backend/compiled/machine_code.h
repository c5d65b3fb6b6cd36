// Machine code of a module, kept as long as this object lives.
//
// Errors: INTERNAL with LLVM's words. Threads: compile in one; the code may run in any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace llvm {
class LLVMContext;
class Module;
namespace orc {
class LLJIT;
}
}  // namespace llvm

namespace simgrad::sim::compiled {

// The vectors of this machine.
enum class Isa : uint8_t { kSse2, kAvx2, kAvx512 };
Isa BestIsa();
int FloatLanes(Isa isa);

enum class Effort : uint8_t { kQuick, kBest };

// What the lanes of a vector hold: instances, or elements of arrays of one instance, whose loops the
// compiler widens.
enum class Mapping : uint8_t { kLanes, kElements };

class MachineCode {
 public:
  static absl::StatusOr<std::unique_ptr<MachineCode>> Compile(
      std::unique_ptr<llvm::LLVMContext> context, std::unique_ptr<llvm::Module> module, Isa isa,
      Effort effort, Mapping mapping = Mapping::kLanes);
  ~MachineCode();
  // The address of a function of the module.
  absl::StatusOr<void*> Find(const std::string& name) const;
  // The module's text after optimisation, for people.
  const std::string& text() const { return text_; }

 private:
  MachineCode() = default;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::string text_;
};

}  // namespace simgrad::sim::compiled
