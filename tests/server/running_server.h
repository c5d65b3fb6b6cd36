// A server of this process on free ports, and what a caller does with it.
#pragma once

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/service/server.h"
#include "simgrad/v1/error_details.pb.h"
#include "simgrad/v1/simgrad.grpc.pb.h"
#include "tests/eventually.h"
#include "tests/server/ball_request.h"

namespace simgrad::server {

inline config::ServerConfig FreePorts() {
  config::ServerConfig config;
  config.port = 0;
  config.metrics_port = 0;
  config.threads = 2;
  config.memory_limit_bytes = int64_t{2} << 30;
  config.self_check_interval = absl::InfiniteDuration();  // nothing runs but what a test asks for
  return config;
}

// The parts of an answer one by one, whatever messages they come in.
template <class Response>
class PartReader {
 public:
  using Part = std::decay_t<decltype(std::declval<Response>().parts(0))>;
  explicit PartReader(std::unique_ptr<grpc::ClientReader<Response>> messages)
      : messages_(std::move(messages)) {}

  bool Read(Part* part) {
    if (next_ == message_.parts_size()) {
      if (!messages_->Read(&message_)) return false;
      next_ = 0;
      EXPECT_GT(message_.parts_size(), 0);
    }
    *part = message_.parts(next_++);
    return true;
  }
  grpc::Status Finish() { return messages_->Finish(); }

 private:
  std::unique_ptr<grpc::ClientReader<Response>> messages_;
  Response message_;
  int next_ = 0;
};

class RunningServer {
 public:
  explicit RunningServer(const config::ServerConfig& config = FreePorts())
      : RunningServer(service::Server::Create(config), config) {}
  // A server that was made otherwise, with the same configuration.
  explicit RunningServer(absl::StatusOr<std::unique_ptr<service::Server>> server,
                         const config::ServerConfig& config = FreePorts()) {
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(config.max_message_bytes));
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Simgrad::NewStub(channel_);
  }

  service::Server& server() { return *server_; }
  v1::Simgrad::Stub& stub() { return *stub_; }
  std::unique_ptr<PartReader<v1::RolloutResponse>> Rollout(grpc::ClientContext* context,
                                                           const v1::RolloutRequest& request) {
    return std::make_unique<PartReader<v1::RolloutResponse>>(stub_->Rollout(context, request));
  }
  std::unique_ptr<PartReader<v1::GradientResponse>> Gradient(grpc::ClientContext* context,
                                                             const v1::GradientRequest& request) {
    return std::make_unique<PartReader<v1::GradientResponse>>(stub_->Gradient(context, request));
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // The page a scraper gets.
  std::string Scrape() const {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->metrics_port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(send(socket, request.data(), request.size(), 0),
              static_cast<ssize_t>(request.size()));
    std::string page;
    char buffer[4096];
    for (ssize_t n; (n = recv(socket, buffer, sizeof(buffer), 0)) > 0;) page.append(buffer, n);
    close(socket);
    return page;
  }

  // Series of the page with their values.
  std::map<std::string, double> Series() const {
    std::map<std::string, double> series;
    const std::string page = Scrape();
    size_t at = page.find("\r\n\r\n") + 4;
    while (at < page.size()) {
      const size_t end = std::min(page.find('\n', at), page.size());
      const std::string line = page.substr(at, end - at);
      const size_t space = line.rfind(' ');
      if (!line.empty() && line[0] != '#' && space != std::string::npos) {
        series[line.substr(0, space)] = std::stod(line.substr(space + 1));
      }
      at = end + 1;
    }
    return series;
  }

 private:
  std::unique_ptr<service::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Simgrad::Stub> stub_;
};

// Until nothing runs, waits or holds memory.
inline bool AllGivenBack(RunningServer& server) {
  const auto& queue = server.server().queue();
  return Eventually([&] {
    return queue.memory_used_bytes() == 0 && queue.running() == 0 && queue.waiting() == 0;
  });
}

// What a stream gave.
template <class Part>
struct Answer {
  grpc::Status status;
  std::vector<Part> parts;

