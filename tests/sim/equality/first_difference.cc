// Comparison of two answers, to the bit.
#include <bit>
#include <cstdio>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tests/sim/equality/observed.h"

namespace simgrad::sim::equality {
namespace {

std::string Text(double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a (%.9g)", x, x);
  return buffer;
}
std::string Text(const std::string& x) { return x; }
template <typename T>
std::string Text(T x) {
  if constexpr (std::is_enum_v<T>) {
    return absl::StrCat(static_cast<int64_t>(x));
  } else {
    return absl::StrCat(x);
  }
}

// Step, halt and kind, in one number.
std::vector<int64_t> PlacesOf(const std::vector<std::optional<Halt>>& halts) {
  std::vector<int64_t> places;
  for (const auto& halt : halts) {
    places.push_back(halt ? 2 * (kMostHalts * halt->step + halt->halt) + halt->error : -1);
  }
  return places;
}

// Walks two values of one type along the same fields; keeps the first place where they differ.
class Walk {
 public:
  std::optional<std::string> found;

  template <typename T>
  void Leaf(const std::string& path, const T& a, const T& b) {
    if (found) return;
    bool equal = false;
    if constexpr (std::is_same_v<T, double>) {
      equal = std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
    } else {
      equal = a == b;
    }
    if (!equal) found = absl::StrCat(path, ": ", Text(a), " against ", Text(b));
  }

  template <typename List, typename Each>
  void Items(const std::string& path, const List& a, const List& b, const Each& each) {
    Leaf(path + ".size", a.size(), b.size());
    for (size_t i = 0; !found && i < a.size(); ++i)
      each(absl::StrCat(path, "[", i, "]"), a[i], b[i]);
  }

  template <typename List>
  void Numbers(const std::string& path, const List& a, const List& b) {
    if (found || SameBytes(a, b)) return;
    Items(path, a, b, [&](const std::string& at, const auto& x, const auto& y) { Leaf(at, x, y); });
  }

  void Same(const std::string& path, const Tensor& a, const Tensor& b) {
    Leaf(path + ".dtype", a.dtype, b.dtype);
    Numbers(path + ".shape", a.shape, b.shape);
    if (found || a.bytes == b.bytes) return;
    for (int64_t i = 0; !found && i < a.count(); ++i) {
      Leaf(absl::StrCat(path, "[", i, "]"), a.Get(i), b.Get(i));
    }
    if (!found) found = path + ": bytes differ";
  }

  void Same(const std::string& path, const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    Items(path, a, b,
          [&](const std::string& at, const Tensor& x, const Tensor& y) { Same(at, x, y); });
  }

  void Same(const std::string& path, const SmallestMargin& a, const SmallestMargin& b) {
    Leaf(path + ".any", a.any, b.any);
    Leaf(path + ".absolute", a.absolute, b.absolute);
    Leaf(path + ".absolute_instance", a.absolute_instance, b.absolute_instance);
    Leaf(path + ".ulps", a.ulps, b.ulps);
    Leaf(path + ".ulps_instance", a.ulps_instance, b.ulps_instance);
  }

  void Same(const std::string& path, const TerminationStep& a, const TerminationStep& b) {
    Leaf(path + ".runs", a.runs, b.runs);
    Leaf(path + ".iterations_sum", a.iterations_sum, b.iterations_sum);
    Leaf(path + ".iterations_min", a.iterations_min, b.iterations_min);
    Leaf(path + ".iterations_max", a.iterations_max, b.iterations_max);
    Numbers(path + ".iterations", a.iterations, b.iterations);
    Numbers(path + ".reasons", a.reasons, b.reasons);
    Leaf(path + ".tested_min", a.tested_min, b.tested_min);
    Leaf(path + ".tested_max", a.tested_max, b.tested_max);
    Leaf(path + ".checks", a.checks, b.checks);
    Leaf(path + ".nan_margins", a.nan_margins, b.nan_margins);
    Same(path + ".margin", a.margin, b.margin);
    Numbers(path + ".histogram", a.histogram, b.histogram);
    Leaf(path + ".near_stopped", a.near_stopped, b.near_stopped);
    Leaf(path + ".near_continued", a.near_continued, b.near_continued);
  }

