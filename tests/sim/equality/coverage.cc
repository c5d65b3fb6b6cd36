#include "tests/sim/equality/coverage.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/str_cat.h"
#include "sim/op/op_info.h"
#include "sim/program/loop.h"

namespace simgrad::sim::equality {
namespace {

// What one lowered program is made of.
struct Contents {
  const Program& program;
  std::set<OpCode> operations;
  std::set<Format> formats;
  std::set<ElementType> elements;
  std::set<Order> orders;
  std::set<CastRounding> roundings;
  std::set<Comparison> events, loops;
  std::set<CapOrder> caps;
  bool entry = false;
  bool saturates = false;
  bool nested = false;
  bool per_element = false;
  bool guarded = false;
  bool predicate = false;
  bool branch = false;
  bool scans = false;
  bool stacks = false;
  bool reversed = false;

  void Visit(const Region& region, bool in_loop) {
    for (const Op& op : region.ops) {
      operations.insert(op.code);
      for (ValueId id : op.results) {
        if (id == ValueId::kNone) continue;
        if (program[id].format) formats.insert(*program[id].format);
        elements.insert(program[id].type.element);
      }
      const bool loop = op.code == OpCode::kWhile || op.code == OpCode::kFor;
      nested = nested || (loop && in_loop);
      per_element = per_element || (op.code == OpCode::kWhile && op.attributes.elements > 0);
      guarded = guarded || (op.code == OpCode::kEvent && op.operands.size() == 3);
      if (op.code == OpCode::kSum) orders.insert(op.attributes.order.kind);
      if (op.code == OpCode::kEvent) events.insert(op.attributes.comparison);
      if (op.code == OpCode::kWhile) VisitLoop(op.attributes);
      if (op.code == OpCode::kFor) {
        scans = scans || op.attributes.scanned > 0;
        stacks = stacks || StackedOf(op) > 0;
        reversed = reversed || op.attributes.reverse;
      }
      const bool cast = op.code == OpCode::kCast;
      if (cast && op.attributes.rounding) roundings.insert(*op.attributes.rounding);
      saturates = saturates || (cast && op.attributes.overflow == Overflow::kSaturate);
      for (const Region& inside : op.regions) Visit(inside, in_loop || loop);
    }
  }

  void VisitLoop(const Attributes& loop) {
    branch = branch || (loop.predicate && loop.site.empty());
    predicate = predicate || (loop.predicate && !loop.site.empty());
    if (loop.predicate) return;
    loops.insert(loop.comparison);
    caps.insert(loop.cap_order);
    entry = entry || loop.has_entry;
  }
};

Contents ContentsOf(const NumericalProgram& numerical) {
  const Program& program = numerical.program;
  Contents contents{program};
  for (const Region* region : RegionsOf(numerical)) contents.Visit(*region, false);
  return contents;
}

// Forward loops in the adjoint are those of vjps.
bool HasVjpLoops(const Region& region) {
  return std::any_of(region.ops.begin(), region.ops.end(), [](const Op& op) {
    return op.code == OpCode::kWhile || op.code == OpCode::kFor ||
           std::any_of(op.regions.begin(), op.regions.end(),
                       [](const Region& inside) { return HasVjpLoops(inside); });
  });
}

bool HasVjpLoops(const NumericalProgram& numerical) {
  return numerical.adjoint && HasVjpLoops(numerical.adjoint->inner);
}

bool IsUneven(const Observed& seen, int64_t instances) {
  const size_t n = static_cast<size_t>(instances);
  for (const InstanceSite& site : seen.sites) {
    for (size_t i = 1; i < site.iterations.size(); ++i) {
      if (i % n != 0 && site.iterations[i] != site.iterations[i - 1]) return true;
    }
  }
  return false;
}

std::string Row(std::string_view name, int count) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "  %-22s %6d\n", std::string(name).c_str(), count);
  return buffer;
}

}  // namespace

