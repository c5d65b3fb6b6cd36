#include "server/service/server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "precision/policy.h"
#include "server/config/version.h"
#include "server/service/device.h"
#include "server/service/port_probe.h"
#include "server/service/request_log.h"
#include "server/service/rollout_probe.h"
#include "server/service/tls_files.h"
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
  limits->set_max_step_work(programs.max_step_work);
  limits->set_max_message_bytes(config.max_message_bytes);
  limits->set_max_request_bytes(config.max_request_bytes);
  limits->set_max_request_memory_bytes(memory_limit_bytes);
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) info.add_worlds(world.name);
  for (const std::string& preset : precision::PresetNames()) info.add_presets(preset);
  for (int i = 0; i < precision::kOrderCount; ++i) {
    info.add_orders(std::string(precision::OrderName(static_cast<precision::Order>(i))));
  }
  info.set_default_device(device.kind);
  return info;
}

// gRPC adds reflection and channelz to every server of a process that links them; this keeps only
// those that were asked for.
class KeepPlugins final : public grpc::ServerBuilderOption {
 public:
  explicit KeepPlugins(std::vector<std::string> names) : names_(std::move(names)) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [this](const auto& plugin) {
      return std::find(names_.begin(), names_.end(), plugin->name()) == names_.end();
    });
  }

 private:
  const std::vector<std::string> names_;
};

std::string HostAndPort(const std::string& address, int port) {
  const bool v6 = address.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
}

}  // namespace

absl::Status Server::CheckFiles(const config::ServerConfig& config) {
  if (!config.token_file.empty()) {
    if (auto gate = TokenGate::Create(config.token_file); !gate.ok()) return gate.status();
  }
  return config.HasTls() ? ReadTlsSet(config).status() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const config::ServerConfig& config) {
  if (absl::Status status = CheckFiles(config); !status.ok()) return status;
  absl::StatusOr<Device> device = OpenDevice(config);
  if (!device.ok()) return device.status();
  if (!device->note.empty()) {
    LogNote(sim::cuda::IsCudaBuilt() ? LogLevel::kWarning : LogLevel::kInfo, device->note);
  }
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
  // Two, so that one large program does not hold up the next large batch.
  constexpr int kPreparationWorkers = 2;
  server->preparation_ = std::make_unique<scheduling::WorkQueue>(
      scheduling::QueueOptions{kPreparationWorkers, config.queue_capacity, memory});
  server->metrics_->queue_capacity_requests.Set(static_cast<double>(config.queue_capacity));
  server->metrics_->near_band_ulps.Set(config.near_band_ulps);

  CallContext context;
  context.metrics = server->metrics_.get();
  context.queue = server->queue_.get();
  context.preparation = server->preparation_.get();
  context.engine = device->engine;
  context.device = device->kind;
  context.version = config::kVersion;
  server->streams_ = std::make_unique<OpenStreams>();
  context.streams = server->streams_.get();
  context.max_message_bytes = config.max_message_bytes;
  context.slow_reader_timeout = config.slow_reader_timeout;
  if (!config.token_file.empty()) {
    auto gate = TokenGate::Create(config.token_file);
    if (!gate.ok()) return gate.status();
    server->token_gate_ = *std::move(gate);
    context.token_gate = server->token_gate_.get();
  }
  PrepareOptions options;
  options.limits = {config.max_steps, config.max_instances, config.max_message_bytes};
  options.work.threads = device->threads;
  options.work.near_band_ulps = config.near_band_ulps;
  // So that a few large gradients fit side by side.
  options.work.memory_budget_bytes = memory / 4;
  server->service_ = std::make_unique<SimgradService>(std::move(context), options,
                                                      ServerInfoOf(config, *device, memory),
                                                      config.program_cache_entries);
  if (config.HasTls()) {
    auto files = TlsFiles::Create(config);
    if (!files.ok()) return files.status();
    server->tls_ = *std::move(files);
    server->TellExpiry();  // before the first scrape
  }
  if (absl::Status status = server->ListenForHealth(config); !status.ok()) return status;
  if (absl::Status status = server->Listen(config); !status.ok()) return status;
  if (server->tls_ != nullptr) server->WatchCertificate(config.tls_reload_interval);
  server->SetAdmitting(true);
  if (absl::Status status = server->StartSelfCheck(config); !status.ok()) return status;
  return server;
}

absl::Status Server::ListenForHealth(const config::ServerConfig& config) {
  grpc::EnableDefaultHealthCheckService(true);
  if (config.health_port == 0) return absl::OkStatus();
  const std::string address = HostAndPort(config.address, config.health_port);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetOption(std::make_unique<KeepPlugins>(std::vector<std::string>()));
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &health_port_);
  builder.SetMaxReceiveMessageSize(1 << 12);
  // gRPC does not build a server that has nothing but its own health service.
  builder.RegisterCallbackGenericService(&nothing_else_);
  health_ = builder.BuildAndStart();
  if (health_ != nullptr && health_port_ != 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen for health checks on ", address,
                                             "; is the port taken? --health_port chooses another"));
}

void Server::TellExpiry() {
  const int64_t expiry = absl::ToUnixSeconds(tls_->expiry());
  metrics_->tls_certificate_expiry.Set(static_cast<double>(expiry));
}

void Server::WatchCertificate(absl::Duration interval) {
  certificate_watch_ = std::jthread([this, interval](std::stop_token stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      tls_->Refresh();
      TellExpiry();
      wake.wait_for(lock, stop, absl::ToChronoNanoseconds(interval), [] { return false; });
    }
  });
}

