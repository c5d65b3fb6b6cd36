#include "server/service/server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "precision/policy.h"
#include "server/config/version.h"
#include "server/metrics/methods.h"
#include "server/scheduling/steady_time.h"
#include "server/service/call_watch.h"
#include "server/service/contents.h"
#include "server/service/descriptor_limit.h"
#include "server/service/device.h"
#include "server/service/freed_memory.h"
#include "server/service/port_probe.h"
#include "server/service/request_log.h"
#include "server/service/rollout_probe.h"
#include "server/service/tls_files.h"
#include "server/service/upload_limits.h"
#include "sim/backend/cuda/cuda_device.h"
#include "sim/backend/kernel_folder.h"
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

metrics::ServerLabels LabelsOf(const Device& device, const std::vector<std::string>& callers) {
  metrics::ServerLabels labels = {config::kVersion, config::kRevision, device.kind, device.name};
  if (sim::cuda::IsCudaBuilt()) labels.cuda = sim::cuda::CudaBuildVersion();
  for (const Gpu& gpu : device.gpus) {
    labels.gpus.push_back({absl::StrCat(gpu.index), gpu.uuid, gpu.name});
  }
  labels.callers = callers;
  return labels;
}

std::vector<sim::cuda::DeviceUse> UseOf(const Device& device) {
  std::vector<sim::cuda::DeviceUse> uses;
  for (const Gpu& gpu : device.gpus) uses.push_back(gpu.device->Use());
  return uses;
}

int64_t KeptBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  return config.kept_run_bytes > 0 ? config.kept_run_bytes : memory_limit_bytes / 4;
}

int64_t ContentBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  const int64_t bytes = config.content_bytes > 0 ? config.content_bytes : memory_limit_bytes / 8;
  return std::max(bytes, 2 * Contents::kBesideContent);
}

absl::Status CheckShares(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  for (const auto& [flag, bytes] : {std::pair("kept_run_bytes", config.kept_run_bytes),
                                    std::pair("content_bytes", config.content_bytes)}) {
    if (bytes <= memory_limit_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", bytes, ": must be at most the memory limit, ",
                     memory_limit_bytes, " bytes (--memory_limit_bytes)"));
  }
  return absl::OkStatus();
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
  message->set_note(device.note);
  const sim::ProgramLimits programs;
  v1::Limits* limits = info.mutable_limits();
  limits->set_max_steps(config.max_steps);
  limits->set_max_instances(config.max_instances);
  limits->set_max_elements(programs.max_elements);
  limits->set_max_operations(programs.max_operations);
  limits->set_max_loop_iterations(programs.max_loop_iterations);
  limits->set_max_nested_iterations(programs.max_nested_iterations);
  limits->set_max_step_work(programs.max_step_work);
  limits->set_max_values(programs.max_values);
  limits->set_max_total_elements(programs.max_total_elements);
  limits->set_max_depth(programs.max_depth);
  limits->set_max_name_bytes(programs.max_name_bytes);
  limits->set_max_exports(programs.max_exports);
  limits->set_max_objectives(programs.max_objectives);
  limits->set_max_operands(programs.max_operands);
  limits->set_max_total_operands(programs.max_total_operands);
  limits->set_max_literal_elements(programs.max_literal_elements);
  const sim::LoweredLimits lowered;
  limits->set_max_lowered_operations(lowered.max_operations);
  limits->set_max_lowered_bytes(lowered.max_bytes);
  limits->set_max_lowered_text_bytes(lowered.max_text_bytes);
  limits->set_max_lowered_operands(lowered.max_operands);
  limits->set_max_lowered_visits(lowered.max_visits);
  limits->set_max_permuted_numbers(lowered.max_permuted);
  limits->set_max_path_bytes(validation::RequestLimits().max_path_bytes);
  limits->set_max_message_bytes(config.max_message_bytes);
  limits->set_max_request_bytes(config.max_request_bytes);
  limits->set_max_request_memory_bytes(memory_limit_bytes);
  limits->set_max_kept_bytes(KeptBytesOf(config, memory_limit_bytes));
  limits->set_kept_run_seconds(absl::ToDoubleSeconds(config.kept_run_ttl));
  const int64_t contents = ContentBytesOf(config, memory_limit_bytes);
  limits->set_max_upload_bytes(
      std::min(config.max_request_bytes, contents - Contents::kBesideContent));
  limits->set_max_uploaded_bytes(contents);
  limits->set_uploaded_seconds(absl::ToDoubleSeconds(config.content_ttl));
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) info.add_worlds(world.name);
  for (const std::string& preset : precision::PresetNames()) info.add_presets(preset);
  for (const std::string& order : precision::SumOrderNames()) info.add_orders(order);
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

