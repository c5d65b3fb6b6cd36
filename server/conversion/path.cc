#include "server/conversion/path.h"

#include "server/conversion/enum_names.h"
#include "sim/program/paths.h"

namespace simgrad::server::conversion {
namespace {

v1::PathKind ToProto(sim::PathKind kind) {
  switch (kind) {
    case sim::PathKind::kTest:
      return v1::PATH_KIND_TEST;
    case sim::PathKind::kCount:
      return v1::PATH_KIND_COUNT;
    case sim::PathKind::kChoice:
      return v1::PATH_KIND_CHOICE;
  }
  return v1::PATH_KIND_UNSPECIFIED;
}

}  // namespace

sim::PathUse PathUseOf(const v1::PathOptions& path) {
  if (path.record()) return sim::PathUse::kRecorded;
  return path.has_forced() ? sim::PathUse::kForced : sim::PathUse::kNone;
}

sim::PathUse PathUseOf(v1::PathUse use) {
  if (use == v1::PATH_USE_RECORDED) return sim::PathUse::kRecorded;
  return use == v1::PATH_USE_FORCED ? sim::PathUse::kForced : sim::PathUse::kNone;
}

v1::PathLayout PathLayoutToProto(const sim::PathLayout& layout) {
  v1::PathLayout out;
  out.set_structure(layout.structure);
  out.set_bytes(layout.bytes);
  for (const sim::PathColumn& column : layout.columns) {
    v1::PathColumn* message = out.add_columns();
    message->set_site(column.site);
    message->set_kind(ToProto(column.kind));
    message->set_element(ToProto(column.element));
    message->mutable_shape()->Add(column.shape.begin(), column.shape.end());
    message->mutable_loops()->Add(column.loops.begin(), column.loops.end());
    message->set_first(column.first);
    message->set_width(column.width);
  }
  return out;
}

bool IsOfPath(std::string_view input) {
  return input == sim::kPathGiven || input == sim::kPathGivenFirst;
}

sim::Binding PathBinding(const v1::Path& path, std::string_view input) {
  sim::Binding binding;
  binding.per_instance = true;
  binding.per_step = input == sim::kPathGiven;
  binding.tensor.dtype = sim::DType::kU8;
  const auto& shape = path.decisions().shape();  // [instance, step, byte]
  const std::string& bytes = path.decisions().inline_();
  if (binding.per_step) {
    binding.tensor.shape.assign(shape.begin(), shape.end());
    binding.tensor.bytes.assign(bytes.begin(), bytes.end());
    return binding;
  }
  binding.tensor.shape = {shape[0], shape[2]};
  const int64_t of_instance = shape[1] * shape[2];
  for (int64_t row = 0; row < shape[0]; ++row) {
    const auto first = bytes.begin() + row * of_instance;
    binding.tensor.bytes.insert(binding.tensor.bytes.end(), first, first + shape[2]);
  }
  return binding;
}

}  // namespace simgrad::server::conversion
