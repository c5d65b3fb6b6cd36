#include "server/conversion/program_from_proto.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/conversion/enum_names.h"
#include "server/conversion/op_attributes.h"
#include "server/validation/request_error.h"
#include "sim/op/op_info.h"

namespace simgrad::server::conversion {
namespace {

using validation::InvalidField;
using validation::LimitExceeded;

std::string At(const std::string& list, int index) { return absl::StrCat(list, "[", index, "]"); }

// Number of elements of a shape within the limit, so that no later product overflows.
absl::Status CheckShape(const google::protobuf::RepeatedField<int64_t>& shape, int64_t limit,
                        const std::string& field) {
  int64_t count = 1;
  for (int i = 0; i < shape.size(); ++i) {
    const int64_t dim = shape[i];
    if (dim < 0) {
      return InvalidField(At(field, i), absl::StrCat("a dimension is at least 0, not ", dim));
    }
    if (dim > limit || count > limit / std::max<int64_t>(dim, 1)) {
      return LimitExceeded(field, absl::StrCat("more than ", limit, " elements"));
    }
    count *= std::max<int64_t>(dim, 1);
  }
  return absl::OkStatus();
}

class Reader {
 public:
  Reader(const v1::Program& message, const sim::ProgramLimits& limits)
      : message_(message), limits_(limits) {}

  absl::StatusOr<sim::Program> Run() {
    program_.name = message_.name();
    absl::Status status = ReadValues();
    if (status.ok()) status = ReadInputs();
    if (status.ok()) status = ReadUseful(message_.initial(), "initial", program_.initial);
    if (status.ok()) status = ReadRegion(message_.step(), "step", 0, program_.step);
    if (status.ok()) status = ReadLevel();
    if (status.ok()) status = ReadExports();
    if (status.ok()) status = ReadObjectives();
    if (!status.ok()) return status;
    return std::move(program_);
  }

