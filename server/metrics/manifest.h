// Every metric family of the server: the one place where a name, its help, labels and buckets
// stand.
//
// The registry is built from it, docs/metrics.md is printed from it, and tests hold both against
// it. Source: the vocabulary of docs/metrics.md; grpc_server_* as go-grpc-prometheus names them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace simgrad::server::metrics {

enum class MetricType { kCounter, kGauge, kHistogram };

// The labels that stand before those of the row.
enum class Scope {
  kServer,           // none
  kWorld,            // world
  kTerminationSite,  // world, site: declared pairs only
  kEventSite,        // world, site: declared pairs only
  kProcess,          // none; read from the operating system at each scrape
  kGpu,              // none; read from the devices at each scrape
  kLoad,             // none; read from the scheduler at each scrape
};

struct Family {
  std::string name;  // in full
  MetricType type = MetricType::kCounter;
  Scope scope = Scope::kServer;
  std::string help;
  std::vector<std::string> labels;             // without world and site
  std::vector<std::vector<std::string>> rows;  // values of `labels`: every series there is
  std::vector<double> buckets;                 // histograms: upper bounds
};

// A built-in world with its sites, or "custom" with the one site "custom".
struct WorldLabels {
  std::string world;
  std::vector<std::string> termination_sites;
  std::vector<std::string> event_sites;
};

// The labels of the info metrics.
struct GpuLabels {
  std::string gpu;  // index
  std::string uuid;
  std::string name;
};
struct ServerLabels {
  std::string version;
  std::string revision;
  std::string device_kind;
  std::string device_name;
  std::string cuda = "none";  // version of CUDA that the build can use
  std::vector<GpuLabels> gpus;
  std::vector<std::string> callers;  // names that the operator wrote down; the first kMostCallers
};

// Callers with series of their own; all others are "other".
inline constexpr size_t kMostCallers = 20;
inline constexpr char kOtherCaller[] = "other";

std::vector<Family> Manifest(const ServerLabels& server);

// Label names and values of every series of a family, in order.
using LabelSet = std::vector<std::pair<std::string, std::string>>;
std::vector<LabelSet> SeriesOf(const Family& family, const std::vector<WorldLabels>& worlds);

// Series a scraper sees: a histogram has one per bucket, +Inf, sum and count.
size_t SeriesCount(const Family& family, size_t label_sets);

// Most series without worlds, and per world.
inline constexpr size_t kServerSeriesBudget = 1000;
inline constexpr size_t kWorldSeriesBudget = 150;

// docs/metrics.md.
std::string ManifestMarkdown();

// The gRPC service, its methods with their kind, and the codes each can return.
inline constexpr char kGrpcService[] = "simgrad.v1.Simgrad";
struct Method {
  std::string name;
  std::string type;                // unary, server_stream
  std::vector<std::string> codes;  // as go-grpc-prometheus writes them
};
const std::vector<Method>& Methods();

}  // namespace simgrad::server::metrics
