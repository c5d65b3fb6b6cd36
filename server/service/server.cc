#include "server/service/server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/config/version.h"
#include "server/listening_sockets.h"
#include "server/scheduling/steady_time.h"
#include "server/service/call_watch.h"
#include "server/service/descriptor_limit.h"
#include "server/service/freed_memory.h"
#include "server/service/health_service.h"
#include "server/service/memory_shares.h"
#include "server/service/port_limits.h"
#include "server/service/port_probe.h"
#include "server/service/request_log.h"
#include "server/service/rollout_probe.h"
#include "server/service/server_identity.h"
#include "server/service/server_info.h"
#include "server/service/server_load.h"
#include "server/service/upload_limits.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "sim/backend/kernel_folder.h"

namespace simgrad::server::service {
namespace {

// Each is a call of gRPC, some ten KiB.
constexpr int64_t kMostHeldRefusals = 1024;

// Waits so long, or until a stop is asked for; says whether it was.
bool StopsWithin(absl::Duration time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  wake.wait_for(lock, stop, absl::ToChronoNanoseconds(time), [] { return false; });
  return stop.stop_requested();
}

}  // namespace

absl::Status Server::CheckFiles(const config::ServerConfig& config) {
  const int64_t most_memory = config.memory_limit_bytes > 0
                                  ? config.memory_limit_bytes
                                  : MostMemoryBudget(config, HostMemoryBytes());
  if (absl::Status status = CheckShares(config, most_memory); !status.ok()) return status;
  if (!config.token_file.empty()) {
    if (auto gate = TokenGate::Create(config.token_file); !gate.ok()) return gate.status();
  }
  if (!config.otlp_ca.empty()) {
    if (auto ca = ReadCa("otlp_ca", config.otlp_ca); !ca.ok()) return ca.status();
  }
  if (!config.kernel_cache.empty()) {
    const absl::Status folder = sim::CheckKernelFolder(config.kernel_cache);
    if (!folder.ok()) {
      return absl::Status(folder.code(), absl::StrCat("--kernel_cache: ", folder.message()));
    }
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
  std::unique_ptr<Server> server(new Server());
  server->address_ = config.address;
  server->descriptors_ = RaiseDescriptorLimit();
  server->device_ = std::move(opened);
  const Device* const device = &server->device_;
  const int64_t memory = config.memory_limit_bytes > 0
                             ? config.memory_limit_bytes
                             : DefaultMemoryBudget(*device, HostMemoryBytes());
  if (absl::Status status = CheckShares(config, memory); !status.ok()) return status;
  const int workers = config.workers > 0 ? config.workers : device->threads;
  server->scheduler_ = std::make_unique<scheduling::Scheduler>(
      scheduling::SchedulerOptions{workers, config.queue_capacity, memory});
  std::vector<std::string> callers = config.callers;
  if (!config.token_file.empty()) {
    auto gate = TokenGate::Create(config.token_file);
    if (!gate.ok()) return gate.status();
    server->token_gate_ = *std::move(gate);
    callers = server->token_gate_->names();
  }
  server->metrics_ = std::make_unique<metrics::ServerMetrics>(
      LabelsOf(*device, callers), WorldLabelsOf(), [device] { return UseOf(*device); },
      [whole = server.get()] {
        return LoadOf(*whole->scheduler_, *whole->service_, whole->device_);
      });
  if (server->token_gate_ != nullptr) {
    server->token_gate_->OnFailedRead(
        [&failures = server->metrics_->token_reload_failures] { failures.Increment(); });
  }
  server->metrics_->near_band_ulps.Set(config.near_band_ulps);

  if (absl::Status status = server->StartSpans(config); !status.ok()) return status;
  server->MakeService(config);
  if (config.HasTls()) {
    auto files = TlsFiles::Create(config);
    if (!files.ok()) return files.status();
    server->tls_ = *std::move(files);
    server->TellExpiry();  // before the first scrape
  }
  if (absl::Status status = server->ExposeMetrics(config); !status.ok()) return status;
  if (config.warm) {
    if (absl::Status status = Warm(*device); !status.ok()) return status;
  }
  server->ReportCompiles();
  grpc::EnableDefaultHealthCheckService(true);  // of every port
  if (absl::Status status = server->ListenForHealth(config); !status.ok()) return status;
  if (absl::Status status = server->Listen(config); !status.ok()) return status;
  if (server->tls_ != nullptr) server->WatchCertificate(config.tls_reload_interval);
  std::vector<grpc::Server*> servers;
  if (server->health_ != nullptr) servers.push_back(server->health_->server());
  servers.push_back(server->grpc_.get());
  server->serving_ = std::make_unique<ServingState>(server->metrics_->ready, std::move(servers));
  server->serving_->SetAdmitting(true);
  if (absl::Status status = server->StartSelfCheck(config); !status.ok()) return status;
  return server;
}

void Server::MakeService(const config::ServerConfig& config) {
  const int64_t memory = scheduler_->memory_limit_bytes();
  CallContext context;
  context.metrics = metrics_.get();
  context.spans = spans_.get();
  context.scheduler = scheduler_.get();
  context.engine = device_.engine;
  context.device = device_.kind;
  context.version = config::kVersion;
  context.revision = config::kRevision;
  streams_ = std::make_unique<OpenStreams>();
  context.streams = streams_.get();
  context.max_message_bytes = config.max_message_bytes;
  context.slow_reader_timeout = config.slow_reader_timeout;
  context.min_read_bytes_per_second = config.min_read_bytes_per_second;
  PrepareOptions options;
  options.limits = {config.max_steps, config.max_instances, config.max_message_bytes};
  options.work.threads = device_.threads;
  options.work.near_band_ulps = config.near_band_ulps;
  options.engine = device_.engine;
  // One gradient may take so much if its loops need it.
  options.work.memory_budget_bytes = memory / 2;
  service_ = std::make_unique<SimgradService>(
      std::move(context), options, ServerInfoOf(config, device_, memory),
      CacheOptionsOf(config, memory), KeptOptionsOf(config, memory),
      ContentsOptionsOf(config, memory));
}

absl::Status Server::StartSpans(const config::ServerConfig& config) {
  if (config.otlp_endpoint.empty()) return absl::OkStatus();
  std::string ca;
  if (!config.otlp_ca.empty()) {
    auto text = ReadCa("otlp_ca", config.otlp_ca);
    if (!text.ok()) return text.status();
    ca = *std::move(text);
  }
  spans_ = std::make_unique<tracing::SpanExporter>(
      tracing::GrpcCollector(config.otlp_endpoint, ca), ExportSettingsOf(config),
      [metrics = metrics_.get()](tracing::SpanEnd end, int64_t spans) {
        metrics->trace_spans[static_cast<size_t>(end)].Add(static_cast<double>(spans));
      },
      [endpoint = config.otlp_endpoint](const std::string& note) {
        LogNote(LogLevel::kWarning, absl::StrCat("--otlp_endpoint=", endpoint, ": ", note));
      });
  return absl::OkStatus();
}

void Server::ReportCompiles() {
  if (device_.compiles == nullptr) return;
  CompileReports::Metrics metrics;
  for (size_t quality = 0; quality < metrics.compiles.size(); ++quality) {
    metrics.compiles[quality] = metrics_->kernel_compiles[quality];
    metrics.seconds[quality] = metrics_->kernel_compile_seconds[quality];
  }
  device_.compiles->Attach(scheduler_->shared_memory(), metrics);
}

// Before the first kernels are compiled, which may take minutes: a server that starts is no target that is down.
absl::Status Server::ExposeMetrics(const config::ServerConfig& config) {
  auto exposer =
      metrics::Exposer::Create(config.address, config.metrics_port, metrics_->collectables());
  if (!exposer.ok()) return exposer.status();
  exposer_ = *std::move(exposer);
  return absl::OkStatus();
}

absl::Status Server::ListenForHealth(const config::ServerConfig& config) {
  if (config.health_port == 0) return absl::OkStatus();
  auto health = HealthPort::Create(config, descriptors_, metrics_->connections);
  if (!health.ok()) return health.status();
  health_ = *std::move(health);
  return absl::OkStatus();
}

void Server::TellExpiry() {
  const int64_t expiry = absl::ToUnixSeconds(tls_->expiry());
  metrics_->tls_certificate_expiry.Set(static_cast<double>(expiry));
}

bool Server::ReadFilesAgain() {
  if (tls_ == nullptr) return false;
  const bool read = tls_->Refresh();
  if (!read) metrics_->certificate_reload_failures.Increment();
  TellExpiry();
  return read;
}

void Server::WatchCertificate(absl::Duration interval) {
  certificate_watch_ = std::jthread([this, interval](const std::stop_token& stop) {
    do {
      ReadFilesAgain();
    } while (!StopsWithin(interval, stop));
  });
}

absl::Status Server::Listen(const config::ServerConfig& config) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::channelz::experimental::InitChannelzService();
  std::vector<std::string> plugins;
  if (config.reflection) plugins.push_back("proto_server_reflection");
  if (config.channelz) plugins.push_back("channelz_service");
  auto acceptor = ConnectionAcceptor::Create(
      config.address, config.port, ConnectionLimitsOf(config, descriptors_), metrics_->connections);
  if (!acceptor.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", HostAndPort(config.address, config.port), " (",
        std::string(acceptor.status().message()), "); is the port taken? --port=0 picks one"));
  }
  acceptor_ = *std::move(acceptor);
  grpc::ServerBuilder builder;
  Harden(builder, config, GrpcMemoryOf(config, scheduler_->memory_limit_bytes()));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(config.max_metadata_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  if (config.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(config.max_connection_age)));
  }
  KeepPlugins(builder, std::move(plugins));
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_request_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(config.max_message_bytes));
  const auto bytes_read = [connections = &acceptor_->connections()](const std::string& peer) {
    return connections->BytesRead(peer);
  };
  uploads_ = std::make_shared<Uploads>(UploadLimitsOf(config, scheduler_->memory_limit_bytes()),
                                       scheduler_->memory(), bytes_read, [] { malloc_trim(0); });
  streams_->Add(uploads_);
  streams_->Add(std::make_shared<FreedMemory>([] { malloc_trim(0); }));
  held_refusals_ = std::make_shared<HeldRefusals>(
      kMostHeldRefusals, [scheduler = scheduler_.get()] { return scheduler->Room(); });
  streams_->Add(held_refusals_);
  auto health = std::make_unique<HealthService>();
  calls_ = std::make_unique<CallQueue>(builder);
  const IncomingShared shared = {uploads_.get(), held_refusals_.get(), &acceptor_->connections(),
                                 metrics_.get(), scheduler_.get(),     token_gate_.get(),
                                 spans_.get()};
  incoming_ = std::make_unique<IncomingCalls>(shared, *service_, *health, name_, *calls_);
  // The server owns it from now on.
  builder.SetOption(
      std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(std::move(health)));
  builder.RegisterService(&name_);
  builder.RegisterAsyncGenericService(&incoming_->generic());
  WatchCalls(builder, acceptor_->connections(), Watched::kSynchronous);
  auto grpc = AcceptedBy(
      builder, tls_ == nullptr ? grpc::InsecureServerCredentials() : TlsCredentials(tls_));
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC did not start");
  port_ = acceptor_->port();
  service_->SetPorts(port_, exposer_->port());
  incoming_->Start();
  calls_->Start();
  acceptor_->Start(std::move(grpc));
  return absl::OkStatus();
}