 private:
  absl::Status ReadValues() {
    if (message_.values_size() > limits_.max_values) {
      return LimitExceeded("values", absl::StrCat(message_.values_size(), " values, the limit is ",
                                                  limits_.max_values));
    }
    for (int i = 0; i < message_.values_size(); ++i) {
      const v1::Value& value = message_.values(i);
      const auto element = FromProto(value.element());
      if (!element) {
        return InvalidField(At("values", i) + ".element",
                            absl::StrCat("unknown element type ", static_cast<int>(value.element()),
                                         "; one of REAL, I32, I64, BOOL, U32, U8"));
      }
      absl::Status status =
          CheckShape(value.shape(), limits_.max_elements, At("values", i) + ".shape");
      if (!status.ok()) return status;
      program_.AddValue({*element, sim::Shape(value.shape().begin(), value.shape().end())},
                        value.name());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<sim::ValueId> ReadId(int32_t id, const std::string& field) const {
    if (id < 0 || id >= message_.values_size()) {
      return InvalidField(
          field, absl::StrCat("value ", id, " does not exist; there are ", message_.values_size()));
    }
    return static_cast<sim::ValueId>(id);
  }

  absl::Status ReadIds(const google::protobuf::RepeatedField<int32_t>& ids,
                       const std::string& field, std::vector<sim::ValueId>& out) {
    operands_ += ids.size();
    if (operands_ > limits_.max_total_operands) {
      return LimitExceeded(field, absl::StrCat("more than ", limits_.max_total_operands,
                                               " operands, results, arguments and yields in all"));
    }
    for (int i = 0; i < ids.size(); ++i) {
      // The path is spelt out only where it is needed: this runs for every operand.
      if (ids[i] < 0 || ids[i] >= message_.values_size())
        return ReadId(ids[i], At(field, i)).status();
      out.push_back(static_cast<sim::ValueId>(ids[i]));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckCount(int count, int64_t limit, const std::string& field) {
    if (count <= limit) return absl::OkStatus();
    return LimitExceeded(field, absl::StrCat(count, " ", field, ", the limit is ", limit));
  }

  absl::Status ReadInputs() {
    absl::Status few = CheckCount(message_.inputs_size(), limits_.max_values, "inputs");
    if (!few.ok()) return few;
    for (int i = 0; i < message_.inputs_size(); ++i) {
      const v1::Input& input = message_.inputs(i);
      const std::string path = At("inputs", i);
      const auto kind = FromProto(input.kind());
      if (!kind) {
        return InvalidField(path + ".kind",
                            absl::StrCat("unknown input kind ", static_cast<int>(input.kind()),
                                         "; one of STATE, PARAM, CONTROL, DATA, CONFIG, STEP"));
      }
      if (*kind == sim::InputKind::kStep && input.has_default_value()) {
        return InvalidField(path + ".default_value",
                            "the step is counted by the server; leave it out");
      }
      const auto value = ReadId(input.value(), path + ".value");
      if (!value.ok()) return value.status();
      sim::Input& read = program_.inputs.emplace_back();
      read.kind = *kind;
      read.name = input.name();
      read.value = *value;
      if (input.has_default_value()) read.default_value = input.default_value();
      read.description = input.description();
      read.weights = input.weights();
    }
    return absl::OkStatus();
  }

  absl::Status ReadRegion(const v1::Region& region, const std::string& path, int64_t depth,
                          sim::Region& out) {
    if (depth > limits_.max_depth) {
      return LimitExceeded(path, absl::StrCat("regions nest deeper than ", limits_.max_depth));
    }
    absl::Status status = ReadIds(region.args(), path + ".args", out.args);
    if (status.ok()) status = ReadIds(region.yields(), path + ".yields", out.yields);
    if (!status.ok()) return status;
    operations_ += region.ops_size();
    if (operations_ > limits_.max_operations) {
      return LimitExceeded(path + ".ops",
                           absl::StrCat("more than ", limits_.max_operations, " operations"));
    }
    for (int i = 0; i < region.ops_size(); ++i) {
      status = ReadOp(region.ops(i), At(path + ".ops", i), depth, out.ops.emplace_back());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A region that may be left out: what does not yield would not run.
  absl::Status ReadUseful(const v1::Region& region, const std::string& path, sim::Region& out) {
    if (region.yields_size() == 0 && (region.ops_size() > 0 || region.args_size() > 0)) {
      return InvalidField(path + ".yields",
                          "is empty, so nothing of the region would run; yield what it computes");
    }
    return ReadRegion(region, path, 0, out);
  }

  absl::Status ReadOp(const v1::Op& op, const std::string& path, int64_t depth, sim::Op& out) {
    const auto code = sim::OpFromName(op.code());
    if (!code) {
      return InvalidField(path + ".code",
                          "unknown operation '" + op.code() + "'; docs/programs.md lists them");
    }
    out.code = *code;
    if (!op.role().empty()) {
      const auto role = precision::RoleFromName(op.role());
      if (!role) {
        return InvalidField(path + ".role", "unknown role '" + op.role() +
                                                "'; one of state, dynamics, solver, termination, "
                                                "event, network, objective");
      }
      out.role = *role;
    }
    out.site = op.site();
    out.label = op.label();
    absl::Status status = ReadIds(op.operands(), path + ".operands", out.operands);
    if (status.ok()) status = ReadIds(op.results(), path + ".results", out.results);
    if (status.ok()) status = ReadAttributes(op, *code, path, out.attributes);
    if (!status.ok()) return status;
    for (int i = 0; i < op.regions_size(); ++i) {
      status = ReadRegion(op.regions(i), At(path + ".regions", i), depth + 1,
                          out.regions.emplace_back());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadAttributes(const v1::Op& op, sim::OpCode code, const std::string& path,
                              sim::Attributes& out) {
    literals_ += op.literal_size();
    if (literals_ > limits_.max_literal_elements) {
      return LimitExceeded(
          path + ".literal",
          absl::StrCat("more than ", limits_.max_literal_elements, " numbers in literals"));
    }
    absl::Status status = CheckShape(op.shape(), limits_.max_elements, path + ".shape");
    return status.ok() ? conversion::ReadAttributes(op, code, path, out) : status;
  }

  absl::Status ReadLevel() {
    for (const auto level : {sim::TestLevel::kDeclared, sim::TestLevel::kLoops,
                             sim::TestLevel::kDecisions, sim::TestLevel::kAll}) {
      if (message_.level() != sim::TestLevelName(level)) continue;
      program_.level = level;
      return absl::OkStatus();
    }
    return InvalidField("level", absl::StrCat("unknown level '", message_.level(),
                                              "'; one of loops, decisions, all, or empty"));
  }

  absl::Status ReadExports() {
    absl::Status few = CheckCount(message_.exports_size(), limits_.max_exports, "exports");
    if (!few.ok()) return few;
    for (int i = 0; i < message_.exports_size(); ++i) {
      const v1::Export& message = message_.exports(i);
      const auto value = ReadId(message.value(), At("exports", i) + ".value");
      if (!value.ok()) return value.status();
      program_.exports.push_back({message.name(), *value, message.observable()});
    }
    return absl::OkStatus();
  }

  absl::Status ReadObjectives() {
    absl::Status few = CheckCount(message_.objectives_size(), limits_.max_objectives, "objectives");
    if (!few.ok()) return few;
    for (int i = 0; i < message_.objectives_size(); ++i) {
      const v1::Objective& message = message_.objectives(i);
      const std::string path = At("objectives", i);
      sim::Objective& objective = program_.objectives.emplace_back();
      objective.name = message.name();
      absl::Status status = ReadUseful(message.stage(), path + ".stage", objective.stage);
      if (status.ok()) {
        status = ReadUseful(message.terminal(), path + ".terminal", objective.terminal);
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const v1::Program& message_;
  const sim::ProgramLimits& limits_;
  sim::Program program_;
  int64_t operations_ = 0;
  int64_t operands_ = 0;
  int64_t literals_ = 0;
};

}  // namespace

absl::StatusOr<sim::Program> ProgramFromProto(const v1::Program& message,
                                              const sim::ProgramLimits& limits) {
  return Reader(message, limits).Run();
}

}  // namespace simgrad::server::conversion
