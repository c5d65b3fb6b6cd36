#include "server/conversion/describe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/conversion/cuda_text.h"
#include "server/conversion/program_to_proto.h"
#include "server/conversion/schema.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::conversion {
namespace {

// Every differentiable input, for the objective alone.
sim::AdjointSpec FullAdjoint(const sim::Program& program, const std::string& objective) {
  sim::AdjointSpec spec;
  spec.objective = objective;
  spec.final_state.resize(program.InputsOf(sim::InputKind::kState).size());
  spec.trajectory_state.resize(spec.final_state.size());
  spec.trajectory_export.resize(program.exports.size());
  for (const sim::Input& input : program.inputs) {
    spec.wanted.push_back(sim::IsDifferentiable(program, input));
  }
  return spec;
}

absl::Status CheckObjective(const v1::DescribeProgramRequest& request,
                            const validation::ProgramSchema& schema) {
  const auto& known = schema.objectives;
  if (request.objective().empty()) {
    if (!request.adjoint()) return absl::OkStatus();
    return validation::InvalidField("objective", "an adjoint needs an objective");
  }
  if (std::find(known.begin(), known.end(), request.objective()) != known.end()) {
    return absl::OkStatus();
  }
  return validation::InvalidField(
      "objective", absl::StrCat("unknown objective '", request.objective(), "'; the world has: ",
                                known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

}  // namespace

absl::StatusOr<v1::ListWorldsResponse> ListWorlds() {
  v1::ListWorldsResponse response;
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) {
    const auto program = sim::BuildWorld(world.name, {});
    if (!program.ok()) return program.status();
    *response.add_worlds() = WorldSchemaToProto(world, *program);
  }
  return response;
}

absl::StatusOr<v1::DescribeProgramResponse> DescribeProgram(
    const v1::DescribeProgramRequest& request, ProgramCache& cache, const CompileControl& control) {
  absl::Status status = validation::CheckWorld(request.world(), "world");
  if (status.ok()) status = validation::CheckPolicy(request.policy(), "policy");
  if (!status.ok()) return status;
  const auto world = cache.World(request.world(), "world", control);
  if (!world.ok()) return world.status();
  status = CheckObjective(request, (*world)->schema);
  if (status.ok()) status = CheckCudaTextOptions(request.cuda(), (*world)->schema, "cuda");
  if (!status.ok()) return status;
  std::optional<sim::AdjointSpec> adjoint;
  if (request.adjoint()) adjoint = FullAdjoint((*world)->program, request.objective());
  const auto program =
      cache.Lower(*world, request.policy(), request.objective(), adjoint, "", control);
  if (!program.ok()) return program.status();
  v1::DescribeProgramResponse response;
  response.mutable_program()->ParseFromString((*program)->info);
  *response.mutable_source() = ProgramToProto((*world)->program);
  for (v1::InputSchema& schema : InputSchemasOf((*world)->program)) {
    *response.add_inputs() = std::move(schema);
  }
  if (request.has_cuda()) {
    auto text = CudaTextOf(*(*program)->program, request.cuda());
    if (!text.ok()) return text.status();
    *response.mutable_cuda() = *std::move(text);
  }
  return response;
}

}  // namespace simgrad::server::conversion