void Coverage::Add(const Case& made, const Observed& seen) {
  const Contents contents = ContentsOf(*made.work.batch.program);
  ++cases;
  for (OpCode code : contents.operations) ++operations[static_cast<size_t>(code)];
  for (Format format : contents.formats) ++formats[static_cast<size_t>(format)];
  for (ElementType element : contents.elements) ++elements[static_cast<size_t>(element)];
  for (Order order : contents.orders) ++orders[static_cast<size_t>(order)];
  for (CastRounding rounding : contents.roundings) ++roundings[static_cast<size_t>(rounding)];
  for (Comparison c : contents.events) ++event_comparisons[static_cast<size_t>(c)];
  for (Comparison c : contents.loops) ++loop_comparisons[static_cast<size_t>(c)];
  linear.Add(*made.work.batch.program);
  cap_first += contents.caps.count(CapOrder::kCapFirst) != 0 ? 1 : 0;
  test_first += contents.caps.count(CapOrder::kTestFirst) != 0 ? 1 : 0;
  entries += contents.entry ? 1 : 0;
  saturating_casts += contents.saturates ? 1 : 0;
  initial_regions += made.work.batch.program->program.HasInitial() ? 1 : 0;
  uneven_loops += IsUneven(seen, made.work.batch.instances) ? 1 : 0;
  nested_loops += contents.nested ? 1 : 0;
  per_element_loops += contents.per_element ? 1 : 0;
  guarded_events += contents.guarded ? 1 : 0;
  predicates += contents.predicate ? 1 : 0;
  branches += contents.branch ? 1 : 0;
  scans += contents.scans ? 1 : 0;
  vjp_loops += HasVjpLoops(*made.work.batch.program) ? 1 : 0;
  if (const auto& spec = made.work.batch.program->adjoint_spec) {
    const auto has = [&](LoopChoice::How how) {
      return std::any_of(spec->loops.begin(), spec->loops.end(),
                         [&](const LoopChoice& choice) { return choice.how == how; });
    };
    truncated += has(LoopChoice::How::kTruncated) ? 1 : 0;
    fixed_points += has(LoopChoice::How::kImplicit) ? 1 : 0;
    by_gmres += std::any_of(spec->loops.begin(), spec->loops.end(), [](const LoopChoice& choice) {
      return choice.how == LoopChoice::How::kImplicit &&
             choice.solver == LoopChoice::Solver::kGmres;
    });
    told += seen.result.adjoint_solves.empty() ? 0 : 1;
  }
  const auto& halted = seen.result.halts;
  halts += std::any_of(halted.begin(), halted.end(), [](const auto& h) { return h.has_value(); });
  stacks += contents.stacks ? 1 : 0;
  reversed_scans += contents.reversed ? 1 : 0;
  for (const auto& site : seen.diagnostics.terminations) {
    uint64_t runs = 0;
    for (const TerminationStep& step : site) {
      runs += step.reasons[static_cast<size_t>(StopReason::kCounter)];
    }
    if (runs > 0) {
      ++counters;
      break;
    }
  }
  const auto& counted = seen.diagnostics.additions;
  additions += std::any_of(counted.begin(), counted.end(),
                           [](const AdditionCounts& site) { return site.additions > 0; });
  absorbed += std::any_of(counted.begin(), counted.end(),
                          [](const AdditionCounts& site) { return site.absorbed > 0; });
  gradients += made.work.gradient ? 1 : 0;
  const auto& health = seen.result.health;
  nonfinite += std::any_of(health.begin(), health.end(), [](const auto& h) { return !h.ok; });
  stopped += std::any_of(health.begin(), health.end(), [](const auto& h) { return h.stopped; });
}