std::string ReplicaOf(const config::ServerConfig& config) {
  if (!config.replica.empty()) return config.replica;
  std::array<char, 256> name{};
  const bool has_name = gethostname(name.data(), name.size() - 1) == 0;
  return has_name ? name.data() : "simgrad";
}

KeptRunsOptions KeptOptionsOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  KeptRunsOptions options;
  options.replica = ReplicaOf(config);
  options.ttl = config.kept_run_ttl;
  options.max_bytes = KeptBytesOf(config, memory_limit_bytes);
  return options;
}

// Entries are given up where work needs their memory, so the share may be generous.
conversion::ProgramCacheOptions CacheOptionsOf(const config::ServerConfig& config,
                                               int64_t memory_limit_bytes) {
  conversion::ProgramCacheOptions options;
  options.max_entries = config.program_cache_entries;
  options.max_bytes = memory_limit_bytes / 16;
  return options;
}

std::string HostAndPort(const std::string& address, int port) {
  const bool v6 = address.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
}

// Shares what descriptors allow between the two ports: a probe has one connection, seldom two.
constexpr int64_t kMostHealthConnections = 128;

ConnectionLimits LimitsOf(const config::ServerConfig& config, int64_t descriptors) {
  ConnectionLimits limits;
  limits.total =
      config.max_connections > 0 ? config.max_connections : ConnectionsWithin(descriptors);
  limits.per_host = config.max_connections_per_peer > 0 ? config.max_connections_per_peer
                                                        : std::max<int64_t>(limits.total / 2, 1);
  limits.handshake_timeout = config.handshake_timeout;
  return limits;
}

ConnectionLimits HealthLimitsOf(const config::ServerConfig& config, int64_t descriptors) {
  ConnectionLimits limits = LimitsOf(config, descriptors);
  limits.total = std::min(std::max<int64_t>(limits.total / 8, 1), kMostHealthConnections);
  limits.per_host = std::max<int64_t>(limits.total / 2, 1);
  return limits;
}

// The process that spans are of. Source: OpenTelemetry semantic conventions, services.
tracing::ExportSettings ExportSettingsOf(const config::ServerConfig& config) {
  tracing::ExportSettings settings;
  const std::pair<const char*, std::string> attributes[] = {
      {"service.name", "simgrad"},
      {"service.version", config::kVersion},
      {"service.instance.id", ReplicaOf(config)}};
  for (const auto& [key, text] : attributes) {
    tracing::Attribute* const attribute = settings.resource.add_attributes();
    attribute->set_key(key);
    attribute->mutable_value()->set_text(text);
  }
  settings.scope.set_name("simgrad-server");
  settings.scope.set_version(config::kVersion);
  return settings;
}

constexpr int64_t kHealthQuotaBytes = int64_t{64} << 20;

