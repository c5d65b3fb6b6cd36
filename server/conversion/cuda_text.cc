#include "server/conversion/cuda_text.h"

#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::server::conversion {
namespace {

using sim::cuda::Mapping;

bool MayBePerStep(sim::InputKind kind) {
  return kind == sim::InputKind::kControl || kind == sim::InputKind::kData;
}

}  // namespace

absl::Status CheckCudaTextOptions(const v1::CudaTextOptions& options,
                                  const validation::ProgramSchema& schema,
                                  const std::string& field) {
  if (!v1::CudaMapping_IsValid(options.mapping())) {
    return validation::InvalidField(
        absl::StrCat(field, ".mapping"),
        absl::StrCat("unknown mapping ", static_cast<int>(options.mapping()),
                     "; one of UNSPECIFIED, THREAD_PER_INSTANCE, BLOCK_PER_INSTANCE"));
  }
  std::set<std::string_view> seen;
  for (int i = 0; i < options.per_step_size(); ++i) {
    const std::string& name = options.per_step(i);
    const bool known = schema.inputs.Find(v1::INPUT_KIND_CONTROL, name) != nullptr ||
                       schema.inputs.Find(v1::INPUT_KIND_DATA, name) != nullptr;
    if (known) {
      if (seen.insert(name).second) continue;
      return validation::InvalidField(absl::StrCat(field, ".per_step[", i, "]"),
                                      absl::StrCat("'", name, "' stands twice"));
    }
    return validation::InvalidField(
        absl::StrCat(field, ".per_step[", i, "]"),
        absl::StrCat("no input with a step axis is called '", name, "'; the world has controls ",
                     NamesOf(schema.inputs, v1::INPUT_KIND_CONTROL), " and data ",
                     NamesOf(schema.inputs, v1::INPUT_KIND_DATA)));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CudaText> CudaTextOf(const sim::NumericalProgram& program,
                                        const v1::CudaTextOptions& options) {
  sim::cuda::GenerateOptions generate;
  generate.mapping =
      options.mapping() == v1::CUDA_MAPPING_UNSPECIFIED          ? sim::cuda::ChooseMapping(program)
      : options.mapping() == v1::CUDA_MAPPING_BLOCK_PER_INSTANCE ? Mapping::kBlockPerInstance
                                                                 : Mapping::kThreadPerInstance;
  const std::set<std::string_view> names(options.per_step().begin(), options.per_step().end());
  for (const sim::Input& input : program.program.inputs) {
    generate.per_step.push_back(MayBePerStep(input.kind) && names.count(input.name) > 0);
  }
  auto source = sim::cuda::Generate(program, generate);
  if (!source.ok()) return source.status();
  v1::CudaText text;
  text.set_text(std::move(source->text));
  text.set_mapping(generate.mapping == Mapping::kThreadPerInstance
                       ? v1::CUDA_MAPPING_THREAD_PER_INSTANCE
                       : v1::CUDA_MAPPING_BLOCK_PER_INSTANCE);
  text.mutable_numbers()->Add(source->numbers.begin(), source->numbers.end());
  text.mutable_integers()->Add(source->integers.begin(), source->integers.end());
  return text;
}

}  // namespace simgrad::server::conversion
