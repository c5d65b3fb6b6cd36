#include "sim/backend/compiled/machine/machine_code.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/Process.h>

#include <utility>

#include "sim/backend/compiled/machine/object_code.h"

namespace simgrad::sim::compiled {
namespace {

absl::Status Internal(std::string_view what, llvm::Error error) {
  return absl::InternalError(std::string(what) + ": " + llvm::toString(std::move(error)));
}

// Sections that are loaded, each on pages of its own kind.
int64_t LoadedBytes(const llvm::object::ObjectFile& object) {
  const int64_t page = llvm::sys::Process::getPageSizeEstimate();  // of some arm64 kernels 64 KiB
  int64_t bytes = 0;
  for (const llvm::object::SectionRef& section : object.sections()) {
    if (section.isText() || section.isData() || section.isBSS()) {
      bytes += static_cast<int64_t>(section.getSize());
    }
  }
  return (bytes + page - 1) / page * page + 2 * page;
}

}  // namespace

MachineCode::~MachineCode() = default;

absl::StatusOr<std::unique_ptr<MachineCode>> MachineCode::Load(std::string_view bytes) {
  const llvm::StringRef text(bytes.data(), bytes.size());
  const llvm::MemoryBufferRef buffer(text, "simgrad");
  auto object = llvm::object::ObjectFile::createObjectFile(buffer);
  if (!object) return Internal("object", object.takeError());
  auto code = std::unique_ptr<MachineCode>(new MachineCode());
  code->bytes_ = LoadedBytes(**object);
  for (const llvm::object::SymbolRef& symbol : (*object)->symbols()) {
    auto name = symbol.getName();
    if (!name) return Internal("symbol", name.takeError());
    code->names_.insert(name->str());
  }
  InitializeTarget();  // a kernel from the folder may be loaded before anything is compiled
  auto jit = llvm::orc::LLJITBuilder().create();
  if (!jit) return Internal("jit", jit.takeError());
  code->jit_ = std::move(*jit);
  if (auto error = code->jit_->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(text))) {
    return Internal("load", std::move(error));
  }
  return code;
}

absl::StatusOr<void*> MachineCode::Find(const std::string& name) const {
  if (names_.count(name) == 0) return absl::NotFoundError(name);
  auto address = jit_->lookup(name);
  if (!address) return Internal(name, address.takeError());
  return address->toPtr<void*>();
}

}  // namespace simgrad::sim::compiled
