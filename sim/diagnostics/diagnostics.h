// Records of each step, as data: columns over steps that merge to the same bits in any order.
//
// An executor fills a StepDiagnostics for a range of steps and some of the instances. Merge joins
// two parts of the same steps; Append joins two ranges of the same instances. Sums are integers,
// extremes are exact, and a tie goes to the smaller instance id. So nothing depends on blocks,
// threads or chunks.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "precision/policy.h"
#include "sim/program/program.h"

namespace simgrad::sim {

enum class StopReason : uint8_t {
  kConverged = 0,
  kMaxIter = 1,
  kNonFinite = 2,
  kNotEntered = 3,
  kCounter = 4,  // integers alone decided
};
inline constexpr int kStopReasonCount = 5;
std::string_view StopReasonName(StopReason reason);

// Histogram of |margin| in ulps: bucket 0 holds exact zero, bucket 1 (0, 1], bucket k
// (2^(k-2), 2^(k-1)], the last everything above (infinity too). NaN is counted apart.
inline constexpr int kMarginBuckets = 64;
int MarginBucket(double absolute_ulps);

// Histogram of the iterations of a run: bucket k holds those above bound k - 1, up to bound k; the
// last everything above. The bounds are those of the metric `solver_iterations`.
inline constexpr std::array<uint32_t, 15> kIterationBounds = {0,  1,  2,  3,  4,  6,   8,  12,
                                                              16, 24, 32, 48, 64, 128, 256};
inline constexpr size_t kIterationBuckets = kIterationBounds.size() + 1;
size_t IterationBucket(uint64_t iterations);

// The test that came closest to its threshold. Two minima: of |a - b| and of the ulps; each with
// the signed value and the smallest instance id that attains it; of a predicate's ulps also the
// deciding test.
struct SmallestMargin {
  double absolute = std::numeric_limits<double>::infinity();  // signed value of smallest magnitude
  uint64_t absolute_instance = 0;
  double ulps = std::numeric_limits<double>::infinity();  // signed
  uint64_t ulps_instance = 0;
  uint32_t test = 0;  // by number (decision_margin.h); 0: that of the site itself
  bool any = false;
  // NaN margins must not be offered. Ties: smaller instance id; same instance: the negative one;
  // then the smaller number of a test.
  void Offer(double margin, double margin_ulps, uint64_t instance, uint32_t deciding = 0);
  void Merge(const SmallestMargin& other);
  bool operator==(const SmallestMargin&) const = default;
};

// One loop site at one step, over all its runs (instances, elements, outer iterations).
using MarginHistogram = std::array<uint32_t, kMarginBuckets>;

struct TerminationStep {
  uint64_t runs = 0;
  uint64_t iterations_sum = 0;
  uint32_t iterations_min = std::numeric_limits<uint32_t>::max();
  uint32_t iterations_max = 0;
  std::array<uint32_t, kIterationBuckets> iterations{};  // histogram over the runs
  std::array<uint64_t, kStopReasonCount> reasons{};
  // Tested value (lhs) of the last test of each run, NaN left out; +inf, -inf where there was none.
  double tested_min = std::numeric_limits<double>::infinity();
  double tested_max = -std::numeric_limits<double>::infinity();
  SmallestMargin margin;        // over every test, that of the entry too
  MarginHistogram histogram{};  // margin of the last test of each run
  uint64_t nan_margins = 0;     // over every test
  uint64_t checks = 0;          // every test
  uint64_t near_stopped = 0;    // |margin| <= band ulps, and it ended the run
  uint64_t near_continued = 0;  // ... and it did not
  void Merge(const TerminationStep& other);
  bool operator==(const TerminationStep&) const = default;
};

struct EventStep {
  uint64_t checks = 0;   // elements for which it was decided (guard true)
  uint64_t count = 0;    // true
  uint64_t changes = 0;  // differs from the last evaluation of the same element (initially false)
  SmallestMargin margin;
  uint64_t nan_margins = 0;
  void Merge(const EventStep& other);
  bool operator==(const EventStep&) const = default;
};

// Range of one real state after a step.
struct StateRange {
  double min = std::numeric_limits<double>::infinity();  // finite values only
  double max = -std::numeric_limits<double>::infinity();
  double smallest = std::numeric_limits<double>::infinity();  // smallest non-zero magnitude
  uint64_t subnormals = 0, zeros = 0, nans = 0, infinities = 0;
  void Note(double x, double smallest_normal);  // one number
  void Merge(const StateRange& other);
  bool operator==(const StateRange&) const = default;
};

// Exponent histogram of |adjoint|: bucket 0 zero, bucket k: 2^(8k-136) <= |x| < 2^(8k-128),
// clamped to 1..33; NaN and Inf are in `nonfinite`.
inline constexpr int kExponentBuckets = 34;
int ExponentBucket(double magnitude);

// The state cotangents that leave the adjoint of one step (present ones; scaled by the loss scale).
struct BackwardStep {
  double largest = 0.0;  // finite
  uint64_t nonfinite = 0;
  std::array<uint64_t, kExponentBuckets> exponents{};
  void Merge(const BackwardStep& other);
  bool operator==(const BackwardStep&) const = default;
};

// Underflows and overflows per role: at narrowing casts and at state stores, forward and backward.
// A cast underflows when a non-zero value becomes zero or subnormal in the target, overflows when a
// finite value is beyond what rounds to the largest number, to nearest even: it becomes infinite, NaN
// (e4m3) or, saturating or rounded toward zero, the largest.
// A state store underflows when the stored value is subnormal, overflows when it is infinite.
struct RangeCounts {
  std::array<uint64_t, precision::kRoleCount> underflows{};
  std::array<uint64_t, precision::kRoleCount> overflows{};
  // A narrowing cast of the finite number x to a format, which gave r.
  void NoteCast(precision::Role role, precision::Format to, double x, double r);
  void Merge(const RangeCounts& other);
  bool operator==(const RangeCounts&) const = default;
};

// Additions of one site (sim/program/additions.h) at the sampled steps: those of finite operands that
// are not zero, and those of them that were absorbed.
struct AdditionCounts {
  precision::Role role = precision::Role::kDynamics;
  uint64_t additions = 0;
  uint64_t absorbed = 0;
  // x + y became `stored`, in the format of the state.
  void Note(double x, double y, double stored);
  bool operator==(const AdditionCounts&) const = default;
};

// Steps [first_step, first_step + steps). Outer index of every column: site or state; inner: step.
struct StepDiagnostics {
  int64_t first_step = 0;
  int64_t steps = 0;
  int32_t stride = 32;
  // [sites of the kind in text order][step]
  std::vector<std::vector<TerminationStep>> terminations;
  std::vector<std::vector<EventStep>> events;
  // [real states][sampled step]; sampled are steps t with (t + 1) % stride == 0, and the last.
  std::vector<int64_t> sampled_steps;
  std::vector<std::vector<StateRange>> states;
  // [events][sampled step]: margins of the elements for which it was decided; empty unless the
  // program has a level of tests.
  std::vector<std::vector<MarginHistogram>> event_margins;
  RangeCounts ranges;
  std::vector<AdditionCounts> additions;  // by site
  static StepDiagnostics For(const std::vector<Site>& sites, size_t real_states, int64_t first_step,
                             int64_t steps, int64_t total_steps, int32_t stride,
                             bool event_margins);
  void Merge(const StepDiagnostics& part);   // same steps, other instances
  void Append(const StepDiagnostics& next);  // the following steps
  bool operator==(const StepDiagnostics&) const = default;
};

// Level `instances`: what each instance did at one termination site.
struct InstanceSite {
  std::vector<uint32_t> iterations;         // [steps][instances]: sum over the runs of that step
  std::vector<uint8_t> reasons;             // [steps][instances]: of the last run
  std::vector<uint32_t> value_counts;       // [steps][instances]
  std::vector<std::vector<double>> values;  // [instances]: tested values, steps ascending, flat
};

enum class Phase : uint8_t { kInput, kForward, kAdjoint };
std::string_view PhaseName(Phase phase);

enum class NonFiniteClass : uint8_t { kInput, kInvalid, kDivideByZero, kOverflow, kConversion };
std::string_view NonFiniteClassName(NonFiniteClass c);

// The origin of a non-finite value: the first operation, in order of execution, whose result is
// not finite although its operands are (or the input that came in non-finite).
struct BirthCertificate {
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string operation;  // operation name, or the input's kind and name ("state.y")
  std::string label;      // source label
  std::string value_name;
  std::string site;  // site the operation belongs to, or the loop around it; may be empty
  precision::Role role = precision::Role::kState;
  precision::Format format = precision::Format::kF32;
  uint64_t instance_id = 0;
  // Row-major inside the value; in loops per element behind the flattened element of those loops.
  int64_t element = 0;
  int64_t iteration = 0;  // flattened iteration of the loops around it
  std::vector<double> operands;
  double result = 0.0;
  NonFiniteClass non_finite_class = NonFiniteClass::kInvalid;
};

}  // namespace simgrad::sim
