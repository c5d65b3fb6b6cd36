// Every metric family of the server: the one place where a name, its help, labels and buckets
// stand.
//
// The registry is built from it, docs/metrics.md is printed from it, and tests hold both against
// it. Source: the vocabulary of docs/metrics.md; grpc_server_* as go-grpc-prometheus names them.
#pragma once

#include <string>
#include <vector>

namespace simgrad::server::metrics {

enum class MetricType { kCounter, kGauge, kHistogram };

// The labels that stand before those of the row.
enum class Scope {
  kServer,           // none
  kWorld,            // world
  kTerminationSite,  // world, site: declared pairs only
  kEventSite,        // world, site: declared pairs only
  kSite,             // world, site: both of these
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

// docs/metrics.md.
std::string ManifestMarkdown();

}  // namespace simgrad::server::metrics