// Sets the limits of what every port of ours takes from strangers.
void Harden(grpc::ServerBuilder& builder, const config::ServerConfig& config, int64_t quota_bytes) {
  // Messages are never inflated: their size is what was sent. A call whose messages are compressed
  // ends UNIMPLEMENTED, and the filter that would inflate them before that is left out.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(config.handshake_timeout)));
  // A peer that is gone without a word is noticed, with calls and without.
  constexpr int kAskAfter = 60'000, kAnswerWithin = 20'000;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAskAfter);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAnswerWithin);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A caller may ask as well, while its work says nothing for long. gRPC would allow that every five minutes.
  constexpr int kMayAskEvery = 5'000;
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMayAskEvery);
  grpc::ResourceQuota quota("simgrad");
  quota.Resize(static_cast<size_t>(quota_bytes));
  // The threads of reflection and channelz, which hold one for each call.
  constexpr int kThreads = 32;
  quota.SetMaxThreads(kThreads);
  builder.SetResourceQuota(quota);
}

// Each is a call of gRPC, some ten KiB.
constexpr int64_t kMostHeldRefusals = 1024;

std::unique_ptr<ConnectionAcceptor::Grpc> AcceptedBy(
    grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  return builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
}

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
  if (config.warm) {
    if (absl::Status status = Warm(opened); !status.ok()) return status;
  }
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
      [whole = server.get()] { return whole->Load(); });
  if (server->token_gate_ != nullptr) {
    server->token_gate_->OnFailedRead(
        [&failures = server->metrics_->token_reload_failures] { failures.Increment(); });
  }
  server->metrics_->near_band_ulps.Set(config.near_band_ulps);

  if (absl::Status status = server->StartSpans(config); !status.ok()) return status;
  CallContext context;
  context.metrics = server->metrics_.get();
  context.spans = server->spans_.get();
  context.scheduler = server->scheduler_.get();
  context.engine = device->engine;
  context.device = device->kind;
  context.version = config::kVersion;
  context.revision = config::kRevision;
  server->streams_ = std::make_unique<OpenStreams>();
  context.streams = server->streams_.get();
  context.max_message_bytes = config.max_message_bytes;
  context.slow_reader_timeout = config.slow_reader_timeout;
  context.min_read_bytes_per_second = config.min_read_bytes_per_second;
  PrepareOptions options;
  options.limits = {config.max_steps, config.max_instances, config.max_message_bytes};
  options.work.threads = device->threads;
  options.work.near_band_ulps = config.near_band_ulps;
  options.engine = device->engine;
  // One gradient may take so much if its loops need it.
  options.work.memory_budget_bytes = memory / 2;
  server->ReportCompiles();
  server->service_ = std::make_unique<SimgradService>(
      std::move(context), options, ServerInfoOf(config, *device, memory),
      CacheOptionsOf(config, memory), KeptOptionsOf(config, memory),
      ContentsOptions{config.content_ttl, ContentBytesOf(config, memory)});
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

absl::Status Server::ListenForHealth(const config::ServerConfig& config) {
  grpc::EnableDefaultHealthCheckService(true);
  if (config.health_port == 0) return absl::OkStatus();
  const std::string address = HostAndPort(config.address, config.health_port);
  auto acceptor =
      ConnectionAcceptor::Create(config.address, config.health_port,
                                 HealthLimitsOf(config, descriptors_), metrics_->connections);
  if (!acceptor.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for health checks on ", address, " (",
                     std::string(acceptor.status().message()),
                     "); is the port taken? --health_port chooses another"));
  }
  health_acceptor_ = *std::move(acceptor);
  grpc::ServerBuilder builder;
  Harden(builder, config, kHealthQuotaBytes);
  builder.SetOption(std::make_unique<KeepPlugins>(std::vector<std::string>()));
  builder.SetMaxReceiveMessageSize(1 << 12);
  // gRPC does not build a server that has nothing but its own health service.
  builder.RegisterCallbackGenericService(&nothing_else_);
  WatchCalls(builder, health_acceptor_->connections(), Watched::kAll);
  auto grpc = AcceptedBy(builder, grpc::InsecureServerCredentials());
  health_ = builder.BuildAndStart();
  if (health_ == nullptr) return absl::UnavailableError("gRPC did not start for health checks");
  health_acceptor_->Start(std::move(grpc));
  health_port_ = health_acceptor_->port();
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
  auto acceptor = ConnectionAcceptor::Create(config.address, config.port,
                                             LimitsOf(config, descriptors_), metrics_->connections);
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
  builder.SetOption(std::make_unique<KeepPlugins>(std::move(plugins)));
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
  auto exposer =
      metrics::Exposer::Create(config.address, config.metrics_port, metrics_->collectables());
  if (!exposer.ok()) return exposer.status();
  exposer_ = *std::move(exposer);
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

