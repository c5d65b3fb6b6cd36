#include "server/validation/input_check.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/request_error.h"
#include "server/validation/tensor_check.h"

namespace simgrad::server::validation {
namespace {

using Tensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

template <class T>
int64_t NumberAt(const v1::Tensor& tensor, size_t i) {
  T value;
  std::memcpy(&value, tensor.inline_().data() + sizeof(T) * i, sizeof(T));
  return value;
}

// Integers of a tensor whose dtype is no real one.
int64_t IntegerAt(const v1::Tensor& tensor, size_t i) {
  switch (tensor.dtype()) {
    case v1::DTYPE_BOOL:
    case v1::DTYPE_U8:
      return NumberAt<uint8_t>(tensor, i);
    case v1::DTYPE_I32:
      return NumberAt<int32_t>(tensor, i);
    case v1::DTYPE_U32:
      return NumberAt<uint32_t>(tensor, i);
    default:
      return NumberAt<int64_t>(tensor, i);
  }
}

// Reals come in any real dtype; integers and bools in any of theirs, where every value fits.
absl::Status CheckElement(const FieldSchema& declared, const v1::Tensor& tensor,
                          const std::string& field, sim::WorkMeter& meter) {
  const bool real = declared.element == v1::ELEMENT_TYPE_REAL;
  if (real != IsRealDType(tensor.dtype())) {
    return InvalidField(field + ".dtype",
                        absl::StrCat("'", declared.name, "' is ", real ? "real" : "integer or bool",
                                     " and does not take ", DTypeLabel(tensor.dtype())));
  }
  if (real) return absl::OkStatus();
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
  if (declared.element == v1::ELEMENT_TYPE_BOOL) {
    least = 0;
    most = 1;
  } else if (declared.element == v1::ELEMENT_TYPE_I32) {
    least = std::numeric_limits<int32_t>::min();
    most = std::numeric_limits<int32_t>::max();
  } else if (declared.element == v1::ELEMENT_TYPE_U32) {
    least = 0;
    most = std::numeric_limits<uint32_t>::max();
  } else if (declared.element == v1::ELEMENT_TYPE_U8) {
    least = 0;
    most = std::numeric_limits<uint8_t>::max();
  }
  const size_t count = tensor.inline_().size() / DTypeBytes(tensor.dtype());
  for (size_t i = 0; i < count; ++i) {
    meter.Add(1);
    const int64_t value = IntegerAt(tensor, i);
    if (value < least || value > most) {
      return InvalidField(field + ".inline",
                          absl::StrCat("element ", i, " is ", value, "; '", declared.name,
                                       "' takes ", least, " to ", most));
    }
  }
  return absl::OkStatus();
}

class InputChecker {
 public:
  InputChecker(const v1::RolloutSpec& spec, const ProgramSchema& schema,
               const RequestLimits& limits, const std::string& field, sim::WorkMeter& meter)
      : spec_(spec), schema_(schema), limits_(limits), field_(field), meter_(meter) {
    if (spec.instances() > 0) Agree(spec.instances(), field + ".instances");
    if (spec.instance_ids_size() > 0) Agree(spec.instance_ids_size(), field + ".instance_ids");
  }

  absl::StatusOr<int64_t> Run() {
    for (const absl::Status& status :
         {conflict_, CheckList(spec_.initial(), v1::INPUT_KIND_STATE, "initial"),
          CheckList(spec_.params(), v1::INPUT_KIND_PARAM, "params"),
          CheckList(spec_.controls(), v1::INPUT_KIND_CONTROL, "controls"),
          CheckList(spec_.data(), v1::INPUT_KIND_DATA, "data"), CheckRecord(), CheckObjective()}) {
      if (!status.ok()) return status;
    }
    const int64_t instances = instances_.value_or(1);
    if (spec_.instance_ids_size() == 0 &&
        spec_.first_instance() > std::numeric_limits<uint64_t>::max() - (instances - 1)) {
      return InvalidField(field_ + ".first_instance",
                          absl::StrCat(spec_.first_instance(), " + ", instances - 1,
                                       " is no 64-bit instance id any more"));
    }
    return instances;
  }

