#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/metrics/manifest.h"
#include "server/metrics/series.h"

namespace simgrad::server::metrics {
namespace {

std::string TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string ScopeLabels(Scope scope) {
  switch (scope) {
    case Scope::kWorld:
      return "`world`";
    case Scope::kTerminationSite:
    case Scope::kEventSite:
    case Scope::kSite:
      return "`world`, `site`";
    default:
      return "";
  }
}

// Distinct values of one label over all rows, in order of appearance.
std::string ValuesOf(const Family& family, size_t label) {
  std::vector<std::string> values;
  for (const auto& row : family.rows) {
    bool known = false;
    for (const std::string& value : values) known = known || value == row[label];
    if (!known) values.push_back(row[label]);
  }
  return absl::StrJoin(values, ", ");
}

std::string LabelsOf(const Family& family) {
  std::string text = ScopeLabels(family.scope);
  const bool info = family.name.find("_info") != std::string::npos;
  for (size_t i = 0; i < family.labels.size(); ++i) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "`", family.labels[i], "`");
    const std::string values = ValuesOf(family, i);  // empty: known once there is a device
    if (!info && !values.empty()) absl::StrAppend(&text, " = ", values);
  }
  return text;
}

}  // namespace

std::string ManifestMarkdown() {
  std::string text =
      "# Metrics\n\n"
      "Printed from the manifest in `server/metrics/manifest.cc` by `simgrad-metrics-doc`; a test "
      "holds this\npage against it, and what the server exposes against both. Served on "
      "`--metrics_port` under\n`/metrics`.\n\n"
      "`world` is a built-in world or `custom`; `site` is a site declared by a built-in world or "
      "`custom`.\nEvery series exists from the start, so the first increment is visible to "
      "`increase()`. No series is\never NaN or infinite: an observation that is not finite is "
      "counted in "
      "`simgrad_nonfinite_values_total`\ninstead, and one beyond 2^959 adds 2^959 to its sum. "
      "Metrics are counted at every diagnostics "
      "level.\n\n";
  absl::StrAppend(&text, "At most ", kServerSeriesBudget, " series without worlds, at most ",
                  kWorldSeriesBudget, " per world.\n\n",
                  "| metric | type | labels | meaning | buckets |\n|---|---|---|---|---|\n");
  for (const Family& family : Manifest({})) {
    const std::string buckets =
        absl::StrJoin(family.buckets, " ", [](std::string* out, double bound) {
          absl::StrAppend(out, absl::StrFormat("%.8g", bound));
        });
    absl::StrAppend(&text, "| `", family.name, "` | ", TypeName(family.type), " | ",
                    LabelsOf(family), " | ", family.help, " | ", buckets, " |\n");
  }
  return text;
}

}  // namespace simgrad::server::metrics
