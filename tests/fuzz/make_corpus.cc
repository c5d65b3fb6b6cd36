// Writes requests that are right into a folder: where the fuzzer starts from.
//
// The ball in each of its configurations, and gradients of woven programs, which hold every operation.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>

#include "server/conversion/program_to_proto.h"
#include "sim/worlds/worlds.h"
#include "tests/server/ball_request.h"
#include "tests/server/hostile_messages.h"

namespace {

using simgrad::sim::BuildWorld;
using simgrad::sim::Config;
using simgrad::v1::GradientRequest;

constexpr uint64_t kSeed = 1;
constexpr int kWoven = 256;
constexpr size_t kMostBytes = 16'384;  // what the fuzzer reads of a file

void Write(const std::string& path, const std::string& request) {
  std::ofstream(path, std::ios::binary) << request;
}

void Write(const std::string& path, const GradientRequest& request) {
  Write(path, request.SerializeAsString());
}

GradientRequest Inlined(const Config& config) {
  GradientRequest request = simgrad::server::BallGradient(4, 2);
  request.mutable_spec()->mutable_world()->clear_config();
  *request.mutable_spec()->mutable_world()->mutable_program() =
      simgrad::server::conversion::ProgramToProto(*BuildWorld("bouncing_ball", config));
  return request;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_corpus FOLDER\n";
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  Write(folder + "named", simgrad::server::BallGradient(4, 2));
  Write(folder + "projection", Inlined({{"clamp", false}}));
  Write(folder + "element", Inlined({{"scope", std::string("element")}, {"tol_enter", 1e-3}}));
  Write(folder + "penalty", Inlined({{"contact", std::string("penalty")}}));
  Write(folder + "toi", Inlined({{"contact", std::string("toi")}}));
  int written = 0;
  for (uint64_t index = 0; written < kWoven; ++index) {
    const auto message = simgrad::server::MakeHostileMessage(kSeed, index);
    if (message.family != "woven" || message.rpc != simgrad::server::Rpc::kGradient) continue;
    if (message.request.size() > kMostBytes) continue;
    Write(folder + "woven" + std::to_string(written++), message.request);
  }
  return 0;
}