 private:
  // Everything that speaks of the batch size must say the same. `is_as_steps`: the axis may have been
  // meant for the steps.
  void Agree(int64_t count, const std::string& field, bool is_as_steps = false) {
    if (!conflict_.ok()) return;
    if (count < 1) {
      conflict_ = InvalidField(field, "a batch has at least one instance");
    } else if (count > limits_.max_instances) {
      conflict_ = LimitExceeded(field, absl::StrCat(count, " instances are above this server's ",
                                                    "limit of ", limits_.max_instances));
    } else if (instances_ && *instances_ != count) {
      const char* const steps =
          is_as_steps ? "; a value for each step is sent with per_step (simgrad.PerStep)" : "";
      conflict_ = InvalidField(field, absl::StrCat("has ", count, " instances, but ",
                                                   instances_from_, " has ", *instances_, steps));
    } else if (!instances_) {
      instances_ = count;
      instances_from_ = field;
    }
  }

  absl::Status CheckList(const Tensors& list, v1::InputKind kind, const std::string& name) {
    for (int i = 0; i < list.size(); ++i) {
      const std::string path = absl::StrCat(field_, ".", name, "[", i, "]");
      const FieldSchema* declared = schema_.inputs.Find(kind, list[i].name());
      if (declared == nullptr) {
        return InvalidField(path + ".name",
                            absl::StrCat("unknown ", KindName(kind), " '", list[i].name(),
                                         "'; the world has: ", NamesOf(schema_.inputs, kind)));
      }
      const bool may_step = kind == v1::INPUT_KIND_CONTROL || kind == v1::INPUT_KIND_DATA;
      if (list[i].per_step() && !may_step) {
        return InvalidField(path + ".per_step",
                            absl::StrCat("a ", KindName(kind),
                                         " has no value per step; only controls "
                                         "and data have"));
      }
      absl::Status status = CheckElement(*declared, list[i].tensor(), path + ".tensor", meter_);
      if (status.ok()) status = CheckShape(*declared, list[i], may_step, path + ".tensor.shape");
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CheckShape(const FieldSchema& declared, const v1::NamedTensor& sent, bool may_step,
                          const std::string& field) {
    std::vector<int64_t> tail;
    if (sent.per_step()) tail.push_back(spec_.steps());
    tail.insert(tail.end(), declared.shape.begin(), declared.shape.end());
    const auto& shape = sent.tensor().shape();
    const size_t rank = shape.size();
    const bool per_instance = rank == tail.size() + 1;
    if ((rank != tail.size() && !per_instance) ||
        !std::equal(tail.begin(), tail.end(), shape.begin() + (per_instance ? 1 : 0))) {
      const std::string right = absl::StrJoin(tail, ", ");
      return InvalidField(
          field,
          absl::StrCat("'", declared.name, "' has shape [", right, "] where shared and [instances",
                       right.empty() ? "" : ", ", right, "] per instance",
                       StepsText(sent.per_step()), ", not ", ShapeText(shape)));
    }
    if (per_instance && declared.weights) {
      return InvalidField(field,
                          absl::StrCat("'", declared.name,
                                       "' is declared weights, which all instances share; send "
                                       "it without instances, as [",
                                       absl::StrJoin(tail, ", "), "]"));
    }
    const bool is_as_steps = may_step && !sent.per_step();
    if (per_instance) Agree(shape[0], field, is_as_steps && shape[0] == spec_.steps());
    return conflict_;
  }

  std::string StepsText(bool per_step) const {
    return per_step ? absl::StrCat(" (with an axis for ", spec_.steps(), " steps)") : "";
  }

  absl::Status CheckRecord() const {
    std::set<std::string> seen;
    for (int i = 0; i < spec_.record_size(); ++i) {
      const std::string path = absl::StrCat(field_, ".record[", i, "]");
      const std::string& name = spec_.record(i);
      const FieldSchema* recorded = schema_.inputs.Find(v1::INPUT_KIND_STATE, name);
      if (recorded == nullptr) {
        recorded = schema_.observables.Find(v1::INPUT_KIND_UNSPECIFIED, name);
      }
      if (recorded == nullptr) {
        return InvalidField(
            path, absl::StrCat(
                      "unknown state or observable '", name,
                      "'; states: ", NamesOf(schema_.inputs, v1::INPUT_KIND_STATE),
                      "; observables: ", NamesOf(schema_.observables, v1::INPUT_KIND_UNSPECIFIED)));
      }
      if (!seen.insert(name).second) {
        return InvalidField(path, absl::StrCat("'", name, "' is recorded twice"));
      }
      if (absl::Status status = CheckOneTime(name, recorded->shape, limits_, path); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckObjective() const {
    const auto& known = schema_.objectives;
    if (spec_.objective().empty() ||
        std::find(known.begin(), known.end(), spec_.objective()) != known.end()) {
      return absl::OkStatus();
    }
    return InvalidField(field_ + ".objective",
                        absl::StrCat("unknown objective '", spec_.objective(), "'; the world has: ",
                                     known.empty() ? "none" : absl::StrJoin(known, ", ")));
  }

  const v1::RolloutSpec& spec_;
  const ProgramSchema& schema_;
  const RequestLimits& limits_;
  const std::string field_;
  sim::WorkMeter& meter_;
  std::optional<int64_t> instances_;
  std::string instances_from_;
  absl::Status conflict_;
};

struct InputList {
  const Tensors* tensors;
  const char* name;
};

InputList ListOf(const v1::RolloutSpec& spec, v1::InputKind kind) {
  switch (kind) {
    case v1::INPUT_KIND_STATE:
      return {&spec.initial(), "initial"};
    case v1::INPUT_KIND_PARAM:
      return {&spec.params(), "params"};
    case v1::INPUT_KIND_CONTROL:
      return {&spec.controls(), "controls"};
    default:
      return {&spec.data(), "data"};
  }
}

}  // namespace

absl::Status CheckOneTime(const std::string& name, const std::vector<int64_t>& shape,
                          const RequestLimits& limits, const std::string& path) {
  int64_t bytes = 8;
  for (int64_t dim : shape) bytes *= dim;
  if (bytes <= limits.max_message_bytes / 2) return absl::OkStatus();
  return LimitExceeded(
      path, absl::StrCat("one time of '", name, "' takes ", bytes, " bytes, messages hold ",
                         limits.max_message_bytes / 2, " of them"));
}

absl::Status CheckRequired(const v1::RolloutSpec& spec, const std::vector<FieldSchema>& required,
                           const std::string& field) {
  constexpr size_t kMostNamed = 8;
  std::map<v1::InputKind, std::unordered_set<std::string_view>> sent;
  std::vector<std::string> missing;
  size_t others = 0;
  std::string first_list;
  for (const FieldSchema& input : required) {
    const InputList list = ListOf(spec, input.kind);
    const auto [names, first] = sent.try_emplace(input.kind);
    if (first) {
      for (const v1::NamedTensor& tensor : *list.tensors) names->second.insert(tensor.name());
    }
    if (names->second.count(input.name) > 0) continue;
    if (missing.empty()) first_list = list.name;
    if (missing.size() == kMostNamed) {
      ++others;
    } else {
      const std::string elsewhere =
          list.name == first_list ? "" : absl::StrCat(" (", field, ".", list.name, ")");
      missing.push_back(absl::StrCat(KindName(input.kind), " '", input.name, "'", elsewhere));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  if (others > 0) missing.push_back(absl::StrCat(others, others == 1 ? " other" : " others"));
  return InvalidField(
      absl::StrCat(field, ".", first_list),
      absl::StrCat(absl::StrJoin(missing, ", "), missing.size() == 1 ? " has" : " have",
                   " no default and must be sent"));
}

absl::StatusOr<int64_t> CheckInputs(const v1::RolloutSpec& spec, const ProgramSchema& schema,
                                    const RequestLimits& limits, const std::string& field,
                                    sim::WorkMeter& meter) {
  return InputChecker(spec, schema, limits, field, meter).Run();
}

}  // namespace simgrad::server::validation
