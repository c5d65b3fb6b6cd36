#include "sim/backend/step_columns.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace simgrad::sim {
namespace {

static_assert(kMarginBucketCount == kMarginBuckets);
static_assert(kExponentBucketCount == kExponentBuckets);
static_assert(kRoles == precision::kRoleCount);
static_assert(kReasons == kStopReasonCount);

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

// The number whose ordered key this is: negative ones have all bits turned, others the sign.
double NumberOf(uint64_t key) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return precision::DoubleOf((key & kSign) != 0 ? key ^ kSign : ~key);
}

struct Extreme {
  double value;
  uint64_t instance;
  uint32_t test;
};

Extreme ExtremeOf(const ExtremeMargin& margin, std::span<const uint64_t> sorted_ids) {
  const uint64_t rank = margin.key >> (kTestBits + 1);
  if (margin.magnitude == kNone || rank >= sorted_ids.size()) {
    return {std::numeric_limits<double>::infinity(), 0, 0};
  }
  const double magnitude = precision::DoubleOf(margin.magnitude);
  const bool negative = ((margin.key >> kTestBits) & 1) == 0;
  const uint32_t test = static_cast<uint32_t>(margin.key & ((uint64_t{1} << kTestBits) - 1));
  return {negative ? -magnitude : magnitude, sorted_ids[rank], test};
}

SmallestMargin SmallestOf(const ExtremeMargin& absolute, const ExtremeMargin& ulps,
                          std::span<const uint64_t> sorted_ids) {
  SmallestMargin smallest;
  if (absolute.magnitude == kNone) return smallest;
  const Extreme a = ExtremeOf(absolute, sorted_ids);
  const Extreme u = ExtremeOf(ulps, sorted_ids);
  smallest.absolute = a.value;
  smallest.absolute_instance = a.instance;
  smallest.ulps = u.value;
  smallest.ulps_instance = u.instance;
  smallest.test = u.test;
  smallest.any = true;
  return smallest;
}

}  // namespace

TerminationStep TerminationOf(const TerminationColumn& column,
                              std::span<const uint64_t> sorted_ids) {
  TerminationStep step;
  if (column.runs == 0 && column.checks == 0) return step;
  step.runs = column.runs;
  step.iterations_sum = column.iterations_sum;
  if (column.runs != 0) {
    step.iterations_min = column.iterations_min;
    step.iterations_max = column.iterations_max;
  }
  std::copy(std::begin(column.reasons), std::end(column.reasons), step.reasons.begin());
  step.tested_min = NumberOf(column.tested_min);
  step.tested_max = NumberOf(column.tested_max);
  step.margin = SmallestOf(column.absolute, column.ulps, sorted_ids);
  std::copy(std::begin(column.histogram), std::end(column.histogram), step.histogram.begin());
  std::copy(std::begin(column.iterations), std::end(column.iterations), step.iterations.begin());
  step.nan_margins = column.nan_margins;
  step.checks = column.checks;
  step.near_stopped = column.near_stopped;
  step.near_continued = column.near_continued;
  return step;
}

EventStep EventOf(const EventColumn& column, std::span<const uint64_t> sorted_ids) {
  EventStep step;
  step.checks = column.checks;
  step.count = column.count;
  step.changes = column.changes;
  step.margin = SmallestOf(column.absolute, column.ulps, sorted_ids);
  step.nan_margins = column.nan_margins;
  return step;
}

StateRange RangeOf(const StateColumn& column) {
  StateRange range;
  range.min = NumberOf(column.min);
  range.max = NumberOf(column.max);
  range.smallest = NumberOf(column.smallest);
  range.subnormals = column.subnormals;
  range.zeros = column.zeros;
  range.nans = column.nans;
  range.infinities = column.infinities;
  return range;
}

BackwardStep BackwardOf(const BackwardColumn& column) {
  BackwardStep step;
  step.largest = precision::DoubleOf(column.largest);
  step.nonfinite = column.nonfinite;
  std::copy(std::begin(column.exponents), std::end(column.exponents), step.exponents.begin());
  return step;
}

RangeCounts CountsOf(const RangeColumn& column) {
  RangeCounts counts;
  std::copy(std::begin(column.underflows), std::end(column.underflows), counts.underflows.begin());
  std::copy(std::begin(column.overflows), std::end(column.overflows), counts.overflows.begin());
  return counts;
}

void MergeEventMargins(std::span<const MarginColumn> columns, size_t first,
                       std::vector<std::vector<MarginHistogram>>& to) {
  for (size_t k = 0; k < columns.size(); ++k) {
    MarginHistogram& histogram = to[k % to.size()][first + k / to.size()];
    for (size_t bucket = 0; bucket < histogram.size(); ++bucket) {
      histogram[bucket] += columns[k].histogram[bucket];
    }
  }
}

void MergeAdditions(std::span<const AdditionColumn> columns, std::vector<AdditionCounts>& to) {
  for (size_t site = 0; site < columns.size(); ++site) {
    to[site].additions += columns[site].additions;
    to[site].absorbed += columns[site].absorbed;
  }
}

}  // namespace simgrad::sim
