// Writes requests that are right into a folder: where the fuzzer starts from.
#include <fstream>
#include <iostream>
#include <string>

#include "server/conversion/program_to_proto.h"
#include "sim/worlds/worlds.h"
#include "tests/server/ball_request.h"

namespace {

using simgrad::sim::BuildWorld;
using simgrad::sim::Config;
using simgrad::v1::GradientRequest;

void Write(const std::string& path, const GradientRequest& request) {
  std::ofstream file(path, std::ios::binary);
  request.SerializeToOstream(&file);
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
  return 0;
}