  std::vector<v1::DiagnosticsBlock> blocks() const {
    std::vector<v1::DiagnosticsBlock> found;
    for (const Part& part : parts) {
      if (part.has_diagnostics()) found.push_back(part.diagnostics());
    }
    return found;
  }
  const v1::StreamHeader& header() const { return parts.front().header(); }
  const auto& result() const { return parts.back().result(); }
  // Pieces of one field, joined.
  std::string pieces(const std::string& field) const {
    std::string data;
    for (const Part& part : parts) {
      if (!part.has_piece() || part.piece().field() != field) continue;
      EXPECT_EQ(part.piece().offset(), static_cast<int64_t>(data.size()));
      data += part.piece().data();
    }
    return data;
  }
  // A whole trajectory, [instance][time][field shape].
  std::string trajectory(const std::string& name) const {
    std::string whole;
    for (const v1::FieldInfo& info : header().trajectory()) {
      if (info.name() != name) continue;
      int64_t bytes = info.dtype() == v1::DTYPE_F64 ? 8 : info.dtype() == v1::DTYPE_F32 ? 4 : 2;
      for (int64_t dim : info.shape()) bytes *= dim;
      whole.assign(static_cast<size_t>(header().instances() * info.times() * bytes), '\xee');
      for (const Part& part : parts) {
        if (!part.has_trajectory() || part.trajectory().name() != name) continue;
        const v1::TrajectoryChunk& chunk = part.trajectory();
        for (int64_t i = 0; i < chunk.instances(); ++i) {
          const int64_t row = (chunk.first_instance_index() + i) * info.times();
          whole.replace(static_cast<size_t>((row + chunk.first_time()) * bytes),
                        static_cast<size_t>(chunk.times() * bytes), chunk.data(),
                        static_cast<size_t>(i * chunk.times() * bytes),
                        static_cast<size_t>(chunk.times() * bytes));
        }
      }
    }
    return whole;
  }
};

inline Answer<v1::RolloutPart> Ask(RunningServer& server, const v1::RolloutRequest& request) {
  Answer<v1::RolloutPart> answer;
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, request);
  for (v1::RolloutPart part; reader->Read(&part);) answer.parts.push_back(part);
  answer.status = reader->Finish();
  return answer;
}

inline Answer<v1::GradientPart> Ask(RunningServer& server, const v1::GradientRequest& request) {
  Answer<v1::GradientPart> answer;
  grpc::ClientContext context;
  auto reader = server.Gradient(&context, request);
  for (v1::GradientPart part; reader->Read(&part);) answer.parts.push_back(part);
  answer.status = reader->Finish();
  return answer;
}

// google.rpc details of a status, by their short name.
struct Details {
  v1::ErrorInfo info;
  v1::BadRequest bad_request;
  v1::RetryInfo retry;
  bool has_retry = false;
};
inline Details DetailsOf(const grpc::Status& status) {
  Details details;
  v1::ErrorStatus message;
  EXPECT_TRUE(message.ParseFromString(status.error_details()));
  EXPECT_EQ(message.code(), status.error_code());
  EXPECT_EQ(message.message(), status.error_message());
  for (const auto& any : message.details()) {
    const std::string prefix = "type.googleapis.com/google.rpc.";
    EXPECT_EQ(any.type_url().rfind(prefix, 0), 0u) << any.type_url();
    const std::string name = any.type_url().substr(prefix.size());
    if (name == "ErrorInfo") {
      EXPECT_TRUE(details.info.ParseFromString(any.value()));
    }
    if (name == "BadRequest") {
      EXPECT_TRUE(details.bad_request.ParseFromString(any.value()));
    }
    if (name == "RetryInfo") {
      details.has_retry = details.retry.ParseFromString(any.value());
    }
  }
  return details;
}

}  // namespace simgrad::server
