#include "server/metrics/series.h"

namespace simgrad::server::metrics {

std::vector<LabelSet> SeriesOf(const Family& family, const std::vector<WorldLabels>& worlds) {
  std::vector<LabelSet> prefixes;
  const bool has_prefix = family.scope == Scope::kWorld ||
                          family.scope == Scope::kTerminationSite ||
                          family.scope == Scope::kEventSite;
  if (!has_prefix) {
    prefixes.push_back({});
  }
  for (const WorldLabels& world : worlds) {
    if (family.scope == Scope::kWorld) prefixes.push_back({{"world", world.world}});
    const bool loop = family.scope == Scope::kTerminationSite;
    if (!loop && family.scope != Scope::kEventSite) continue;
    for (const std::string& site : loop ? world.termination_sites : world.event_sites) {
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