  void Same(const std::string& path, const EventStep& a, const EventStep& b) {
    Leaf(path + ".checks", a.checks, b.checks);
    Leaf(path + ".count", a.count, b.count);
    Leaf(path + ".changes", a.changes, b.changes);
    Leaf(path + ".nan_margins", a.nan_margins, b.nan_margins);
    Same(path + ".margin", a.margin, b.margin);
  }

  void Same(const std::string& path, const StateRange& a, const StateRange& b) {
    Leaf(path + ".min", a.min, b.min);
    Leaf(path + ".max", a.max, b.max);
    Leaf(path + ".smallest", a.smallest, b.smallest);
    Leaf(path + ".subnormals", a.subnormals, b.subnormals);
    Leaf(path + ".zeros", a.zeros, b.zeros);
    Leaf(path + ".nans", a.nans, b.nans);
    Leaf(path + ".infinities", a.infinities, b.infinities);
  }

  void Same(const std::string& path, const AdjointSolves& a, const AdjointSolves& b) {
    Leaf(path + ".site", a.site, b.site);
    Leaf(path + ".solves", a.solves, b.solves);
    Leaf(path + ".turns", a.turns, b.turns);
    Leaf(path + ".most_turns", a.most_turns, b.most_turns);
    Leaf(path + ".capped", a.capped, b.capped);
    Leaf(path + ".residual", a.residual, b.residual);
  }

  void Same(const std::string& path, const RangeCounts& a, const RangeCounts& b) {
    Numbers(path + ".underflows", a.underflows, b.underflows);
    Numbers(path + ".overflows", a.overflows, b.overflows);
  }

  void Same(const std::string& path, const StepDiagnostics& a, const StepDiagnostics& b) {
    Leaf(path + ".steps", a.steps, b.steps);
    Columns(path + ".terminations", a.terminations, b.terminations);
    Columns(path + ".events", a.events, b.events);
    Numbers(path + ".sampled_steps", a.sampled_steps, b.sampled_steps);
    Columns(path + ".states", a.states, b.states);
    Items(path + ".event_margins", a.event_margins, b.event_margins,
          [&](const std::string& at, const auto& x, const auto& y) {
            Items(at, x, y, [&](const std::string& sample, const auto& p, const auto& q) {
              Numbers(sample, p, q);
            });
          });
    Same(path + ".ranges", a.ranges, b.ranges);
    Items(path + ".additions", a.additions, b.additions,
          [&](const std::string& at, const AdditionCounts& x, const AdditionCounts& y) {
            Leaf(at + ".role", x.role, y.role);
            Leaf(at + ".additions", x.additions, y.additions);
            Leaf(at + ".absorbed", x.absorbed, y.absorbed);
          });
  }

  void Same(const std::string& path, const InstanceSite& a, const InstanceSite& b) {
    Numbers(path + ".iterations", a.iterations, b.iterations);
    Numbers(path + ".reasons", a.reasons, b.reasons);
    Numbers(path + ".value_counts", a.value_counts, b.value_counts);
    Items(path + ".values", a.values, b.values,
          [&](const std::string& at, const auto& x, const auto& y) { Numbers(at, x, y); });
  }

  void Same(const std::string& path, const InstanceHealth& a, const InstanceHealth& b) {
    Leaf(path + ".ok", a.ok, b.ok);
    Leaf(path + ".phase", a.phase, b.phase);
    Leaf(path + ".step", a.step, b.step);
    Leaf(path + ".stopped", a.stopped, b.stopped);
  }

  void Same(const std::string& path, const InputGradient& a, const InputGradient& b) {
    Leaf(path + ".input", a.input, b.input);
    Leaf(path + ".connected", a.connected, b.connected);
    Leaf(path + ".gated_by", a.gated_by, b.gated_by);
    Same(path + ".gradient", a.gradient, b.gradient);
    Leaf(path + ".zero", a.magnitudes.zero, b.magnitudes.zero);
    Leaf(path + ".smallest", a.magnitudes.smallest, b.magnitudes.smallest);
    Leaf(path + ".largest", a.magnitudes.largest, b.magnitudes.largest);
  }

