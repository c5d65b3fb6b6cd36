#include "sim/backend/cuda/run/uploaded_batch.h"

#include <algorithm>
#include <cstring>

#include "sim/backend/check_batch.h"
#include "sim/backend/cuda/run/field_layout.h"

namespace simgrad::sim::cuda {
namespace {

// A tensor's numbers, or the default in every element.
struct Numbers {
  const Tensor* tensor;  // null: `fallback` everywhere
  double fallback;
  int64_t count;
  double Real(int64_t i) const { return tensor == nullptr ? fallback : tensor->Get(i); }
  int64_t Integer(int64_t i) const {
    return tensor == nullptr ? static_cast<int64_t>(fallback) : tensor->GetInt(i);
  }
};

bool FitsFloat(double x) { return x != x || static_cast<double>(static_cast<float>(x)) == x; }

bool AllFitFloat(const Numbers& numbers) {
  if (numbers.tensor != nullptr && numbers.tensor->dtype != DType::kF64) return true;
  for (int64_t i = 0; i < numbers.count; ++i) {
    if (!FitsFloat(numbers.Real(i))) return false;
  }
  return true;
}

template <class T, class Get>
std::vector<uint8_t> Pack(int64_t count, const Get& get) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(get(i));
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::vector<uint8_t> PackAs(MemoryType memory_type, const Numbers& numbers) {
  // A tensor of f32 goes up as it was sent.
  if (memory_type == MemoryType::kF32 && numbers.tensor != nullptr &&
      numbers.tensor->dtype == DType::kF32) {
    return numbers.tensor->bytes;
  }
  const auto real = [&](int64_t i) { return numbers.Real(i); };
  if (memory_type == MemoryType::kF32) return Pack<float>(numbers.count, real);
  if (memory_type == MemoryType::kF64) return Pack<double>(numbers.count, real);
  return Pack<int64_t>(numbers.count, [&](int64_t i) { return numbers.Integer(i); });
}

}  // namespace

absl::StatusOr<void*> UploadedBatch::Keep(const void* data, int64_t bytes,
                                          std::vector<Buffer>& in) {
  absl::StatusOr<Buffer> buffer = device_->Allocate(bytes);
  if (!buffer.ok()) return buffer.status();
  in.push_back(std::move(*buffer));
  void* const to = in.back().data();
  if (bytes == 0) return to;
  if (absl::Status status = stream_.ToDevice(to, data, bytes); !status.ok()) return status;
  return to;
}

absl::Status UploadedBatch::UploadInput(const Batch& batch, size_t input, InputView& view) {
  const Program& program = batch.program->program;
  const Input& declared = program.inputs[input];
  if (declared.kind == InputKind::kConfig || declared.kind == InputKind::kStep) {
    return absl::OkStatus();
  }
  const Type& type = program[declared.value].type;
  const int64_t count = ElementCount(type.shape);
  const Binding& binding = batch.inputs[input];
  const bool bound = IsBound(batch, input);
  const Numbers numbers = {bound ? &binding.tensor : nullptr, declared.default_value.value_or(0.0),
                           bound ? binding.tensor.count() : count};
  const bool real = type.element == ElementType::kReal;
  view.memory_type = !real                  ? MemoryType::kI64
                     : AllFitFloat(numbers) ? MemoryType::kF32
                                            : MemoryType::kF64;
  view.step_stride = bound && binding.per_step ? count : 0;
  view.instance_stride =
      bound && binding.per_instance ? count * (binding.per_step ? batch.steps : 1) : 0;
  const std::vector<uint8_t> bytes = PackAs(view.memory_type, numbers);
  const absl::StatusOr<void*> data =
      Keep(bytes.data(), static_cast<int64_t>(bytes.size()), inputs_);
  if (!data.ok()) return data.status();
  view.data = *data;
  return absl::OkStatus();
}

absl::Status UploadedBatch::UploadIds(const Batch& batch, KernelArgs& args) {
  sorted_ids_ = batch.instance_ids;
  std::sort(sorted_ids_.begin(), sorted_ids_.end());
  std::vector<uint32_t> ranks;
  for (uint64_t id : batch.instance_ids) {
    const auto place = std::lower_bound(sorted_ids_.begin(), sorted_ids_.end(), id);
    ranks.push_back(static_cast<uint32_t>(place - sorted_ids_.begin()));
  }
  const absl::StatusOr<void*> ids = Keep(batch.instance_ids.data(), batch.instances * 8, inputs_);
  if (!ids.ok()) return ids.status();
  const absl::StatusOr<void*> rank = Keep(ranks.data(), batch.instances * 4, inputs_);
  if (!rank.ok()) return rank.status();
  args.instance_id = static_cast<const uint64_t*>(*ids);
  args.rank = static_cast<const uint32_t*>(*rank);
  return absl::OkStatus();
}

absl::Status UploadedBatch::Upload(const Batch& batch, const GeneratedSource& source,
                                   KernelArgs& args) {
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    if (absl::Status status = UploadInput(batch, i, args.input[i]); !status.ok()) return status;
  }
  const absl::StatusOr<void*> numbers = Keep(
      source.numbers.data(), static_cast<int64_t>(source.numbers.size() * sizeof(double)), inputs_);
  if (!numbers.ok()) return numbers.status();
  const absl::StatusOr<void*> integers =
      Keep(source.integers.data(), static_cast<int64_t>(source.integers.size() * sizeof(int64_t)),
           inputs_);
  if (!integers.ok()) return integers.status();
  args.number = static_cast<const double*>(*numbers);
  args.integer = static_cast<const int64_t*>(*integers);
  return UploadIds(batch, args);
}

absl::Status UploadedBatch::UploadCotangents(const Batch& batch, KernelArgs& args) {
  cotangents_.clear();
  const auto send = [&](const std::vector<std::vector<double>>& arrays, const double** views) {
    for (size_t k = 0; k < arrays.size(); ++k) {
      if (arrays[k].empty()) continue;
      const auto data =
          Keep(arrays[k].data(), static_cast<int64_t>(arrays[k].size() * 8), cotangents_);
      if (!data.ok()) return data.status();
      views[k] = static_cast<const double*>(*data);
    }
    return absl::OkStatus();
  };
  absl::Status status = send(batch.cotangents.final_state, args.sent_final_state);
  if (status.ok()) status = send(batch.cotangents.trajectory_state, args.sent_trajectory_state);
  if (status.ok()) status = send(batch.cotangents.trajectory_export, args.sent_trajectory_export);
  return status;
}

}  // namespace simgrad::sim::cuda