std::vector<Coverage::Line> Coverage::Lines() const {
  std::vector<Line> lines;
  EachOp([&](OpCode code, const OpInfo& info) {
    const bool is_gone = code == OpCode::kOwnVjp || code == OpCode::kHalt;
    if (info.expand != nullptr || is_gone) return;
    lines.push_back({std::string(info.name), operations[static_cast<size_t>(code)], 15});
  });
  for (size_t i = 0; i < formats.size(); ++i) {
    lines.push_back({std::string(precision::FormatName(static_cast<Format>(i))), formats[i], 20});
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    const std::string_view name = ElementTypeName(static_cast<ElementType>(i));
    lines.push_back({std::string(name), elements[i], 100});
  }
  for (size_t i = 0; i < orders.size(); ++i) {
    lines.push_back({std::string(precision::OrderName(static_cast<Order>(i))), orders[i], 20});
  }
  for (size_t i = 0; i < roundings.size(); ++i) {
    const std::string_view name = precision::CastRoundingName(static_cast<CastRounding>(i));
    lines.push_back({absl::StrCat("cast ", std::string(name)), roundings[i], 20});
  }
  constexpr std::array<const char*, 6> kSigns = {"<", "<=", ">", ">=", "==", "!="};
  for (size_t i = 0; i < kSigns.size(); ++i) {
    lines.push_back({absl::StrCat("event ", kSigns[i]), event_comparisons[i], 20});
    lines.push_back({absl::StrCat("while ", kSigns[i]), loop_comparisons[i], 20});
  }
  lines.insert(lines.end(), {{"batched cholesky", linear.batched_cholesky, 15},
                             {"batched cholesky's vjp", linear.batched_cholesky_vjp, 5},
                             {"batched triangular_solve", linear.batched_triangular, 15},
                             {"batched triangular_solve's vjp", linear.batched_triangular_vjp, 5},
                             {"tall lu", linear.tall_lu, 15},
                             {"wide lu", linear.wide_lu, 10},
                             {"tall lu_permutation", linear.tall_permutation, 15},
                             {"wide lu_permutation", linear.wide_permutation, 10},
                             {"counts that differ", uneven_loops, 200},
                             {"nested loops", nested_loops, 100},
                             {"loops per element", per_element_loops, 100},
                             {"cap first", cap_first, 100},
                             {"test first", test_first, 100},
                             {"entry thresholds", entries, 50},
                             {"guarded events", guarded_events, 50},
                             {"predicates", predicates, 100},
                             {"stopped by a counter", counters, 20},
                             {"regions of a cond", branches, 50},
                             {"loops of a vjp", vjp_loops, 10},
                             {"truncated loops", truncated, 30},
                             {"fixed points", fixed_points, 15},
                             {"fixed points by gmres", by_gmres, 5},
                             {"solves told of", told, 2},
                             {"halts", halts, 20},
                             {"scanned operands", scans, 50},
                             {"stacked results", stacks, 50},
                             {"reversed scans", reversed_scans, 50},
                             {"saturating casts", saturating_casts, 20},
                             {"initial", initial_regions, 50},
                             {"gradients", gradients, 300},
                             {"not finite", nonfinite, 50},
                             {"stopped", stopped, 20},
                             {"additions", additions, 100},
                             {"absorbed", absorbed, 20}});
  return lines;
}

std::string Coverage::Table() const {
  std::string text = absl::StrCat("in how many of ", cases, " cases:\n");
  for (const Line& line : Lines()) absl::StrAppend(&text, Row(line.name, line.count));
  return text;
}

int Coverage::RowsGainedFrom(const Coverage& other) const {
  const std::vector<Line> mine = Lines();
  const std::vector<Line> theirs = other.Lines();
  int gained = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    gained += mine[i].count == 0 && theirs[i].count > 0 ? 1 : 0;
  }
  return gained;
}

std::vector<std::string> Coverage::Unmet() const {
  std::vector<std::string> unmet;
  for (const Line& line : Lines()) {
    if (line.count == 0) unmet.push_back(line.name);
  }
  return unmet;
}

std::vector<std::string> Coverage::Missing() const {
  std::vector<std::string> missing;
  for (const Line& line : Lines()) {
    if (static_cast<int64_t>(line.count) * 1000 >= static_cast<int64_t>(line.least) * cases) {
      continue;
    }
    missing.push_back(absl::StrCat(line.name, ": ", line.count, " of ", cases, " cases"));
  }
  return missing;
}

}  // namespace simgrad::sim::equality
