#include "server/metrics/series.h"

#include <algorithm>

namespace simgrad::server::metrics {

namespace {

std::vector<std::string> SitesOf(Scope scope, const WorldLabels& world) {
  if (scope == Scope::kTerminationSite) return world.termination_sites;
  if (scope == Scope::kEventSite) return world.event_sites;
  return scope == Scope::kSite ? AllSites(world) : std::vector<std::string>();
}

}  // namespace

std::vector<std::string> AllSites(const WorldLabels& world) {
  std::vector<std::string> sites = world.termination_sites;
  for (const std::string& site : world.event_sites) {
    if (std::find(sites.begin(), sites.end(), site) == sites.end()) sites.push_back(site);
  }
  return sites;
}

std::vector<LabelSet> SeriesOf(const Family& family, const std::vector<WorldLabels>& worlds) {
  std::vector<LabelSet> prefixes;
  const bool has_prefix = family.scope == Scope::kWorld ||
                          family.scope == Scope::kTerminationSite ||
                          family.scope == Scope::kEventSite || family.scope == Scope::kSite;
  if (!has_prefix) {
    prefixes.push_back({});
  }
  for (const WorldLabels& world : worlds) {
    if (family.scope == Scope::kWorld) prefixes.push_back({{"world", world.world}});
    for (const std::string& site : SitesOf(family.scope, world)) {
      prefixes.push_back({{"world", world.world}, {"site", site}});
    }
  }
  std::vector<LabelSet> series;
  for (const LabelSet& prefix : prefixes) {
    for (const auto& row : family.rows) {
      LabelSet& labels = series.emplace_back(prefix);
      for (size_t i = 0; i < row.size(); ++i) labels.emplace_back(family.labels[i], row[i]);
    }
  }
  return series;
}

}  // namespace simgrad::server::metrics
