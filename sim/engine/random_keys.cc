#include "sim/engine/random_keys.h"

#include "precision/philox.h"

namespace simgrad::sim {

Binding RandomKeys(uint64_t seed, const std::vector<uint64_t>& instance_ids) {
  Binding binding;
  binding.per_instance = true;
  binding.tensor = Tensor::Zeros(DType::kI64, {static_cast<int64_t>(instance_ids.size())});
  for (size_t row = 0; row < instance_ids.size(); ++row) {
    const uint64_t key = precision::RandomKey(seed, instance_ids[row]);
    binding.tensor.SetInt(static_cast<int64_t>(row), static_cast<int64_t>(key));
  }
  return binding;
}

}  // namespace simgrad::sim