  void Same(const std::string& path, const BackwardStep& a, const BackwardStep& b) {
    Leaf(path + ".largest", a.largest, b.largest);
    Leaf(path + ".nonfinite", a.nonfinite, b.nonfinite);
    Numbers(path + ".exponents", a.exponents, b.exponents);
  }

  void Same(const std::string& path, const BirthCertificate& a, const BirthCertificate& b) {
    Leaf(path + ".phase", a.phase, b.phase);
    Leaf(path + ".step", a.step, b.step);
    Leaf(path + ".operation", a.operation, b.operation);
    Leaf(path + ".label", a.label, b.label);
    Leaf(path + ".site", a.site, b.site);
    Leaf(path + ".instance_id", a.instance_id, b.instance_id);
    Leaf(path + ".element", a.element, b.element);
    Leaf(path + ".iteration", a.iteration, b.iteration);
    Numbers(path + ".operands", a.operands, b.operands);
    Leaf(path + ".result", a.result, b.result);
    Leaf(path + ".class", a.non_finite_class, b.non_finite_class);
  }

 private:
  template <typename List>
  static bool SameBytes(const List& a, const List& b) {
    using T = std::decay_t<decltype(a[0])>;
    if constexpr (std::is_same_v<T, double>) {
      return false;
    } else {
      return a == b;
    }
  }

  template <typename T>
  void Columns(const std::string& path, const std::vector<std::vector<T>>& a,
               const std::vector<std::vector<T>>& b) {
    Items(path, a, b, [&](const std::string& at, const std::vector<T>& x, const std::vector<T>& y) {
      Items(at, x, y, [&](const std::string& in, const T& p, const T& q) { Same(in, p, q); });
    });
  }
};

template <typename T>
void SameList(Walk& walk, const std::string& path, const std::vector<T>& a,
              const std::vector<T>& b) {
  walk.Items(path, a, b,
             [&](const std::string& at, const T& x, const T& y) { walk.Same(at, x, y); });
}

template <typename T>
void SameRows(Walk& walk, const std::string& path, const std::vector<std::vector<T>>& a,
              const std::vector<std::vector<T>>& b) {
  walk.Items(path, a, b,
             [&](const std::string& at, const std::vector<T>& x, const std::vector<T>& y) {
               walk.Numbers(at, x, y);
             });
}

}  // namespace

std::optional<std::string> FirstDifference(const Observed& a, const Observed& b) {
  Walk walk;
  walk.Same("first_states", a.first_states, b.first_states);
  walk.Same("diagnostics", a.diagnostics, b.diagnostics);
  SameList(walk, "sites", a.sites, b.sites);
  walk.Same("trajectory", a.states, b.states);
  walk.Same("exports", a.exports, b.exports);
  const WorkResult& x = a.result;
  const WorkResult& y = b.result;
  walk.Leaf("steps_done", x.steps_done, y.steps_done);
  walk.Same("final_states", x.final_states, y.final_states);
  SameList(walk, "health", x.health, y.health);
  walk.Numbers("halts", PlacesOf(x.halts), PlacesOf(y.halts));
  walk.Numbers("path_signatures", x.path_signatures, y.path_signatures);
  walk.Leaf("batch_path_signature", x.batch_path_signature, y.batch_path_signature);
  SameRows(walk, "first_event_steps", x.first_event_steps, y.first_event_steps);
  walk.Numbers("values", x.values, y.values);
  walk.Leaf("value", x.value, y.value);
  SameRows(walk, "connected", a.connected, b.connected);
  SameRows(walk, "instance_gradients", a.instance_gradients, b.instance_gradients);
  SameList(walk, "backward", x.backward, y.backward);
  walk.Same("adjoint_ranges", x.adjoint_ranges, y.adjoint_ranges);
  SameList(walk, "gradients", x.gradients, y.gradients);
  SameList(walk, "adjoint_solves", x.adjoint_solves, y.adjoint_solves);
  walk.Leaf("skipped", x.skipped, y.skipped);
  walk.Leaf("left_out", x.left_out, y.left_out);
  SameList(walk, "certificates", x.certificates, y.certificates);
  return walk.found;
}

}  // namespace simgrad::sim::equality
