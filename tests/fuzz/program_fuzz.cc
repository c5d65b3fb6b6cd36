// libFuzzer target: bytes that parse as a GradientRequest go through every check, the conversion of
// inline programs, verification and lowering. Nothing runs, and nothing of it may crash, hang or
// allocate by a number in the message.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "server/conversion/program_to_proto.h"
#include "server/service/prepare.h"
#include "sim/program/field_error.h"
#include "sim/program/verify.h"

namespace {

using simgrad::server::conversion::CachedWorld;
using simgrad::server::conversion::ProgramCache;

// What a refusal must be: the caller's fault, and a field to look at.
void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckRefusal(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status));
  Require(!simgrad::sim::FieldOf(status).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  (void)quiet;
  simgrad::v1::GradientRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  ProgramCache cache(2, [](ProgramCache::Lookup) {});
  simgrad::server::service::PrepareOptions options;
  options.limits.max_instances = 4096;
  const auto prepared = simgrad::server::service::Prepare(request, cache, options);
  if (!prepared.ok()) {
    CheckRefusal(prepared.status());
    return 0;
  }
  // An accepted world is verified, and comes back from its message as itself.
  const simgrad::sim::Program& world = prepared->program->world->program;
  Require(simgrad::sim::Verify(world).ok());
  simgrad::v1::GradientRequest again = request;
  again.mutable_spec()->mutable_world()->clear_config();
  *again.mutable_spec()->mutable_world()->mutable_program() =
      simgrad::server::conversion::ProgramToProto(world);
  const auto inlined = simgrad::server::service::Prepare(again, cache, options);
  Require(inlined.ok());
  Require(inlined->program->program->fingerprint == prepared->program->program->fingerprint);
  return 0;
}