std::string Server::Banner() const {
  return absl::StrCat("simgrad-server ", config::kVersion, " listening on ", address_, ":", port_,
                      ", metrics on ", address_, ":", metrics_port(),
                      health_port() == 0 ? "" : absl::StrCat(", health on :", health_port()),
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
  // A launch that fills a GPU lets no other begin, however long it takes.
  probes.push_back({"the smallest rollout", *std::move(rollout),
                    [engine = device_.engine] { return engine->executor().IsAtWork(); }});
  // A check has until the next one is due.
  self_check_ = std::make_unique<SelfCheck>(
      interval, interval, std::move(probes),
      [serving = serving_.get()](const absl::Status& outcome) { serving->OnSelfCheck(outcome); });
  return absl::OkStatus();
}

void Server::StopAdmission() {
  if (self_check_ != nullptr) self_check_->Stop();
  serving_->SetAdmitting(false);
  scheduler_->StopArrivals();
}

void Server::CancelWork() {
  if (metrics_->CallsInFlight() > 0) cut_ = true;
  hurried_ = true;
  scheduler_->CancelAll(absl::UnavailableError("the server drains; the work was cancelled"));
}

void Server::CloseSpans(absl::Duration timeout) {
  if (spans_ != nullptr) spans_->Close(timeout);
}

bool Server::Drain(absl::Duration timeout) {
  const bool ended = FinishWork(timeout);
  ShutDown();
  return ended;
}

bool Server::FinishWork(absl::Duration timeout) {
  const absl::Time end = SteadyNow() + timeout;
  StopAdmission();
  const bool ended = scheduler_->AwaitIdle(timeout);
  if (!ended) CancelWork();
  // Answers that are still being read have until the deadline, or a second where there is none any
  // more; what is left then is cut off, and so is at once what never ends by itself: a probe that
  // watches the health.
  constexpr absl::Duration kLastWords = absl::Seconds(1);
  absl::Time last = std::max(end, SteadyNow() + kLastWords);
  while (metrics_->CallsInFlight() > 0 && SteadyNow() < last) {
    if (hurried_) last = std::min(last, SteadyNow() + kLastWords);
    absl::SleepFor(absl::Milliseconds(2));
  }
  return ended && !cut_;
}

void Server::ShutDown() {
  if (call_probe_ != nullptr) call_probe_->Close();
  std::vector<ConnectionAcceptor*> acceptors;
  std::vector<grpc::Server*> servers;
  if (acceptor_ != nullptr) acceptors.push_back(acceptor_.get());
  if (grpc_ != nullptr) servers.push_back(grpc_.get());
  if (health_ != nullptr) {
    acceptors.push_back(&health_->acceptor());
    servers.push_back(health_->server());
  }
  for (ConnectionAcceptor* acceptor : acceptors) acceptor->Stop();
  // gRPC lets each write that it has begun end first: a peer that takes nothing from its socket
  // holds that up for ever, unless its connection is cut.
  static constexpr absl::Duration kToEndByItself = absl::Milliseconds(500);
  const std::jthread cut([&acceptors](const std::stop_token& stop) {
    if (StopsWithin(kToEndByItself, stop)) return;
    for (ConnectionAcceptor* acceptor : acceptors) acceptor->connections().CutAll();
  });
  for (grpc::Server* server : servers) server->Shutdown(absl::ToChronoTime(absl::Now()));
  if (calls_ != nullptr) calls_->Stop();
  // All calls have ended. What a look, or a held refusal, still has of them goes before the server.
  if (streams_ != nullptr) streams_->Look(OpenStream::Clock::time_point::max());
  if (call_probe_ != nullptr) call_probe_->Join();
}

Server::~Server() {
  self_check_.reset();
  if (device_.compiles != nullptr) device_.compiles->Detach();
  if (scheduler_ != nullptr) scheduler_->CancelAll(absl::CancelledError("the server stops"));
  ShutDown();
  // Workers end before the service and its streams go.
  exposer_.reset();
  if (scheduler_ != nullptr) scheduler_->Stop();
  grpc_.reset();
  health_.reset();
}

}  // namespace simgrad::server::service
