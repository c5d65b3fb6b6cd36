// libFuzzer target: bytes that parse as a GradientRequest go through every check, the conversion of
// inline programs, verification and lowering; then the world is described, with the adjoint for
// every input that can have a gradient and with the text of its kernels. Nothing runs, and nothing
// of it may crash, hang or allocate by a number in the message.
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "server/conversion/describe.h"
#include "server/conversion/program_to_proto.h"
#include "server/service/prepare.h"
#include "server/validation/wire_check.h"
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

// Differentiated whole, whatever the request wanted of it.
void Describe(const simgrad::v1::GradientRequest& request, const simgrad::sim::Program& world,
              ProgramCache& cache) {
  simgrad::v1::DescribeProgramRequest describe;
  *describe.mutable_world() = request.spec().world();
  *describe.mutable_policy() = request.spec().policy();
  describe.mutable_cuda();
  for (const simgrad::sim::Objective& objective : world.objectives) {
    describe.set_objective(objective.name);
    describe.set_adjoint(true);
    const auto described = simgrad::server::conversion::DescribeProgram(describe, cache);
    // The text of kernels has operations that it does not know, and no field for them.
    Require(described.ok() || absl::IsInvalidArgument(described.status()) ||
            absl::IsUnimplemented(described.status()));
    break;  // the others cost as much and find little more
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  (void)quiet;
  google::protobuf::io::ArrayInputStream bytes(data, static_cast<int>(size));
  const absl::Status wire =
      simgrad::server::validation::CheckWire<simgrad::v1::GradientRequest>(bytes);
  if (!wire.ok()) {
    CheckRefusal(wire);
    return 0;
  }
  simgrad::v1::GradientRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  ProgramCache cache({.max_entries = 2}, [](ProgramCache::Lookup) {});
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
  Describe(request, world, cache);
  simgrad::v1::GradientRequest again = request;
  again.mutable_spec()->mutable_world()->clear_config();
  *again.mutable_spec()->mutable_world()->mutable_program() =
      simgrad::server::conversion::ProgramToProto(world);
  const auto inlined = simgrad::server::service::Prepare(again, cache, options);
  Require(inlined.ok());
  Require(inlined->program->program->fingerprint == prepared->program->program->fingerprint);
  return 0;
}
