// The series of a family for given worlds, and how many there may be of all families.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/manifest.h"

namespace simgrad::server::metrics {

// A built-in world with its sites, or "custom" with the one site "custom".
struct WorldLabels {
  std::string world;
  std::vector<std::string> termination_sites;
  std::vector<std::string> event_sites;
};

// Loops, then tests, each name once.
std::vector<std::string> AllSites(const WorldLabels& world);

// Label names and values of every series of a family, in order.
using LabelSet = std::vector<std::pair<std::string, std::string>>;
std::vector<LabelSet> SeriesOf(const Family& family, const std::vector<WorldLabels>& worlds);

// Most series that a scraper sees, without worlds and per world.
inline constexpr size_t kServerSeriesBudget = 1000;
inline constexpr size_t kWorldSeriesBudget = 150;

}  // namespace simgrad::server::metrics
