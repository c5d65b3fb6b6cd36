#include "server/conversion/schema.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "server/conversion/enum_names.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::conversion {
namespace {

void WriteConfigValue(const sim::ConfigValue& value, v1::ConfigValue& out) {
  if (const auto* number = std::get_if<double>(&value)) out.set_number(*number);
  if (const auto* word = std::get_if<std::string>(&value)) out.set_word(*word);
  if (const auto* flag = std::get_if<bool>(&value)) out.set_flag(*flag);
}

std::string ConfigTypeName(sim::ConfigType type) {
  switch (type) {
    case sim::ConfigType::kNumber:
      return "number";
    case sim::ConfigType::kInteger:
      return "integer";
    case sim::ConfigType::kWord:
      return "word";
    case sim::ConfigType::kFlag:
      return "flag";
  }
  return "";
}

}  // namespace

validation::ProgramSchema SchemaOf(const sim::Program& program) {
  validation::ProgramSchema schema;
  for (const sim::Input& input : program.inputs) {
    const sim::Type& type = program[input.value].type;
    schema.inputs.Add({ToProto(input.kind), input.name, ToProto(type.element), type.shape,
                       sim::IsDifferentiable(program, input), input.weights});
  }
  for (const sim::Export& exported : program.exports) {
    if (!exported.observable) continue;
    const sim::Type& type = program[exported.value].type;
    schema.observables.Add(
        {v1::INPUT_KIND_UNSPECIFIED, exported.name, ToProto(type.element), type.shape, false});
  }
  for (const sim::Objective& objective : program.objectives) {
    schema.objectives.push_back(objective.name);
  }
  return schema;
}

std::vector<v1::InputSchema> InputSchemasOf(const sim::Program& program) {
  std::vector<v1::InputSchema> schemas;
  for (const sim::Input& input : program.inputs) {
    if (input.kind == sim::InputKind::kConfig || input.kind == sim::InputKind::kStep) continue;
    const sim::Type& type = program[input.value].type;
    v1::InputSchema& schema = schemas.emplace_back();
    schema.set_kind(ToProto(input.kind));
    schema.set_name(input.name);
    schema.set_element(ToProto(type.element));
    schema.mutable_shape()->Add(type.shape.begin(), type.shape.end());
    if (input.default_value) schema.set_default_value(*input.default_value);
    schema.set_differentiable(sim::IsDifferentiable(program, input));
    schema.set_description(input.description);
    schema.set_weights(input.weights);
  }
  return schemas;
}

namespace {

// Writes -1 for the lengths that are those of the config `elements`: another number of them shows which.
void MarkElements(const sim::WorldSchema& world, v1::WorldSchema& schema) {
  const auto named = [](const sim::ConfigField& field) { return field.name == "elements"; };
  if (std::none_of(world.config.begin(), world.config.end(), named)) return;
  const auto other = sim::BuildWorld(world.name, {{"elements", 7.0}});
  if (!other.ok()) return;
  const std::vector<v1::InputSchema> inputs = InputSchemasOf(*other);
  for (int i = 0; i < schema.inputs_size(); ++i) {
    v1::InputSchema& input = *schema.mutable_inputs(i);
    for (int axis = 0; axis < input.shape_size(); ++axis) {
      if (input.shape(axis) != inputs[static_cast<size_t>(i)].shape(axis))
        input.set_shape(axis, -1);
    }
  }
}

}  // namespace

v1::WorldSchema WorldSchemaToProto(const sim::WorldSchema& world, const sim::Program& program) {
  v1::WorldSchema out;
  out.set_name(world.name);
  out.set_description(world.description);
  for (const sim::ConfigField& field : world.config) {
    v1::ConfigSchema* config = out.add_config();
    config->set_name(field.name);
    config->set_type(ConfigTypeName(field.type));
    if (field.default_value)
      WriteConfigValue(*field.default_value, *config->mutable_default_value());
    config->mutable_words()->Add(field.words.begin(), field.words.end());
    config->set_description(field.description);
  }
  for (v1::InputSchema& schema : InputSchemasOf(program)) *out.add_inputs() = std::move(schema);
  MarkElements(world, out);
  for (const sim::Export& exported : program.exports) {
    if (exported.observable) out.add_observables(exported.name);
  }
  for (const sim::Objective& objective : program.objectives) out.add_objectives(objective.name);
  for (const std::string& site : world.termination_sites) out.add_termination_sites(site);
  for (const std::string& site : world.event_sites) out.add_event_sites(site);
  return out;
}

}  // namespace simgrad::server::conversion