metrics::LoadCollector::Values Server::Load() const {
  metrics::LoadCollector::Values values;
  const auto add = [&values](const char* family, const char* label, int64_t value) {
    values[{family, label}] = static_cast<double>(value);
  };
  values[{"simgrad_queue_requests"}] = static_cast<double>(scheduler_->arrived_waiting());
  values[{"simgrad_queue_capacity_requests"}] = static_cast<double>(scheduler_->capacity());
  for (const auto lane : {scheduling::Lane::kSmall, scheduling::Lane::kLarge}) {
    const char* const name = lane == scheduling::Lane::kSmall ? "small" : "large";
    const scheduling::WorkQueue& queue = std::as_const(*scheduler_).lane(lane);
    add("simgrad_workers", name, queue.workers());
    add("simgrad_workers_busy", name, queue.busy());
  }
  for (size_t use = 0; use < scheduling::kMemoryUseNames.size(); ++use) {
    add("simgrad_memory_reserved_bytes", scheduling::kMemoryUseNames[use],
        scheduler_->memory().used(static_cast<scheduling::MemoryUse>(use)));
  }
  const std::pair<const char*, conversion::ProgramCache::Use> caches[] = {
      {"worlds", service_->cache().worlds()}, {"programs", service_->cache().programs()}};
  const Contents::Use contents = service_->contents().use();
  add("simgrad_cache_bytes", "contents", contents.bytes);
  add("simgrad_cache_entries", "contents", contents.entries);
  for (const auto& [name, use] : caches) {
    add("simgrad_cache_bytes", name, use.bytes);
    add("simgrad_cache_entries", name, use.entries);
  }
  add("simgrad_tape_bytes", "host", service_->kept().use().bytes);
  add("simgrad_tape_limit_bytes", "host", service_->kept().max_bytes());
  if (device_.host != nullptr) {
    const sim::HeldCode held = device_.host->held();
    add("simgrad_cache_bytes", "plans", held.plan_bytes);
    add("simgrad_cache_entries", "plans", held.plans);
    add("simgrad_cache_bytes", "kernels", held.kernel_bytes);
    add("simgrad_cache_entries", "kernels", held.kernels);
  }
  values[{"simgrad_memory_limit_bytes"}] = static_cast<double>(scheduler_->memory().limit());
  return values;
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
  for (ConnectionAcceptor* acceptor : {acceptor_.get(), health_acceptor_.get()}) {
    if (acceptor != nullptr) acceptor->Stop();
  }
  // gRPC lets each write that it has begun end first: a peer that takes nothing from its socket
  // holds that up for ever, unless its connection is cut.
  static constexpr absl::Duration kToEndByItself = absl::Milliseconds(500);
  const std::jthread cut([this](const std::stop_token& stop) {
    if (StopsWithin(kToEndByItself, stop)) return;
    for (ConnectionAcceptor* acceptor : {acceptor_.get(), health_acceptor_.get()}) {
      if (acceptor != nullptr) acceptor->connections().CutAll();
    }
  });
  for (grpc::Server* server : {grpc_.get(), health_.get()}) {
    if (server != nullptr) server->Shutdown(absl::ToChronoTime(absl::Now()));
  }
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
