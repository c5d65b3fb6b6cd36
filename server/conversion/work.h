// A checked request as work for the engine.
//
// Expects that the checks of server/validation have passed. What takes a meter throws
// sim::StopRequested. Cost: one copy of the tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/engine.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// The settings of work that the server decides, not the caller.
struct WorkSettings {
  int threads = 1;
  double near_band_ulps = 8.0;
  int64_t memory_budget_bytes = int64_t{4} << 30;
};

// The inputs of the program that are differentiated for, and the objective or cotangents.
sim::AdjointSpec AdjointSpecFromProto(const v1::GradientRequest& request,
                                      const sim::Program& program);

sim::Work WorkFromProto(const v1::RolloutSpec& spec,
                        std::shared_ptr<const sim::NumericalProgram> program, int64_t instances,
                        const WorkSettings& settings, sim::WorkMeter& meter);

sim::GradientWork GradientWorkFromProto(const v1::GradientRequest& request);
// Converts the request's one cotangent; `program` is the one that runs.
sim::Cotangents CotangentsFromProto(const v1::GradientRequest& request, const sim::Program& program,
                                    sim::WorkMeter& meter);
// The bytes that its numbers take beyond those of their own formats.
int64_t BytesBeyondSent(const v1::Cotangent& cotangent);
// The same of inputs: integers and bools of a wider declared type.
int64_t BytesBeyondSent(const v1::RolloutSpec& spec, const sim::Program& program);
// Adds both.
void AddGradient(const v1::GradientRequest& request, sim::Work& work, sim::WorkMeter& meter);

// Names of what is recorded, in the order of the request, then margins, then the path: index into
// states or exports.
struct Recorded {
  std::string name;
  bool is_state = false;
  int32_t index = 0;  // state input, or export
  sim::DType dtype = sim::DType::kF64;
  sim::Shape shape;  // of one instance at one time
  bool is_sent = true;
};
std::vector<Recorded> RecordedFields(const v1::RolloutSpec& spec,
                                     const sim::NumericalProgram& program);

// The part of work that answer and metrics need once the engine has taken it.
sim::Work WithoutTensors(const sim::Work& work);

// Non-finite numbers among the inputs as sent.
struct NonFiniteInputs {
  int64_t state_nan = 0, state_inf = 0;  // initial states
  int64_t other_nan = 0, other_inf = 0;
};
NonFiniteInputs CountNonFinite(const sim::Batch& batch, sim::WorkMeter& meter);

}  // namespace simgrad::server::conversion
