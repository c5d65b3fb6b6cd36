// Requests that are right, for tests to run or to spoil.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server {

inline void SetDoubles(const std::vector<double>& values, const std::vector<int64_t>& shape,
                       v1::Tensor& tensor) {
  tensor.set_dtype(v1::DTYPE_F64);
  tensor.clear_shape();
  for (int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_inline_(std::string(reinterpret_cast<const char*>(values.data()), 8 * values.size()));
}

inline void AddTensor(google::protobuf::RepeatedPtrField<v1::NamedTensor>* list,
                      const std::string& name, const std::vector<double>& values,
                      const std::vector<int64_t>& shape) {
  v1::NamedTensor* tensor = list->Add();
  tensor->set_name(name);
  SetDoubles(values, shape, *tensor->mutable_tensor());
}

// `instances` balls of one element that fall from heights between 0.1 and 1.
inline v1::RolloutSpec BallSpec(int64_t steps, int64_t instances = 1) {
  v1::RolloutSpec spec;
  spec.mutable_world()->set_name("bouncing_ball");
  (*spec.mutable_world()->mutable_config())["contact"].set_word("projection");
  spec.set_steps(steps);
  std::vector<double> y;
  for (int64_t i = 0; i < instances; ++i) {
    y.push_back(0.1 + 0.9 * static_cast<double>(i) / static_cast<double>(instances));
  }
  AddTensor(spec.mutable_initial(), "y", y, {instances, 1});
  AddTensor(spec.mutable_initial(), "v", {-1.0}, {1});
  AddTensor(spec.mutable_params(), "k", {1.0}, {});
  return spec;
}

inline v1::RolloutRequest BallRollout(int64_t steps, int64_t instances = 1) {
  v1::RolloutRequest request;
  *request.mutable_spec() = BallSpec(steps, instances);
  return request;
}

inline v1::GradientRequest BallGradient(int64_t steps, int64_t instances = 1) {
  v1::GradientRequest request;
  *request.mutable_spec() = BallSpec(steps, instances);
  request.mutable_spec()->set_objective("final_height");
  (*request.mutable_spec()->mutable_world()->mutable_config())["clamp"].set_flag(false);
  return request;
}

// Runs for longer than any test waits; only cancelling ends it. Nothing of it piles up.
inline v1::RolloutRequest EndlessRollout() {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("bouncing_ball");
  (*spec->mutable_world()->mutable_config())["elements"].set_number(256);
  spec->set_steps(10'000'000);
  AddTensor(spec->mutable_initial(), "y", std::vector<double>(256, 0.5), {256});
  AddTensor(spec->mutable_initial(), "v", std::vector<double>(256, 0.0), {256});
  AddTensor(spec->mutable_params(), "k", {1.0}, {});
  spec->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  spec->set_chunk_steps(16);
  return request;
}

}  // namespace simgrad::server
