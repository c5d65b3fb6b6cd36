#include "server/conversion/op_attributes.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "google/protobuf/reflection.h"
#include "server/conversion/enum_names.h"
#include "server/validation/request_error.h"

namespace simgrad::server::conversion {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;
using sim::Attribute;
using sim::Attributes;
using validation::InvalidField;

// The field of the message, by attribute; null: it has none.
const FieldDescriptor* FieldOf(Attribute attribute) {
  static const auto kFields = [] {
    std::array<const FieldDescriptor*, sim::kAttributeCount> fields{};
    for (size_t i = 0; i < fields.size(); ++i) {
      const std::string name(sim::InfoOf(static_cast<Attribute>(i)).name);
      fields[i] = name.empty() ? nullptr : v1::Op::descriptor()->FindFieldByName(name);
    }
    return fields;
  }();
  return kFields[static_cast<size_t>(attribute)];
}

bool IsSent(const v1::Op& op, const FieldDescriptor* field) {
  const Reflection* reflection = op.GetReflection();
  return field->is_repeated() ? reflection->FieldSize(op, field) > 0
                              : reflection->HasField(op, field);
}

// The value of one attribute; the overloads tell the types apart.
class Reader {
 public:
  Reader(const v1::Op& op, const FieldDescriptor* field, const std::string& path, Attributes& out)
      : op_(op), reflection_(*op.GetReflection()), field_(field), path_(path), out_(out) {}

  absl::Status operator()(std::monostate) const { return absl::OkStatus(); }
  absl::Status operator()(std::vector<double> Attributes::*place) const {
    if (!field_->is_repeated()) {
      out_.*place = {reflection_.GetDouble(op_, field_)};
      return absl::OkStatus();
    }
    const auto sent = reflection_.GetRepeatedFieldRef<double>(op_, field_);
    (out_.*place).assign(sent.begin(), sent.end());
    return absl::OkStatus();
  }
  absl::Status operator()(std::vector<int64_t> Attributes::*place) const {
    const auto sent = reflection_.GetRepeatedFieldRef<int64_t>(op_, field_);
    (out_.*place).assign(sent.begin(), sent.end());
    return absl::OkStatus();
  }
  absl::Status operator()(std::string Attributes::*place) const {
    out_.*place = Text();
    return absl::OkStatus();
  }
  absl::Status operator()(int64_t Attributes::*place) const {
    out_.*place = reflection_.GetInt64(op_, field_);
    return absl::OkStatus();
  }
  absl::Status operator()(int32_t Attributes::*place) const {
    out_.*place = reflection_.GetInt32(op_, field_);
    return absl::OkStatus();
  }
  absl::Status operator()(sim::Bounds Attributes::*place) const {
    const auto bounds = sim::BoundsFromName(Text());
    if (!bounds) return Unknown("bounds", "clip, fill, drop");
    out_.*place = *bounds;
    return absl::OkStatus();
  }
  absl::Status operator()(sim::Combine Attributes::*place) const {
    const auto combine = sim::CombineFromName(Text());
    if (!combine) return Unknown("combination", "set, add, mul, min, max");
    out_.*place = *combine;
    return absl::OkStatus();
  }
  absl::Status operator()(bool Attributes::*place) const {
    out_.*place = reflection_.GetBool(op_, field_);
    return absl::OkStatus();
  }
  absl::Status operator()(sim::CapOrder Attributes::*place) const {
    const bool first = reflection_.GetBool(op_, field_);
    out_.*place = first ? sim::CapOrder::kCapFirst : sim::CapOrder::kTestFirst;
    return absl::OkStatus();
  }
  absl::Status operator()(sim::Comparison Attributes::*place) const {
    const auto comparison = ComparisonFromName(Text());
    if (!comparison) return Unknown("comparison", "lt, le, gt, ge, eq, ne");
    out_.*place = *comparison;
    return absl::OkStatus();
  }
  absl::Status operator()(std::optional<sim::Format> Attributes::*place) const {
    out_.*place = precision::FormatFromName(Text());
    if (out_.*place) return absl::OkStatus();
    const bool is_small = op_.code() == sim::InfoOf(sim::OpCode::kFakeQuantize).name;
    return Unknown("format", is_small ? "e4m3, e5m2" : "f64, f32, bf16, f16, e4m3, e5m2");
  }
  absl::Status operator()(std::optional<sim::Overflow> Attributes::*place) const {
    out_.*place = precision::OverflowFromName(Text());
    return out_.*place ? absl::OkStatus() : Unknown("overflow mode", "ieee, saturate");
  }
  absl::Status operator()(std::optional<sim::CastRounding> Attributes::*place) const {
    out_.*place = precision::CastRoundingFromName(Text());
    return out_.*place ? absl::OkStatus()
                       : Unknown("rounding", "nearest_even, nearest_away, toward_zero, stochastic");
  }

  absl::Status operator()(sim::TestKind Attributes::*place) const {
    const auto kind = sim::TestKindFromName(Text());
    if (!kind) return Unknown("kind of test", "acceptance, membership, halt, guard");
    out_.*place = *kind;
    return absl::OkStatus();
  }

 private:
  std::string Text() const { return reflection_.GetString(op_, field_); }
  absl::Status Unknown(const char* what, const char* known) const {
    return InvalidField(absl::StrCat(path_, ".", std::string(field_->name())),
                        absl::StrCat("unknown ", what, " '", Text(), "'; one of ", known));
  }

