#include "tests/sim/equality/coverage.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/str_cat.h"

namespace simgrad::sim::equality {
namespace {

// What one lowered program is made of.
struct Contents {
  const Program& program;
  std::set<OpCode> operations;
  std::set<Format> formats;
  std::set<Order> orders;
  bool nested = false;
  bool per_element = false;
  bool guarded = false;

  void Visit(const Region& region, bool in_loop) {
    for (const Op& op : region.ops) {
      operations.insert(op.code);
      for (ValueId id : op.results) {
        if (id != ValueId::kNone && program[id].format) formats.insert(*program[id].format);
      }
      const bool loop = op.code == OpCode::kWhile || op.code == OpCode::kFor;
      nested = nested || (loop && in_loop);
      per_element = per_element || (op.code == OpCode::kWhile && op.attributes.elements > 0);
      guarded = guarded || (op.code == OpCode::kEvent && op.operands.size() == 3);
      if (op.code == OpCode::kSum) orders.insert(op.attributes.order);
      for (const Region& inside : op.regions) Visit(inside, in_loop || loop);
    }
  }
};

Contents ContentsOf(const NumericalProgram& numerical) {
  const Program& program = numerical.program;
  Contents contents{program};
  contents.Visit(program.initial, false);
  contents.Visit(program.step, false);
  for (const Objective& objective : program.objectives) contents.Visit(objective.terminal, false);
  if (numerical.adjoint) {
    for (const Region* region : {&numerical.adjoint->terminal, &numerical.adjoint->last,
                                 &numerical.adjoint->inner, &numerical.adjoint->initial}) {
      contents.Visit(*region, false);
    }
  }
  return contents;
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
  for (Order order : contents.orders) ++orders[static_cast<size_t>(order)];
  uneven_loops += IsUneven(seen, made.work.batch.instances) ? 1 : 0;
  nested_loops += contents.nested ? 1 : 0;
  per_element_loops += contents.per_element ? 1 : 0;
  guarded_events += contents.guarded ? 1 : 0;
  gradients += made.work.gradient ? 1 : 0;
  const auto& health = seen.result.health;
  nonfinite += std::any_of(health.begin(), health.end(), [](const auto& h) { return !h.ok; });
  stopped += std::any_of(health.begin(), health.end(), [](const auto& h) { return h.stopped; });
}

std::string Coverage::Table() const {
  std::string text = absl::StrCat("in how many of ", cases, " cases:\n");
  for (const OpInfo& info : AllOps()) {
    absl::StrAppend(&text, Row(info.name, operations[static_cast<size_t>(info.code)]));
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    absl::StrAppend(&text, Row(precision::FormatName(static_cast<Format>(i)), formats[i]));
  }
  for (size_t i = 0; i < orders.size(); ++i) {
    absl::StrAppend(&text, Row(precision::OrderName(static_cast<Order>(i)), orders[i]));
  }
  absl::StrAppend(&text, Row("counts that differ", uneven_loops), Row("nested loops", nested_loops));
  absl::StrAppend(&text, Row("loops per element", per_element_loops),
                  Row("guarded events", guarded_events), Row("gradients", gradients));
  absl::StrAppend(&text, Row("not finite", nonfinite), Row("stopped", stopped));
  return text;
}

std::vector<std::string> Coverage::Missing() const {
  std::vector<std::string> missing;
  const auto need = [&](std::string_view name, int count, int least) {
    if (static_cast<int64_t>(count) * 1000 >= static_cast<int64_t>(least) * cases) return;
    missing.push_back(absl::StrCat(std::string(name), ": ", count, " of ", cases, " cases"));
  };
  for (const OpInfo& info : AllOps()) {
    need(info.name, operations[static_cast<size_t>(info.code)], 20);
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    need(precision::FormatName(static_cast<Format>(i)), formats[i], 20);
  }
  for (size_t i = 0; i < orders.size(); ++i) {
    need(precision::OrderName(static_cast<Order>(i)), orders[i], 20);
  }
  need("counts that differ", uneven_loops, 200);
  need("nested loops", nested_loops, 100);
  need("loops per element", per_element_loops, 100);
  need("guarded events", guarded_events, 50);
  need("not finite", nonfinite, 50);
  need("stopped", stopped, 20);
  return missing;
}

}  // namespace simgrad::sim::equality
