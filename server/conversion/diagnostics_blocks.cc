#include "server/conversion/diagnostics_blocks.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace simgrad::server::conversion {
namespace {

// Upper bounds of what one step takes in a message: numbers of 10 bytes at most (a varint), plus
// the histogram.
constexpr int64_t kTerminationStepBytes =
    27 * 10 + 4 * (sim::kMarginBuckets + sim::kIterationBuckets);
constexpr int64_t kEventStepBytes = 9 * 10;
constexpr int64_t kStateSampleBytes = 8 * 10;
constexpr int64_t kEventSampleBytes = sizeof(sim::MarginHistogram);
constexpr int64_t kBackwardStepBytes = 2 * 10 + 8 * sim::kExponentBuckets;

// Those of every loop; `counter`, of predicates alone, has a column of its own.
constexpr size_t kTestReasons = static_cast<size_t>(sim::StopReason::kCounter);

template <class T>
void AppendLittleEndian(std::string* out, const T& value) {
  static_assert(std::endian::native == std::endian::little, "messages are little-endian");
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class... Fields>
void Reserve(int64_t count, Fields*... fields) {
  (fields->Reserve(static_cast<int>(count)), ...);
}

void Encode(const std::vector<sim::TerminationStep>& column, int64_t begin, int64_t end,
            v1::TerminationColumns& out) {
  const int64_t steps = end - begin;
  Reserve(steps, out.mutable_runs(), out.mutable_iterations_mean(), out.mutable_iterations_min(),
          out.mutable_iterations_max(), out.mutable_tested_min(), out.mutable_tested_max(),
          out.mutable_margin(), out.mutable_margin_instance(), out.mutable_margin_ulps(),
          out.mutable_margin_ulps_instance(), out.mutable_nan_margins(), out.mutable_checks(),
          out.mutable_near_stopped(), out.mutable_near_continued());
  Reserve(steps * kTestReasons, out.mutable_reasons());
  out.mutable_iterations()->reserve(static_cast<size_t>(steps) *
                                    sizeof(sim::TerminationStep::iterations));
  out.mutable_histogram()->reserve(static_cast<size_t>(steps) *
                                   sizeof(sim::TerminationStep::histogram));
  for (int64_t i = begin; i < end; ++i) {
    const sim::TerminationStep& step = column[i];
    const bool ran = step.runs > 0;
    out.add_runs(step.runs);
    out.add_iterations_mean(
        ran ? static_cast<double>(step.iterations_sum) / static_cast<double>(step.runs) : 0.0);
    out.add_iterations_min(ran ? step.iterations_min : 0);
    out.add_iterations_max(step.iterations_max);
    AppendLittleEndian(out.mutable_iterations(), step.iterations);
    for (size_t k = 0; k < kTestReasons; ++k) out.add_reasons(step.reasons[k]);
    out.add_tested_min(step.tested_min);
    out.add_tested_max(step.tested_max);
    out.add_margin(step.margin.absolute);
    out.add_margin_instance(step.margin.absolute_instance);
    out.add_margin_ulps(step.margin.ulps);
    out.add_margin_ulps_instance(step.margin.ulps_instance);
    AppendLittleEndian(out.mutable_histogram(), step.histogram);
    out.add_nan_margins(step.nan_margins);
    out.add_checks(step.checks);
    out.add_near_stopped(step.near_stopped);
    out.add_near_continued(step.near_continued);
  }
  const auto by_counter = [](const sim::TerminationStep& step) {
    return step.reasons[kTestReasons];
  };
  if (std::none_of(column.begin() + begin, column.begin() + end, by_counter)) return;
  Reserve(steps, out.mutable_counter());
  for (int64_t i = begin; i < end; ++i) out.add_counter(by_counter(column[i]));
}

// Encodes the test that had the smallest margin of each step, as a place in the block's names.
void EncodeTests(const std::vector<sim::TerminationStep>& column, int64_t begin, int64_t end,
                 const std::vector<std::string>& names, v1::TerminationColumns& out) {
  const auto is_told = [&](const sim::TerminationStep& step) {
    return step.margin.test > 0 && step.margin.test <= names.size();
  };
  if (std::none_of(column.begin() + begin, column.begin() + end, is_told)) return;
  std::map<uint32_t, uint32_t> places;  // by number: in the block, from 1 on
  Reserve(end - begin, out.mutable_margin_test());
  for (int64_t i = begin; i < end; ++i) {
    if (!is_told(column[i])) {
      out.add_margin_test(0);
      continue;
    }
    const uint32_t number = column[i].margin.test;
    const auto [place, is_new] =
        places.try_emplace(number, static_cast<uint32_t>(places.size()) + 1);
    if (is_new) out.add_tests(names[number - 1]);
    out.add_margin_test(place->second);
  }
}

void Encode(const std::vector<sim::EventStep>& column, int64_t begin, int64_t end,
            v1::EventColumns& out) {
  Reserve(end - begin, out.mutable_checks(), out.mutable_count(), out.mutable_changes(),
          out.mutable_margin(), out.mutable_margin_instance(), out.mutable_margin_ulps(),
          out.mutable_margin_ulps_instance(), out.mutable_nan_margins());
  for (int64_t i = begin; i < end; ++i) {
    const sim::EventStep& step = column[i];
    out.add_checks(step.checks);
    out.add_count(step.count);
    out.add_changes(step.changes);
    out.add_margin(step.margin.absolute);
    out.add_margin_instance(step.margin.absolute_instance);
    out.add_margin_ulps(step.margin.ulps);
    out.add_margin_ulps_instance(step.margin.ulps_instance);
    out.add_nan_margins(step.nan_margins);
  }
}

void Encode(const sim::StateRange& range, v1::StateColumns& out) {
  out.add_min(range.min);
  out.add_max(range.max);
  out.add_smallest(range.smallest);
  out.add_subnormals(range.subnormals);
  out.add_zeros(range.zeros);
  out.add_nans(range.nans);
  out.add_infinities(range.infinities);
}

template <class Block>
void EncodeRanges(const sim::RangeCounts& ranges, Block& out) {
  for (int i = 0; i < precision::kRoleCount; ++i) {
    if (ranges.underflows[i] == 0 && ranges.overflows[i] == 0) continue;
    v1::RoleRange* range = out.add_ranges();
    range->set_role(std::string(precision::RoleName(static_cast<precision::Role>(i))));
    range->set_underflows(ranges.underflows[i]);
    range->set_overflows(ranges.overflows[i]);
  }
}

// Sites that tell the same are one entry.
void EncodeAdditions(const std::vector<sim::AdditionCounts>& additions,
                     const std::vector<sim::AdditionSite>& sites, v1::DiagnosticsBlock& out) {
  std::map<std::tuple<std::string_view, std::string_view, precision::Role>, v1::Absorption*>
      entries;
  for (size_t k = 0; k < additions.size(); ++k) {
    if (additions[k].additions == 0) continue;
    const sim::AdditionSite& site = sites[k];
    v1::Absorption*& entry = entries[{site.state, site.label, site.role}];
    if (entry == nullptr) {
      entry = out.add_absorption();
      entry->set_role(std::string(precision::RoleName(site.role)));
      entry->set_state(site.state);
      entry->set_label(site.label);
    }
    entry->set_additions(entry->additions() + additions[k].additions);
    entry->set_absorbed(entry->absorbed() + additions[k].absorbed);
  }
}

// Columns [begin, end) of the instances of one site, rows of `steps`.
template <class T>
void CopyColumns(const std::vector<T>& rows, int64_t steps, int64_t instances, int64_t begin,
                 int64_t end, std::string* out) {
  for (int64_t step = 0; step < steps; ++step) {
    out->append(reinterpret_cast<const char*>(rows.data() + step * instances + begin),
                static_cast<size_t>(end - begin) * sizeof(T));
  }
}

}  // namespace

namespace {

// Data flow says kinds where the program states a level.
std::string KindToTell(const sim::NumericalProgram& program, const sim::Site& site) {
  return program.program.level == sim::TestLevel::kDeclared
             ? ""
             : std::string(sim::TestKindName(site.test_kind));
}

}  // namespace

ColumnNames ColumnNamesOf(const sim::NumericalProgram& program) {
  ColumnNames names;
  for (const sim::Site& site : program.sites) {
    (site.kind == sim::SiteKind::kTermination ? names.terminations : names.events)
        .push_back(site.name);
    if (site.kind == sim::SiteKind::kEvent) names.event_kinds.push_back(KindToTell(program, site));
  }
  names.tests = program.deciding_tests;
  for (const sim::Input& input : program.program.inputs) {
    const bool real = program.program[input.value].type.element == sim::ElementType::kReal;
    if (input.kind == sim::InputKind::kState && real) names.states.push_back(input.name);
  }
  names.additions = sim::AdditionsOf(program).sites;
  return names;
}

v1::DiagnosticsBlock EmptyBlock(const ColumnNames& names) {
  v1::DiagnosticsBlock block;
  for (const std::string& name : names.terminations) block.add_terminations()->set_site(name);
  for (size_t i = 0; i < names.events.size(); ++i) {
    v1::EventColumns* columns = block.add_events();
    columns->set_site(names.events[i]);
    columns->set_kind(names.event_kinds[i]);
  }
  for (const std::string& name : names.states) block.add_states()->set_state(name);
  return block;
}

int64_t DiagnosticsBytes(int64_t terminations, int64_t events, int64_t steps) {
  return steps * (terminations * static_cast<int64_t>(sizeof(sim::TerminationStep)) +
                  events * static_cast<int64_t>(sizeof(sim::EventStep)));
}

int64_t PendingDiagnostics::bytes() const {
  const auto samples = static_cast<int64_t>(pending_.sampled_steps.size());
  return DiagnosticsBytes(static_cast<int64_t>(pending_.terminations.size()),
                          static_cast<int64_t>(pending_.events.size()), pending_.steps) +
         samples * (static_cast<int64_t>(pending_.states.size() * sizeof(sim::StateRange)) +
                    static_cast<int64_t>(pending_.event_margins.size()) * kEventSampleBytes);
}

void PendingDiagnostics::Append(const sim::StepDiagnostics& next) {
  if (next.steps == 0) return;
  if (empty()) {
    pending_ = next;
  } else {
    pending_.Append(next);
  }
}

void PendingDiagnostics::Encode(int64_t begin, int64_t end, bool last,
                                v1::DiagnosticsBlock& block) const {
  block.set_first_step(pending_.first_step + begin);
  block.set_steps(end - begin);
  for (size_t i = 0; i < pending_.terminations.size(); ++i) {
    v1::TerminationColumns* columns = block.add_terminations();
    columns->set_site(names_.terminations[i]);
    conversion::Encode(pending_.terminations[i], begin, end, *columns);
    EncodeTests(pending_.terminations[i], begin, end, names_.tests, *columns);
  }
  for (size_t i = 0; i < pending_.events.size(); ++i) {
    v1::EventColumns* columns = block.add_events();
    columns->set_site(names_.events[i]);
    columns->set_kind(names_.event_kinds[i]);
    conversion::Encode(pending_.events[i], begin, end, *columns);
  }
  for (const std::string& name : names_.states) block.add_states()->set_state(name);
  for (size_t k = 0; k < pending_.sampled_steps.size(); ++k) {
    const int64_t step = pending_.sampled_steps[k] - pending_.first_step;
    if (step < begin || step >= end) continue;
    block.add_sampled_steps(pending_.sampled_steps[k]);
    for (size_t i = 0; i < pending_.states.size(); ++i) {
      conversion::Encode(pending_.states[i][k], *block.mutable_states(static_cast<int>(i)));
    }
    for (size_t i = 0; i < pending_.event_margins.size(); ++i) {
      AppendLittleEndian(block.mutable_events(static_cast<int>(i))->mutable_histogram(),
                         pending_.event_margins[i][k]);
    }
  }
  if (!last) return;
  EncodeRanges(pending_.ranges, block);
  EncodeAdditions(pending_.additions, names_.additions, block);
}

void PendingDiagnostics::Take(const std::function<void(const v1::DiagnosticsBlock&)>& give) {
  if (empty()) return;
  const int64_t step_bytes =
      static_cast<int64_t>(pending_.terminations.size()) * kTerminationStepBytes +
      static_cast<int64_t>(pending_.events.size()) * kEventStepBytes +
      static_cast<int64_t>(pending_.states.size()) * kStateSampleBytes +
      static_cast<int64_t>(pending_.event_margins.size()) * kEventSampleBytes + 16;
  const int64_t most = std::max<int64_t>(1, max_block_bytes_ / step_bytes);
  for (int64_t begin = 0; begin < pending_.steps; begin += most) {
    const int64_t end = std::min(begin + most, pending_.steps);
    // A block has some forty arrays; those of a few steps fit here.
    alignas(std::max_align_t) std::array<char, 4096> memory;
    google::protobuf::ArenaOptions options;
    options.initial_block = memory.data();
    options.initial_block_size = memory.size();
    google::protobuf::Arena arena(options);
    auto& block = *google::protobuf::Arena::CreateMessage<v1::DiagnosticsBlock>(&arena);
    Encode(begin, end, end == pending_.steps, block);
    give(block);
  }
  pending_ = sim::StepDiagnostics();
}

std::vector<v1::DiagnosticsBlock> InstanceBlocks(const ColumnNames& names, int64_t first_step,
                                                 int64_t steps, int64_t instances,
                                                 const std::vector<sim::InstanceSite>& sites,
                                                 int64_t max_block_bytes) {
  std::vector<v1::DiagnosticsBlock> blocks;
  for (size_t site = 0; site < sites.size(); ++site) {
    const sim::InstanceSite& columns = sites[site];
    for (int64_t begin = 0; begin < instances;) {
      // As many instances as fit, at least one.
      int64_t end = begin;
      int64_t bytes = 0;
      while (end < instances) {
        const int64_t more = 9 * steps + 8 * static_cast<int64_t>(columns.values[end].size());
        if (end > begin && bytes + more > max_block_bytes) break;
        bytes += more;
        ++end;
      }
      v1::DiagnosticsBlock& block = blocks.emplace_back();
      block.set_first_step(first_step);
      block.set_steps(steps);
      block.set_instance_offset(begin);
      v1::InstanceColumns* out = block.add_instances();
      out->set_site(names.terminations[site]);
      out->set_instances(end - begin);
      CopyColumns(columns.iterations, steps, instances, begin, end, out->mutable_iterations());
      CopyColumns(columns.reasons, steps, instances, begin, end, out->mutable_reasons());
      CopyColumns(columns.value_counts, steps, instances, begin, end, out->mutable_value_counts());
      for (int64_t i = begin; i < end; ++i) {
        for (double value : columns.values[i]) AppendLittleEndian(out->mutable_values(), value);
      }
      begin = end;
    }
  }
  return blocks;
}

std::vector<v1::BackwardBlock> BackwardBlocks(const std::vector<sim::BackwardStep>& steps,
                                              const sim::RangeCounts& ranges,
                                              int64_t max_block_bytes) {
  std::vector<v1::BackwardBlock> blocks;
  const int64_t total = static_cast<int64_t>(steps.size());
  const int64_t most = std::max<int64_t>(1, max_block_bytes / kBackwardStepBytes);
  for (int64_t begin = 0; begin == 0 || begin < total; begin += most) {
    const int64_t end = std::min(begin + most, total);
    v1::BackwardBlock& block = blocks.emplace_back();
    block.set_first_step(begin);
    block.set_steps(end - begin);
    for (int64_t i = begin; i < end; ++i) {
      block.add_largest(steps[i].largest);
      block.add_nonfinite(steps[i].nonfinite);
      AppendLittleEndian(block.mutable_exponents(), steps[i].exponents);
    }
    if (end == total) EncodeRanges(ranges, block);
  }
  return blocks;
}

}  // namespace simgrad::server::conversion