  const v1::Op& op_;
  const Reflection& reflection_;
  const FieldDescriptor* field_;
  const std::string& path_;
  Attributes& out_;
};

class Writer {
 public:
  Writer(const Attributes& attributes, const FieldDescriptor* field, v1::Op& out)
      : attributes_(attributes), reflection_(*out.GetReflection()), field_(field), out_(out) {}

  void operator()(std::monostate) const {}
  void operator()(std::vector<double> Attributes::*place) const {
    if (!field_->is_repeated()) {
      if (!(attributes_.*place).empty()) {
        reflection_.SetDouble(&out_, field_, (attributes_.*place)[0]);
      }
      return;
    }
    reflection_.GetMutableRepeatedFieldRef<double>(&out_, field_).CopyFrom(attributes_.*place);
  }
  void operator()(std::vector<int64_t> Attributes::*place) const {
    reflection_.GetMutableRepeatedFieldRef<int64_t>(&out_, field_).CopyFrom(attributes_.*place);
  }
  void operator()(std::string Attributes::*place) const { Text(attributes_.*place); }
  void operator()(int64_t Attributes::*place) const {
    reflection_.SetInt64(&out_, field_, attributes_.*place);
  }
  void operator()(int32_t Attributes::*place) const {
    reflection_.SetInt32(&out_, field_, attributes_.*place);
  }
  void operator()(sim::Bounds Attributes::*place) const {
    Text(std::string(sim::BoundsName(attributes_.*place)));
  }
  void operator()(sim::Combine Attributes::*place) const {
    Text(std::string(sim::CombineName(attributes_.*place)));
  }
  void operator()(bool Attributes::*place) const {
    reflection_.SetBool(&out_, field_, attributes_.*place);
  }
  void operator()(sim::CapOrder Attributes::*place) const {
    reflection_.SetBool(&out_, field_, attributes_.*place == sim::CapOrder::kCapFirst);
  }
  void operator()(sim::Comparison Attributes::*place) const {
    Text(ComparisonName(attributes_.*place));
  }
  void operator()(std::optional<sim::Format> Attributes::*place) const {
    if (attributes_.*place) Text(std::string(precision::FormatName(*(attributes_.*place))));
  }
  void operator()(std::optional<sim::Overflow> Attributes::*place) const {
    if (attributes_.*place) Text(std::string(precision::OverflowName(*(attributes_.*place))));
  }
  void operator()(std::optional<sim::CastRounding> Attributes::*place) const {
    if (attributes_.*place) Text(std::string(precision::CastRoundingName(*(attributes_.*place))));
  }

  void operator()(sim::TestKind Attributes::*place) const {
    Text(std::string(sim::TestKindName(attributes_.*place)));
  }

 private:
  void Text(const std::string& text) const { reflection_.SetString(&out_, field_, text); }

  const Attributes& attributes_;
  const Reflection& reflection_;
  const FieldDescriptor* field_;
  v1::Op& out_;
};

// An attribute that the operation does not have is an error: ignoring it would surprise the caller.
absl::Status CheckNoOther(const v1::Op& op, const sim::OpInfo& info, const std::string& path) {
  for (int i = 0; i < sim::kAttributeCount; ++i) {
    const FieldDescriptor* field = FieldOf(static_cast<Attribute>(i));
    if (field == nullptr || !IsSent(op, field)) continue;
    bool has = false;
    sim::EachAttribute(info.attributes,
                       [&](Attribute known) { has = has || FieldOf(known) == field; });
    if (has) continue;
    const std::string name(field->name());
    return InvalidField(absl::StrCat(path, ".", name),
                        absl::StrCat("'", op.code(), "' has no ", name, "; leave it out"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadAttributes(const v1::Op& op, sim::OpCode code, const std::string& path,
                            sim::Attributes& out) {
  const sim::OpInfo& info = sim::InfoOf(code);
  absl::Status status = CheckNoOther(op, info, path);
  sim::EachAttribute(info.attributes, [&](Attribute attribute) {
    const FieldDescriptor* field = FieldOf(attribute);
    if (!status.ok() || field == nullptr) return;
    if (IsSent(op, field) && attribute == Attribute::kComparison && op.predicate()) {
      status = InvalidField(path + ".comparison", "a predicate stands for it; leave it out");
    } else if (IsSent(op, field)) {
      status = std::visit(Reader(op, field, path, out), sim::InfoOf(attribute).field);
    } else if (attribute == Attribute::kComparison && !op.predicate()) {
      status =
          InvalidField(path + ".comparison",
                       absl::StrCat("'", op.code(), "' compares; one of lt, le, gt, ge, eq, ne"));
    }
  });
  return status;
}

void WriteAttributes(const sim::Op& op, v1::Op& out) {
  sim::EachAttribute(sim::InfoOf(op.code).attributes, [&](Attribute attribute) {
    const FieldDescriptor* field = FieldOf(attribute);
    if (field == nullptr) return;
    if (attribute == Attribute::kComparison && op.attributes.predicate) return;
    std::visit(Writer(op.attributes, field, out), sim::InfoOf(attribute).field);
  });
}

}  // namespace simgrad::server::conversion