absl::Status Server::Listen(const config::ServerConfig& config) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::channelz::experimental::InitChannelzService();
  std::vector<std::string> plugins;
  if (config.reflection) plugins.push_back("proto_server_reflection");
  if (config.channelz) plugins.push_back("channelz_service");
  const std::string address = HostAndPort(config.address, config.port);
  grpc::ServerBuilder builder;
  // A port that another process listens on is an error, not something to share.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(config.max_metadata_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  if (config.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(config.max_connection_age)));
  }
  builder.SetOption(std::make_unique<KeepPlugins>(std::move(plugins)));
  builder.AddListeningPort(
      address, tls_ == nullptr ? grpc::InsecureServerCredentials() : TlsCredentials(tls_), &port_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_request_bytes));
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
                      ", metrics on ", address_, ":", metrics_port(),
                      health_port_ == 0 ? "" : absl::StrCat(", health on :", health_port_),
                      ", device ", device_.Text());
}

absl::Status Server::StartSelfCheck(const config::ServerConfig& config) {
  const absl::Duration interval = config.self_check_interval;
  if (interval == absl::InfiniteDuration()) return absl::OkStatus();
  auto rollout = RolloutProbe(device_.engine);
  if (!rollout.ok()) return rollout.status();
  const PortSpeaks speaks = config.HasTls() ? PortSpeaks::kTls : PortSpeaks::kPlaintext;
  call_probe_ = std::make_shared<CallProbe>(grpc_.get());
  std::vector<SelfCheck::Probe> probes;
  probes.push_back({absl::StrCat("port ", port_),
                    [host = config::HostFromHere(config.address), port = port_, speaks, interval] {
                      return TryPort(host, port, speaks, interval);
                    }});
  probes.push_back(
      {"a health call", [call = call_probe_, interval] { return call->Try(interval); }});
  probes.push_back({"the smallest rollout", *std::move(rollout)});
  // A check has until the next one is due.
  self_check_ =
      std::make_unique<SelfCheck>(interval, interval, std::move(probes),
                                  [this](const absl::Status& outcome) { OnSelfCheck(outcome); });
  return absl::OkStatus();
}

void Server::OnSelfCheck(const absl::Status& outcome) {
  const std::lock_guard lock(serving_mutex_);
  well_ = outcome.ok();
  TellServing();
  if (!admitting_) return;
  if (well_) return LogNote(LogLevel::kInfo, "the check of the server itself succeeds again");
  LogNote(LogLevel::kError,
          absl::StrCat("the check of the server itself fails: ", std::string(outcome.message())));
}

void Server::SetAdmitting(bool admitting) {
  const std::lock_guard lock(serving_mutex_);
  admitting_ = admitting;
  TellServing();
}

void Server::TellServing() {
  const bool serving = admitting_ && well_;
  metrics_->ready.Set(serving ? 1.0 : 0.0);
  for (grpc::Server* server : {health_.get(), grpc_.get()}) {
    if (server == nullptr) continue;
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus(serving);
    health->SetServingStatus(metrics::kGrpcService, serving);
  }
}

void Server::StopAdmission() {
  if (self_check_ != nullptr) self_check_->Stop();
  SetAdmitting(false);
  preparation_->Drain(absl::ZeroDuration());
  queue_->Drain(absl::ZeroDuration());
}

void Server::CancelWork() {
  if (metrics_->CallsInFlight() > 0) cut_ = true;
  hurried_ = true;
  for (scheduling::WorkQueue* queue : {preparation_.get(), queue_.get()}) {
    queue->CancelAll(absl::UnavailableError("the server drains; the work was cancelled"));
  }
}

bool Server::Drain(absl::Duration timeout) {
  const bool ended = FinishWork(timeout);
  ShutDown();
  return ended;
}

bool Server::FinishWork(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  StopAdmission();
  // What is still being prepared will find that nothing new is admitted.
  const bool prepared = preparation_->Drain(timeout);
  const bool ended = queue_->Drain(std::max(end - absl::Now(), absl::ZeroDuration())) && prepared;
  if (!ended) CancelWork();
  // Answers that are still being read have until the deadline, or a second where there is none any
  // more; what is left then is cut off, and so is at once what never ends by itself: a probe that
  // watches the health.
  constexpr absl::Duration kLastWords = absl::Seconds(1);
  absl::Time last = std::max(end, absl::Now() + kLastWords);
  while (metrics_->CallsInFlight() > 0 && absl::Now() < last) {
    if (hurried_) last = std::min(last, absl::Now() + kLastWords);
    absl::SleepFor(absl::Milliseconds(2));
  }
  return ended && !cut_;
}

void Server::ShutDown() {
  if (call_probe_ != nullptr) call_probe_->Close();
  for (grpc::Server* server : {grpc_.get(), health_.get()}) {
    if (server != nullptr) server->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  if (call_probe_ != nullptr) call_probe_->Join();
}

Server::~Server() {
  self_check_.reset();
  for (scheduling::WorkQueue* queue : {preparation_.get(), queue_.get()}) {
    if (queue != nullptr) queue->CancelAll(absl::CancelledError("the server stops"));
  }
  ShutDown();
  // Workers end before the service and its streams go.
  exposer_.reset();
  preparation_.reset();
  queue_.reset();
  grpc_.reset();
  health_.reset();
}

}  // namespace simgrad::server::service
