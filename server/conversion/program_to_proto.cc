#include "server/conversion/program_to_proto.h"

#include "server/conversion/enum_names.h"
#include "server/conversion/op_attributes.h"
#include "sim/op/op_info.h"

namespace simgrad::server::conversion {
namespace {

template <class Message>
void AddIds(const std::vector<sim::ValueId>& ids, Message* out) {
  for (sim::ValueId id : ids) out->Add(static_cast<int32_t>(id));
}

void WriteRegion(const sim::Region& region, v1::Region& out);

void WriteOp(const sim::Op& op, v1::Op& out) {
  out.set_code(std::string(sim::InfoOf(op.code).name));
  out.set_role(std::string(precision::RoleName(op.role)));
  out.set_site(op.site);
  AddIds(op.operands, out.mutable_operands());
  AddIds(op.results, out.mutable_results());
  for (const sim::Region& region : op.regions) WriteRegion(region, *out.add_regions());
  out.set_label(op.label);
  WriteAttributes(op, out);
}

void WriteRegion(const sim::Region& region, v1::Region& out) {
  AddIds(region.args, out.mutable_args());
  for (const sim::Op& op : region.ops) WriteOp(op, *out.add_ops());
  AddIds(region.yields, out.mutable_yields());
}

}  // namespace

v1::Program ProgramToProto(const sim::Program& program) {
  v1::Program out;
  out.set_name(program.name);
  out.set_level(std::string(sim::TestLevelName(program.level)));
  for (const sim::Value& value : program.values) {
    v1::Value* message = out.add_values();
    message->set_element(ToProto(value.type.element));
    message->mutable_shape()->Add(value.type.shape.begin(), value.type.shape.end());
    message->set_name(value.name);
  }
  for (const sim::Input& input : program.inputs) {
    v1::Input* message = out.add_inputs();
    message->set_kind(ToProto(input.kind));
    message->set_name(input.name);
    message->set_value(static_cast<int32_t>(input.value));
    if (input.default_value) message->set_default_value(*input.default_value);
    message->set_description(input.description);
    message->set_weights(input.weights);
  }
  if (program.HasInitial()) WriteRegion(program.initial, *out.mutable_initial());
  WriteRegion(program.step, *out.mutable_step());
  for (const sim::Export& exported : program.exports) {
    v1::Export* message = out.add_exports();
    message->set_name(exported.name);
    message->set_value(static_cast<int32_t>(exported.value));
    message->set_observable(exported.observable);
  }
  for (const sim::Objective& objective : program.objectives) {
    v1::Objective* message = out.add_objectives();
    message->set_name(objective.name);
    if (objective.HasStage()) WriteRegion(objective.stage, *message->mutable_stage());
    if (objective.HasTerminal()) WriteRegion(objective.terminal, *message->mutable_terminal());
  }
  return out;
}

}  // namespace simgrad::server::conversion
