#include "server/metrics/process_collector.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

namespace simgrad::server::metrics {
namespace {

// The fields of /proc/self/stat after the command, whose closing parenthesis ends field 2; field n
// of proc(5) stands at n - 3.
std::vector<double> StatFields(const std::string& proc) {
  std::ifstream file(proc + "/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  std::string state;
  rest >> state;
  std::vector<double> fields = {0.0};
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

double TicksPerSecond() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

double BootTimeSeconds(const std::string& proc) {
  std::ifstream file(proc + "/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  }
  return 0.0;
}

double StartSeconds(const std::string& proc) {
  const std::vector<double> stat = StatFields(proc);
  return stat.size() > 19 ? BootTimeSeconds(proc) + stat[22 - 3] / TicksPerSecond() : 0.0;
}

double OpenFileDescriptors(const std::string& proc) {
  std::error_code error;
  double count = 0;
  for (auto it = std::filesystem::directory_iterator(proc + "/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

std::map<std::string, double> Read(const std::string& proc) {
  std::map<std::string, double> values;
  const std::vector<double> stat = StatFields(proc);
  if (stat.size() > 21) {
    values["process_cpu_seconds_total"] = (stat[14 - 3] + stat[15 - 3]) / TicksPerSecond();
    values["process_virtual_memory_bytes"] = stat[23 - 3];
    values["process_resident_memory_bytes"] =
        stat[24 - 3] * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  values["process_open_fds"] = OpenFileDescriptors(proc);
  rlimit limit{};
  // An unlimited number is told as the largest that is exact.
  constexpr double kUnlimited = 9007199254740992.0;  // 2^53
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    values["process_max_fds"] =
        limit.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<double>(limit.rlim_cur);
  }
  return values;
}

}  // namespace

ProcessCollector::ProcessCollector(const std::vector<Family>& manifest, std::string proc)
    : proc_(std::move(proc)), start_seconds_(StartSeconds(proc_)) {
  for (const Family& family : manifest) {
    if (family.scope == Scope::kProcess) families_.push_back(family);
  }
}

std::vector<prometheus::MetricFamily> ProcessCollector::Collect() const {
  std::map<std::string, double> values = Read(proc_);
  values["process_start_time_seconds"] = start_seconds_;
  std::vector<prometheus::MetricFamily> families;
  for (const Family& declared : families_) {
    prometheus::MetricFamily& family = families.emplace_back();
    family.name = declared.name;
    family.help = declared.help;
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    const auto found = values.find(declared.name);
    const double value = found == values.end() ? 0.0 : found->second;
    if (declared.type == MetricType::kCounter) {
      family.type = prometheus::MetricType::Counter;
      metric.counter.value = value;
    } else {
      family.type = prometheus::MetricType::Gauge;
      metric.gauge.value = value;
    }
  }
  return families;
}

}  // namespace simgrad::server::metrics
