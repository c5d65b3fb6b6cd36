// Writes requests that are right into a folder: where the fuzzer starts from.
//
// The ball in each of its configurations, and gradients of woven programs. Errors: exit status 1 and
// their names if an operation that a world may use is in none of them.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <utility>

#include "server/conversion/program_to_proto.h"
#include "sim/op/op_info.h"
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

void AddCodes(const simgrad::v1::Region& region, std::set<std::string>& codes) {
  for (const simgrad::v1::Op& op : region.ops()) {
    codes.insert(op.code());
    for (const simgrad::v1::Region& inner : op.regions()) AddCodes(inner, codes);
  }
}

class Corpus {
 public:
  explicit Corpus(std::string folder) : folder_(std::move(folder)) {}

  void Write(const std::string& name, const GradientRequest& request) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << request.SerializeAsString();
    const simgrad::v1::Program& program = request.spec().world().program();
    AddCodes(program.initial(), codes_);
    AddCodes(program.step(), codes_);
    for (const auto& objective : program.objectives()) {
      AddCodes(objective.stage(), codes_);
      AddCodes(objective.terminal(), codes_);
    }
  }

  // Operations that a world may use and that no request has.
  std::set<std::string> Missing() const {
    std::set<std::string> missing;
    simgrad::sim::EachOp([&](simgrad::sim::OpCode, const simgrad::sim::OpInfo& info) {
      const std::string name(info.name);
      if (info.in_worlds && codes_.count(name) == 0) missing.insert(name);
    });
    return missing;
  }

 private:
  const std::string folder_;
  std::set<std::string> codes_;
};

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
  Corpus corpus(argv[1]);
  corpus.Write("named", simgrad::server::BallGradient(4, 2));
  corpus.Write("projection", Inlined({{"clamp", false}}));
  corpus.Write("element", Inlined({{"scope", std::string("element")}, {"tol_enter", 1e-3}}));
  corpus.Write("penalty", Inlined({{"contact", std::string("penalty")}}));
  corpus.Write("toi", Inlined({{"contact", std::string("toi")}}));
  int written = 0;
  for (uint64_t index = 0; written < kWoven; ++index) {
    const auto message = simgrad::server::MakeHostileMessage(kSeed, index);
    if (message.family != "woven" || message.rpc != simgrad::server::Rpc::kGradient) continue;
    GradientRequest request;
    if (message.request.size() > kMostBytes || !request.ParseFromString(message.request)) continue;
    corpus.Write("woven" + std::to_string(written++), request);
  }
  const std::set<std::string> missing = corpus.Missing();
  for (const std::string& name : missing) std::cerr << "in no request: " << name << "\n";
  return missing.empty() ? 0 : 1;
}
