// while and for, forward: the pseudocode of sim/program/loop.h.
#include <algorithm>
#include <utility>

#include "precision/selection.h"
#include "sim/backend/reference/region_runner.h"
#include "sim/program/loop.h"

namespace simgrad::sim::reference {
namespace {

// The operands [first, first + count) of a while, or element e of them where it is mapped.
std::vector<Array> TakeOperands(const Program& program, const Op& op, const Frame& frame,
                                size_t first, size_t count, int64_t e) {
  std::vector<Array> taken;
  const int64_t n = op.attributes.elements;
  for (size_t k = first; k < first + count; ++k) {
    const Array& whole = frame.At(op.operands[k]);
    const int64_t size = ElementCount(program[op.operands[k]].type.shape);
    taken.push_back(n == 0 ? whole
                           : SliceOf(whole, static_cast<size_t>(e), static_cast<size_t>(size / n)));
  }
  return taken;
}

// Binds `lists` one after the other to the arguments of a region.
void BindArgs(const Region& region, Frame& frame,
              std::initializer_list<const std::vector<Array>*> lists) {
  size_t at = 0;
  for (const std::vector<Array>* list : lists) {
    for (const Array& array : *list) frame.Set(region.args[at++], array);
  }
}

std::vector<Array> Collect(const std::vector<ValueId>& ids, size_t first, const Frame& frame) {
  std::vector<Array> found;
  for (size_t k = first; k < ids.size(); ++k) found.push_back(frame.At(ids[k]));
  return found;
}

}  // namespace

std::unique_ptr<Frame> LoopFrame(const RegionLayout& layout, const Frame& around, int64_t radix,
                                 int64_t iteration, std::string_view site) {
  auto frame = std::make_unique<Frame>(layout, &around);
  frame->iteration = around.iteration * radix + iteration;
  if (!site.empty()) frame->loop_site = site;
  return frame;
}

TestedPair RegionRunner::RunTest(const Op& op, const Frame& base, const std::vector<Array>& carried,
                                 const std::vector<Array>& mapped, LoopRun& run) {
  const Region& region = op.regions[0];
  if (!sinks_.keep) run.tests.clear();
  run.tests.push_back(
      LoopFrame(layouts_.Of(region), base, RadixOf(op), run.iterations, op.attributes.site));
  Frame& frame = *run.tests.back();
  BindArgs(region, frame, {&carried, &mapped});
  BindRadii(region.args, run.radii, frame);
  Run(region, frame);
  run.last_test = run.iterations;
  if (op.attributes.predicate) return Predicate(op, frame, run);
  if (sinks_.decisions != nullptr) {
    for (size_t k = op.attributes.has_entry && run.iterations == 0 ? 2 : 1; k > 0; --k) {
      run.of_tests =
          LeastOf(run.of_tests, ComparedRadius(region.yields[0], region.yields[k], frame, 0,
                                               layouts_.tests().Of(op.attributes.site)));
    }
  }
  return Compare(op.attributes.comparison, region.yields[0], region.yields[1], frame, 0);
}

std::vector<Array> RegionRunner::RunBody(const Op& op, const Frame& base,
                                         const std::vector<Array>& carried,
                                         const std::vector<Array>& mapped, LoopRun& run) {
  const Region& region = op.regions[1];
  const size_t first_export = FirstExport(op);
  const std::vector<Array> exports = Collect(op.regions[0].yields, first_export, *run.tests.back());
  if (!sinks_.keep) run.bodies.clear();
  run.bodies.push_back(
      LoopFrame(layouts_.Of(region), base, RadixOf(op), run.iterations, op.attributes.site));
  Frame& frame = *run.bodies.back();
  BindArgs(region, frame, {&carried, &exports, &mapped});
  if (sinks_.decisions != nullptr) {
    const std::span args(region.args);
    const size_t c = carried.size();
    BindRadii(args.first(c), {run.radii.begin(), run.radii.begin() + static_cast<ptrdiff_t>(c)},
              frame);
    const std::span yields(op.regions[0].yields);
    BindRadii(args.subspan(c, exports.size()),
              LeastRadii(yields.subspan(first_export), *run.tests.back()), frame);
    BindRadii(args.last(mapped.size()),
              {run.radii.begin() + static_cast<ptrdiff_t>(c), run.radii.end()}, frame);
  }
  Run(region, frame);
  if (sinks_.decisions != nullptr) {
    const std::vector<Radius> next = LeastRadii(region.yields, frame);
    std::copy(next.begin(), next.end(), run.radii.begin());
  }
  return Collect(region.yields, 0, frame);
}

std::vector<Array> RegionRunner::RunWhile(const Op& op, const Frame& base,
                                          std::vector<Array> carried,
                                          const std::vector<Array>& mapped, LoopRun& run) {
  const Attributes& a = op.attributes;
  DecisionRecorder* decisions = IsBranch(op) ? nullptr : sinks_.decisions;
  const bool cap_first = a.cap_order == CapOrder::kCapFirst;
  TestedPair pair;
  bool capped = false;
  while (true) {
    if (cap_first && run.iterations == a.max_iter) {
      capped = true;
      break;
    }
    pair = RunTest(op, base, carried, mapped, run);
    const bool enters = run.iterations == 0 && a.has_entry;
    if (enters) {
      const std::vector<ValueId>& tested = op.regions[0].yields;
      const TestedPair entry = Compare(Comparison::kGe, tested[0], tested[2], *run.tests.back(), 0);
      if (decisions != nullptr) decisions->EntryTest(a.site, entry);
      if (!entry.held) {
        run.reason = StopReason::kNotEntered;
        pair = entry;
        break;
      }
    }
    if (decisions != nullptr) decisions->Test(a.site, pair, enters);
    if (pair.held) {
      run.reason = pair.by_counter ? StopReason::kCounter : StopReason::kConverged;
      break;
    }
    if (!cap_first && run.iterations == a.max_iter) {
      capped = true;
      break;
    }
    carried = RunBody(op, base, carried, mapped, run);
    ++run.iterations;
  }
  if (capped) {
    const bool finite = a.predicate ? !pair.has_nan : precision::IsFinite(pair.tested);
    run.reason = finite ? StopReason::kMaxIter : StopReason::kNonFinite;
  }
  if (decisions != nullptr) {
    decisions->EndRun(a.site, {base.iteration, base.element}, run.iterations, run.reason, pair);
  }
  for (Array& value : Collect(op.regions[0].yields, FirstExport(op), *run.tests.back())) {
    carried.push_back(std::move(value));
  }
  return carried;
}

void RegionRunner::ExecuteWhile(const Op& op, Frame& frame) {
  const WhileCounts counts = CountsOf(op);
  const size_t carried = static_cast<size_t>(counts.carried);
  const int64_t n = op.attributes.elements;
  LoopTape& tape = frame.loops[op.results[0]];
  tape.runs.clear();
  tape.runs.resize(static_cast<size_t>(std::max<int64_t>(n, 1)));
  std::vector<Array> results(op.results.size());
  for (size_t e = 0; e < tape.runs.size(); ++e) {
    LoopRun& run = tape.runs[e];
    const int64_t element = static_cast<int64_t>(e);
    run.base = std::make_unique<Frame>(layouts_.empty(), &frame);
    if (sinks_.decisions != nullptr) {
      for (ValueId id : op.operands) {
        run.radii.push_back(!HasRadius(id) ? Radius()
                            : n > 0        ? ElementsRadius(id, n, e, frame)
                                           : LeastRadius(id, frame));
      }
    }
    if (n > 0) run.base->element = frame.element * n + element;
    std::vector<Array> outcome = RunWhile(
        op, *run.base, TakeOperands(program(), op, frame, 0, carried, element),
        TakeOperands(program(), op, frame, carried, op.operands.size() - carried, element), run);
    for (size_t k = 0; k < outcome.size(); ++k) AppendTo(results[k], outcome[k]);
    results.back().integer.push_back(run.iterations);
  }
  for (size_t k = 0; k < results.size(); ++k) frame.Set(op.results[k], std::move(results[k]));
  if (sinks_.decisions != nullptr) SetLoopRadii(op, tape, frame);
}

void RegionRunner::ExecuteFor(const Op& op, Frame& frame) {
  const Region& region = op.regions[0];
  const int64_t trips = op.attributes.max_iter;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  LoopTape& tape = frame.loops[op.results.empty() ? ValueId::kNone : op.results[0]];
  tape.runs.clear();
  LoopRun& run = tape.runs.emplace_back();
  std::vector<Array> carried;
  for (size_t k = 0; k < c; ++k) carried.push_back(frame.At(op.operands[k]));
  std::vector<Radius> radii;  // of the operands; those of the carried ones change
  std::vector<Radius> stacked_radii(StackedOf(op));
  if (sinks_.decisions != nullptr) radii = LeastRadii(op.operands, frame);
  std::vector<std::vector<Array>> stacked(StackedOf(op));  // [result][turn]
  for (run.iterations = 0; run.iterations < trips; ++run.iterations) {
    if (!sinks_.keep) run.bodies.clear();
    run.bodies.push_back(
        LoopFrame(layouts_.Of(region), frame, std::max<int64_t>(trips, 1), run.iterations, ""));
    Frame& body = *run.bodies.back();
    Array index;
    index.integer = {op.attributes.reverse ? trips - 1 - run.iterations : run.iterations};
    const size_t at = static_cast<size_t>(index.integer[0]);
    std::vector<Array> scanned;
    for (size_t k = c; k < op.operands.size(); ++k) {
      const Array& whole = frame.At(op.operands[k]);
      scanned.push_back(SliceOf(whole, at, SizeOf(whole) / static_cast<size_t>(trips)));
    }
    const std::vector<Array> indices = {std::move(index)};
    BindArgs(region, body, {&indices, &carried, &scanned});
    BindRadii(std::span(region.args).subspan(1), radii, body);
    Run(region, body);
    carried = Collect(region.yields, 0, body);
    for (size_t k = 0; k < stacked.size(); ++k) stacked[k].push_back(std::move(carried[c + k]));
    carried.resize(c);
    if (sinks_.decisions == nullptr) continue;
    const std::vector<Radius> next = LeastRadii(region.yields, body);
    std::copy(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(c), radii.begin());
    for (size_t k = 0; k < stacked.size(); ++k) {
      stacked_radii[k] = LeastOf(stacked_radii[k], next[c + k]);
    }
  }
  radii.resize(std::min(radii.size(), c));
  BindRadii(op.results, radii, frame);
  if (sinks_.decisions != nullptr) {
    BindRadii(std::span(op.results).subspan(c), stacked_radii, frame);
  }
  for (size_t k = 0; k < c; ++k) frame.Set(op.results[k], std::move(carried[k]));
  for (size_t k = 0; k < stacked.size(); ++k) {
    if (op.attributes.reverse) std::reverse(stacked[k].begin(), stacked[k].end());
    Array whole;
    for (const Array& element : stacked[k]) AppendTo(whole, element);
    frame.Set(op.results[c + k], std::move(whole));
  }
}

}  // namespace simgrad::sim::reference
