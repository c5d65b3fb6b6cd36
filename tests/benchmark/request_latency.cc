// Latency of the smallest request against a bare gRPC echo from the same build, in one process.
//
// The echo is a callback server that answers GetServerInfo with an empty message; the other is the
// real server given by --target, asked for a rollout of one instance and one step. The two are
// asked in turn; printed is one JSON line with the median and 90th percentile of each, in
// microseconds.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "simgrad/v1/simgrad.grpc.pb.h"

namespace {

namespace v1 = simgrad::v1;
using Clock = std::chrono::steady_clock;

// Streams one empty message back: the same kind of call as Rollout, and nothing behind it.
class Echo final : public v1::Simgrad::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::RolloutResponse>* Rollout(grpc::CallbackServerContext*,
                                                         const v1::RolloutRequest*) override {
    class Reactor final : public grpc::ServerWriteReactor<v1::RolloutResponse> {
     public:
      Reactor() { StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK); }
      void OnDone() override { delete this; }

     private:
      v1::RolloutResponse response_;
    };
    return new Reactor;
  }
};

v1::RolloutRequest SmallestRequest() {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("boundary_projection");
  spec->set_steps(1);
  const auto add = [](v1::NamedTensor* named, const char* name, float value, bool scalar) {
    named->set_name(name);
    named->mutable_tensor()->set_dtype(v1::DTYPE_F32);
    if (!scalar) named->mutable_tensor()->add_shape(1);
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    named->mutable_tensor()->set_inline_(bytes);
  };
  add(spec->add_initial(), "y", 1.0f, false);
  add(spec->add_params(), "k", 0.5f, true);
  return request;
}

double CallMicroseconds(v1::Simgrad::Stub& stub, const v1::RolloutRequest& request) {
  const auto start = Clock::now();
  grpc::ClientContext context;
  auto reader = stub.Rollout(&context, request);
  v1::RolloutResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    std::fprintf(stderr, "request_latency: %s\n", status.error_message().c_str());
    std::exit(1);
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: request_latency TARGET CALLS\n");
    return 2;
  }
  const int calls = std::atoi(argv[2]);
  Echo echo;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel = [](const std::string& target) {
    return v1::Simgrad::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  };
  const auto bare = channel("127.0.0.1:" + std::to_string(port));
  const auto real = channel(argv[1]);
  const v1::RolloutRequest request = SmallestRequest();
  std::vector<double> bare_us, real_us;
  for (int i = 0; i < calls + 200; ++i) {
    const double a = CallMicroseconds(*bare, request);
    const double b = CallMicroseconds(*real, request);
    if (i < 200) continue;  // connections and caches warm up
    bare_us.push_back(a);
    real_us.push_back(b);
  }
  std::printf(
      "{\"echo_p50_us\": %.1f, \"echo_p90_us\": %.1f, \"rollout_p50_us\": %.1f, "
      "\"rollout_p90_us\": %.1f}\n",
      Quantile(bare_us, 0.5), Quantile(bare_us, 0.9), Quantile(real_us, 0.5),
      Quantile(real_us, 0.9));
  server->Shutdown();
  return 0;
}
