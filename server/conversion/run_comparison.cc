#include "server/conversion/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/conversion/result.h"
#include "sim/program/paths.h"

namespace simgrad::server::conversion {
namespace {

template <class T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// The Euclidean norm of numbers divided by the largest of them, so that no square overflows or vanishes.
struct ScaledNorm {
  double largest = 0;
  double sum = 0;  // of squares, so divided
  void Add(double x) {
    const double part = largest == 0 ? 0.0 : x / largest;
    sum += part * part;
  }
  double norm() const { return std::sqrt(sum); }
};

// An infinity or a NaN that both have is no difference.
double OffBy(double reference, double other) {
  if (reference == other || (std::isnan(reference) && std::isnan(other))) return 0;
  return other - reference;
}

bool IsInteger(sim::DType dtype) {
  return dtype == sim::DType::kI64 || dtype == sim::DType::kI32 || dtype == sim::DType::kU32 ||
         dtype == sim::DType::kU8;
}

// other - reference, of integers exactly before it becomes a real.
double OffAt(const sim::Tensor& reference, const sim::Tensor& other, int64_t k) {
  if (!IsInteger(reference.dtype) || !IsInteger(other.dtype)) {
    return OffBy(reference.Get(k), other.Get(k));
  }
  __extension__ using Wide = __int128;
  return static_cast<double>(static_cast<Wide>(other.GetInt(k)) - reference.GetInt(k));
}

sim::Tensor NumbersOf(const std::vector<double>& values) {
  sim::Tensor tensor = sim::Tensor::Zeros(sim::DType::kF64, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.Set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

}  // namespace

v1::FieldDifference DifferenceOf(const std::string& field, const sim::Tensor& reference,
                                 const sim::Tensor& other, sim::WorkMeter& meter) {
  using Limits = std::numeric_limits<double>;
  constexpr int64_t kOfPair = 4 * sim::kConversionWork;
  v1::FieldDifference difference;
  difference.set_field(field);
  difference.set_at(-1);
  const int64_t count = reference.count();
  const auto in_pieces = [&](const auto& look) {
    sim::InPieces(meter, count, kOfPair, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) look(k);
    });
  };
  const auto value_at = [&](int64_t k) {
    const double value = reference.Get(k);
    return std::isfinite(value) ? value : 0.0;
  };
  ScaledNorm by, of;
  bool is_finite = true;
  in_pieces([&](int64_t k) {
    const double off = OffAt(reference, other, k);
    of.largest = std::max(of.largest, std::abs(value_at(k)));
    is_finite = is_finite && std::isfinite(off);
    const double size = std::isnan(off) ? Limits::infinity() : std::abs(off);
    if (size <= by.largest) return;
    by.largest = size;
    difference.set_at(k);
  });
  if (difference.at() < 0) return difference;
  difference.set_largest(std::abs(OffAt(reference, other, difference.at())));
  difference.set_relative(is_finite ? Limits::infinity() : Limits::quiet_NaN());
  if (!is_finite || of.largest == 0) return difference;
  in_pieces([&](int64_t k) {
    by.Add(OffAt(reference, other, k));
    of.Add(value_at(k));
  });
  const double relative = by.norm() / of.norm() * (by.largest / of.largest);
  difference.set_relative(std::clamp(relative, Limits::denorm_min(), Limits::max()));
  return difference;
}

void RunComparison::Begin(std::shared_ptr<const sim::NumericalProgram> program, int64_t instances,
                          int64_t steps) {
  run_ = {std::move(program), steps, {}};
  for (const sim::Site& site : run_.program->sites) {
    if (sim::WorldSite(site.name) == site.name) run_.counts.emplace_back(site.name, 0);
  }
  instances_ = instances;
  if (is_reference_) {
    const sim::PathLayout* path = run_.path();
    rows_.resize(path == nullptr ? 0 : static_cast<size_t>(instances * steps * path->bytes));
    return;
  }
  difference_.reset();
  if (!Unlike().empty()) return;
  difference_.emplace(*run_.path());
  first_steps_.assign(static_cast<size_t>(instances), -1);
  first_elements_ = first_steps_;
  first_sites_.assign(static_cast<size_t>(instances), -1);
  flips_.assign(run_.path()->columns.size(), 0);
}

std::string RunComparison::Unlike() const {
  if (run_.steps != reference_.steps) {
    return absl::StrCat("the run has ", run_.steps, " steps, the reference ", reference_.steps);
  }
  if (run_.path() == nullptr || reference_.path() == nullptr) return "no paths were recorded";
  if (run_.path()->structure == reference_.path()->structure) return "";
  return "the paths are of different structures: of other operations, shapes, sites or caps";
}

void RunComparison::AddCounts(const sim::StepDiagnostics& diagnostics) {
  size_t loop = 0, event = 0, at = 0;
  for (const sim::Site& site : run_.program->sites) {
    const bool is_loop = site.kind == sim::SiteKind::kTermination;
    uint64_t count = 0;
    if (is_loop) {
      for (const auto& step : diagnostics.terminations[loop]) count += step.iterations_sum;
    } else {
      for (const auto& step : diagnostics.events[event]) count += step.count;
    }
    ++(is_loop ? loop : event);
    if (sim::WorldSite(site.name) == site.name) run_.counts[at++].second += count;
  }
}

void RunComparison::Add(const std::vector<Recorded>& recorded, const sim::ForwardChunk& chunk) {
  AddCounts(chunk.diagnostics);
  size_t exported = 0;
  for (const Recorded& field : recorded) {
    if (field.is_state) continue;
    const sim::Tensor& rows = chunk.exports[exported++];
    if (field.name != sim::kPathTaken) continue;
    const int64_t first = chunk.diagnostics.first_step;
    const int64_t steps = chunk.diagnostics.steps;
    if (is_reference_) KeepRows(rows, first, steps);
    if (difference_) CompareRows(rows, first, steps);
  }
}

void RunComparison::KeepRows(const sim::Tensor& rows, int64_t first_step, int64_t steps) {
  const int64_t bytes = run_.path()->bytes;
  for (int64_t i = 0; i < instances_; ++i) {
    std::memcpy(rows_.data() + (i * run_.steps + first_step) * bytes,
                rows.bytes.data() + i * steps * bytes, static_cast<size_t>(steps * bytes));
  }
}

void RunComparison::CompareRows(const sim::Tensor& rows, int64_t first_step, int64_t steps) {
  const int64_t bytes = run_.path()->bytes;
  for (int64_t i = 0; i < instances_; ++i) {
    const uint8_t* reference = rows_.data() + (i * run_.steps + first_step) * bytes;
    const uint8_t* other = rows.bytes.data() + i * steps * bytes;
    if (std::memcmp(reference, other, static_cast<size_t>(steps * bytes)) == 0) continue;
    const auto instance = static_cast<size_t>(i);
    for (int64_t t = 0; t < steps; ++t, reference += bytes, other += bytes) {
      if (std::memcmp(reference, other, static_cast<size_t>(bytes)) == 0) continue;
      difference_->Count(reference, other, flips_);
      if (first_steps_[instance] >= 0) continue;
      const sim::DifferingDecision first = difference_->First(reference, other);
      first_steps_[instance] = first_step + t;
      first_sites_[instance] = first.column;
      first_elements_[instance] = first.element;
    }
  }
}

void RunComparison::TellPaths(v1::Comparison& comparison) const {
  comparison.set_by_path(true);
  comparison.set_instances(instances_);
  comparison.set_parted(std::count_if(first_steps_.begin(), first_steps_.end(),
                                      [](int64_t step) { return step >= 0; }));
  comparison.set_first_steps(BytesOf(first_steps_));
  comparison.set_first_sites(BytesOf(first_sites_));
  comparison.set_first_elements(BytesOf(first_elements_));
  std::vector<int64_t> parted(flips_.size(), 0);
  for (const int32_t site : first_sites_) {
    if (site >= 0) ++parted[static_cast<size_t>(site)];
  }
  for (size_t i = 0; i < flips_.size(); ++i) {
    v1::SiteComparison* site = comparison.add_sites();
    site->set_site(run_.path()->columns[i].site);
    site->set_parted(parted[i]);
    site->set_flips(flips_[i]);
  }
}

void RunComparison::TellSites(v1::Comparison& comparison) const {
  std::map<std::string, v1::SiteComparison*> known;
  for (v1::SiteComparison& site : *comparison.mutable_sites()) known[site.site()] = &site;
  const auto of = [&](const std::string& name) {
    v1::SiteComparison*& site = known[name];
    if (site == nullptr) {
      site = comparison.add_sites();
      site->set_site(name);
    }
    return site;
  };
  for (const auto& [name, count] : reference_.counts) of(name)->set_reference_count(count);
  for (const auto& [name, count] : run_.counts) of(name)->set_variant_count(count);
}

std::optional<v1::Comparison> RunComparison::End(const sim::WorkResult& result,
                                                 sim::WorkMeter& meter) {
  const sim::NumericalProgram& program = *run_.program;
  const sim::Program& world = program.program;
  const auto for_each = [&](const auto& see) {
    const std::vector<int32_t> states = world.InputsOf(sim::InputKind::kState);
    for (size_t i = 0; i < result.final_states.size(); ++i) {
      see("final_state." + world.inputs[static_cast<size_t>(states[i])].name,
          result.final_states[i]);
    }
    if (!program.objective.empty()) see("values", NumbersOf(result.values));
    for (const sim::InputGradient& gradient : result.gradients) {
      see(GradientField(world.inputs[static_cast<size_t>(gradient.input)]), gradient.gradient);
    }
  };
  if (is_reference_) {
    for_each([&](const std::string& field, const sim::Tensor& tensor) { fields_[field] = tensor; });
    signatures_ = result.path_signatures;
    is_reference_ = false;
    reference_ = std::move(run_);
    return std::nullopt;
  }
  v1::Comparison comparison;
  if (difference_) {
    TellPaths(comparison);
  } else {
    comparison.set_unlike(Unlike());
  }
  if (!difference_ && run_.steps == reference_.steps) {
    comparison.set_instances(instances_);
    int64_t parted = 0;
    for (size_t i = 0; i < signatures_.size(); ++i) {
      parted += result.path_signatures[i] != signatures_[i] ? 1 : 0;
    }
    comparison.set_parted(parted);
  }
  TellSites(comparison);
  for_each([&](const std::string& field, const sim::Tensor& other) {
    const auto reference = fields_.find(field);
    if (reference == fields_.end() || reference->second.shape != other.shape) return;
    *comparison.add_differences() = DifferenceOf(field, reference->second, other, meter);
  });
  return comparison;
}

}  // namespace simgrad::server::conversion
