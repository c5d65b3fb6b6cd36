#include "server/conversion/describe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/conversion/cuda_text.h"
#include "server/conversion/enum_names.h"
#include "server/conversion/path.h"
#include "server/conversion/program_to_proto.h"
#include "server/conversion/schema.h"
#include "server/conversion/work.h"
#include "server/validation/gradient_check.h"
#include "server/validation/path_check.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::conversion {
namespace {

// The gradient whose adjoint is described, as far as it shapes the program: by names.
v1::GradientRequest GradientOf(const v1::DescribeProgramRequest& request,
                               const sim::Program& program) {
  v1::GradientRequest gradient;
  gradient.mutable_spec()->set_objective(request.objective());
  *gradient.mutable_wrt() = request.wrt();
  for (const sim::Input& input : program.inputs) {
    if (request.wrt_size() > 0 || !sim::IsDifferentiable(program, input)) continue;
    v1::InputName* name = gradient.add_wrt();
    name->set_kind(ToProto(input.kind));
    name->set_name(input.name);
  }
  v1::Cotangent* cotangent = gradient.add_cotangents();
  for (const std::string& name : request.cotangent_final_state()) {
    cotangent->add_final_state()->set_name(name);
  }
  for (const std::string& name : request.cotangent_trajectory()) {
    cotangent->add_trajectory()->set_name(name);
  }
  *gradient.mutable_loops() = request.loops();
  return gradient;
}

absl::Status CheckObjective(const v1::DescribeProgramRequest& request,
                            const validation::ProgramSchema& schema) {
  const auto& known = schema.objectives;
  if (request.objective().empty()) return absl::OkStatus();
  if (std::find(known.begin(), known.end(), request.objective()) != known.end()) {
    return absl::OkStatus();
  }
  return validation::InvalidField(
      "objective", absl::StrCat("unknown objective '", request.objective(), "'; the world has: ",
                                known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

// `field`: the one to leave out, or the world.
absl::Status CheckSize(const std::string& field, size_t bytes, int64_t most_bytes) {
  if (static_cast<int64_t>(bytes) <= most_bytes) return absl::OkStatus();
  return validation::LimitExceeded(
      field, absl::StrCat("the description has at least ", bytes, " bytes, and a message at most ",
                          most_bytes, "; ",
                          field == "world" ? "" : absl::StrCat("ask without ", field, ", or "),
                          "raise --max_message_bytes of the server"));
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
    const v1::DescribeProgramRequest& request, ProgramCache& cache, const CompileControl& control,
    int64_t most_bytes, const NamedWorlds& named) {
  absl::Status status = validation::CheckWorld(request.world(), "world");
  if (status.ok()) status = validation::CheckPolicy(request.policy(), "policy");
  if (!status.ok()) return status;
  const auto world = cache.World(request.world(), "world", control, named);
  if (!world.ok()) return world.status();
  status = CheckObjective(request, (*world)->schema);
  if (status.ok()) status = validation::CheckDescribedAdjoint(request, (*world)->schema);
  if (status.ok()) status = validation::CheckPathUse(request.path(), "path");
  if (status.ok()) status = CheckCudaTextOptions(request.cuda(), (*world)->schema, "cuda");
  if (!status.ok()) return status;
  std::optional<sim::AdjointSpec> adjoint;
  if (request.adjoint()) {
    const sim::Program& primal = (*world)->program;
    adjoint = AdjointSpecFromProto(GradientOf(request, primal), primal);
  }
  const auto program = cache.Lower(*world, request.policy(), request.objective(), adjoint, "",
                                   control, {.path = PathUseOf(request.path())});
  if (!program.ok()) return program.status();
  const std::string& text = (*program)->program->text;
  const std::string large = request.adjoint() ? "adjoint" : "world";
  status = CheckSize(large, (*program)->info.size() + text.size(), most_bytes);
  if (!status.ok()) return status;
  v1::DescribeProgramResponse response;
  response.mutable_program()->ParseFromString((*program)->info);
  response.mutable_program()->set_text(text);
  *response.mutable_source() = ProgramToProto((*world)->program);
  for (v1::InputSchema& schema : InputSchemasOf((*world)->program)) {
    *response.add_inputs() = std::move(schema);
  }
  if (request.has_cuda()) {
    auto cuda = CudaTextOf(*(*program)->program, request.cuda());
    if (!cuda.ok()) return cuda.status();
    *response.mutable_cuda() = *std::move(cuda);
  }
  const size_t cuda_bytes = request.has_cuda() ? response.cuda().ByteSizeLong() : 0;
  const size_t bytes = response.ByteSizeLong();
  status = CheckSize(large, bytes - cuda_bytes, most_bytes);
  if (status.ok()) status = CheckSize("cuda", bytes, most_bytes);
  if (!status.ok()) return status;
  return response;
}

}  // namespace simgrad::server::conversion
