#include "server/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "precision/policy.h"
#include "server/config/version.h"
#include "server/service/device.h"
#include "server/service/request_log.h"
#include "sim/backend/cuda/cuda_device.h"
#include "sim/program/verify.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::service {
namespace {

std::vector<metrics::WorldLabels> WorldLabelsOf() {
  std::vector<metrics::WorldLabels> labels;
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) {
    labels.push_back({world.name, world.termination_sites, world.event_sites});
  }
  labels.push_back({"custom", {"custom"}, {"custom"}});
  return labels;
}

metrics::ServerLabels LabelsOf(const Device& device) {
  metrics::ServerLabels labels = {config::kVersion, config::kRevision, device.kind, device.name};
  if (sim::cuda::IsCudaBuilt()) labels.cuda = sim::cuda::CudaBuildVersion();
  for (const Gpu& gpu : device.gpus) {
    labels.gpus.push_back({absl::StrCat(gpu.index), gpu.uuid, gpu.name});
  }
  return labels;
}

std::vector<sim::cuda::DeviceUse> UseOf(const Device& device) {
  std::vector<sim::cuda::DeviceUse> uses;
  for (const Gpu& gpu : device.gpus) uses.push_back(gpu.device->Use());
  return uses;
}

v1::ServerInfo ServerInfoOf(const config::ServerConfig& config, const Device& device,
                            int64_t memory_limit_bytes) {
  v1::ServerInfo info;
  info.set_version(config::kVersion);
  info.set_revision(config::kRevision);
  v1::DeviceInfo* message = info.add_devices();
  message->set_kind(device.kind);
  message->set_name(device.name);
  message->set_threads(device.threads);
  message->set_instruction_set(device.instruction_set);
  for (const auto& [format, execution] : device.formats) {
    (*message->mutable_formats())[format] = execution;
  }
  message->set_memory_bytes(device.memory_bytes);
  const sim::ProgramLimits programs;
  v1::Limits* limits = info.mutable_limits();
  limits->set_max_steps(config.max_steps);
  limits->set_max_instances(config.max_instances);
  limits->set_max_elements(programs.max_elements);
  limits->set_max_operations(programs.max_operations);
  limits->set_max_loop_iterations(programs.max_loop_iterations);
  limits->set_max_nested_iterations(programs.max_nested_iterations);
  limits->set_max_message_bytes(config.max_message_bytes);
  limits->set_max_request_memory_bytes(memory_limit_bytes);
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) info.add_worlds(world.name);
  for (const std::string& preset : precision::PresetNames()) info.add_presets(preset);
  for (int i = 0; i < precision::kOrderCount; ++i) {
    info.add_orders(std::string(precision::OrderName(static_cast<precision::Order>(i))));
  }
  info.set_default_device(device.kind);
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const config::ServerConfig& config) {
  absl::StatusOr<Device> device = OpenDevice(config);
  if (!device.ok()) return device.status();
  if (!device->note.empty()) LogNote(device->note);
  return Create(config, *std::move(device));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const config::ServerConfig& config,
                                                       Device opened) {
  if (config.warm) {
    if (absl::Status status = Warm(opened); !status.ok()) return status;
  }
  std::unique_ptr<Server> server(new Server());
  server->address_ = config.address;
  server->device_ = std::move(opened);
  const Device* const device = &server->device_;
  server->metrics_ = std::make_unique<metrics::ServerMetrics>(LabelsOf(*device), WorldLabelsOf(),
                                                              [device] { return UseOf(*device); });
  const int64_t memory =
      config.memory_limit_bytes > 0 ? config.memory_limit_bytes : device->memory_bytes / 2;
  const int workers = config.workers > 0 ? config.workers : device->threads;
  server->queue_ = std::make_unique<scheduling::WorkQueue>(
      scheduling::QueueOptions{workers, config.queue_capacity, memory});
  server->metrics_->queue_capacity_requests.Set(static_cast<double>(config.queue_capacity));
  server->metrics_->near_band_ulps.Set(config.near_band_ulps);

  CallContext context;
  context.metrics = server->metrics_.get();
  context.queue = server->queue_.get();
  context.engine = device->engine;
  context.device = device->kind;
  context.version = config::kVersion;
  context.max_message_bytes = config.max_message_bytes;
  PrepareOptions options;
  options.limits = {config.max_steps, config.max_instances, config.max_message_bytes};
  options.work.threads = device->threads;
  options.work.near_band_ulps = config.near_band_ulps;
  // So that a few large gradients fit side by side.
  options.work.memory_budget_bytes = memory / 4;
  server->service_ = std::make_unique<SimgradService>(std::move(context), options,
                                                      ServerInfoOf(config, *device, memory),
                                                      config.program_cache_entries);
  if (absl::Status status = server->Listen(config); !status.ok()) return status;
  server->SetServing(true);
  return server;
}

absl::Status Server::Listen(const config::ServerConfig& config) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const bool v6 = config.address.find(':') != std::string::npos;
  const std::string address = v6 ? absl::StrCat("[", config.address, "]:", config.port)
                                 : absl::StrCat(config.address, ":", config.port);
  grpc::ServerBuilder builder;
  // A port that another process listens on is an error, not something to share.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(config.max_message_bytes));
  builder.RegisterService(service_.get());
  auto exposer =
      metrics::Exposer::Create(config.address, config.metrics_port, metrics_->collectables());
  if (!exposer.ok()) return exposer.status();
  exposer_ = *std::move(exposer);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, "; is the port taken? --port=0 picks one"));
  }
  service_->SetPorts(port_, exposer_->port());
  return absl::OkStatus();
}

std::string Server::Banner() const {
  return absl::StrCat("simgrad-server ", config::kVersion, " listening on ", address_, ":", port_,
                      ", metrics on ", address_, ":", metrics_port(), ", device ", device_.Text());
}

void Server::SetServing(bool serving) {
  metrics_->ready.Set(serving ? 1.0 : 0.0);
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  health->SetServingStatus(serving);
  health->SetServingStatus(metrics::kGrpcService, serving);
}

void Server::StopAdmission() {
  SetServing(false);
  queue_->Drain(absl::ZeroDuration());
}

bool Server::Drain(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  StopAdmission();
  const bool ended = queue_->Drain(timeout);
  if (!ended)
    queue_->CancelAll(absl::UnavailableError("the server drains; the work was cancelled"));
  // Answers that are still being read have until the deadline; what is left then is cut off.
  grpc_->Shutdown(absl::ToChronoTime(std::max(end, absl::Now() + absl::Seconds(1))));
  return ended;
}

Server::~Server() {
  if (grpc_ != nullptr) {
    queue_->CancelAll(absl::CancelledError("the server stops"));
    grpc_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  // Workers end before the service and its streams go.
  exposer_.reset();
  queue_.reset();
  grpc_.reset();
}

}  // namespace simgrad::server::service
