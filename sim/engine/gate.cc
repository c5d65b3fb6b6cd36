#include "sim/engine/gate.h"

#include <utility>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"
#include "sim/program/paths.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

// A bool that had one value all the time, because of a site.
struct Fixed {
  const std::string* site = nullptr;  // null: it had not
  bool value = false;
};

// One graph over all values: its edges say where a value flows and which sites stand in its way.
class Flow {
 public:
  Flow(const Program& program, const Decided& decided, PassBudget& budget)
      : program_(program), decided_(decided), budget_(budget), fixed_(program.values.size()) {}

  // By input.
  std::vector<std::string> GateOfEach() {
    Follow(program_.step);
    SortEdges();
    // A value that arrives has no gate; of the others, the first gate that can be reached from
    // them.
    for (ValueId id : program_.step.yields) Spread(id, kArrives);
    // A recorded path reads every decision, and says nothing of what a value is used for.
    for (const Export& item : program_.exports) {
      if (item.name != kPathTaken) Spread(item.value, kArrives);
    }
    for (size_t gate = 0; gate < gates_.size(); ++gate) {
      Spread(gates_[gate].at, static_cast<int32_t>(gate));
    }
    std::vector<std::string> found;
    for (const Input& input : program_.inputs) {
      const int32_t first = first_[Index(input.value)];
      found.push_back(first >= 0 ? *gates_[static_cast<size_t>(first)].site : "");
    }
    return found;
  }

 private:
  struct Edge {
    ValueId from;
    ValueId to;
  };
  // A value that reaches `at` is stopped by the site; in the order in which they are met.
  struct Gate {
    ValueId at;
    const std::string* site;
  };
  static constexpr int32_t kNowhere = -1;
  static constexpr int32_t kArrives = -2;

  void Pass(ValueId from, ValueId to) {
    budget_.Visit();
    edges_.push_back({from, to});
  }
  const Fixed& FixedAt(ValueId id) const { return fixed_[Index(id)]; }

  void Follow(const Region& region) {
    for (const Op& op : region.ops) {
      budget_.Visit();
      FollowOp(op);
    }
  }

  void FollowOp(const Op& op) {
    if (op.code == kWhile) return FollowWhile(op);
    if (op.code == kFor) return FollowFor(op);
    if (op.code == kEvent) return FixEvent(op);
    const OpClass op_class = InfoOf(op.code).op_class;
    if (op_class == OpClass::kCompare) return;
    if (op_class == OpClass::kLogic) return FixLogic(op);
    if (op_class == OpClass::kChoice) return FollowSelect(op);
    if (op.code == kStopGradient) return;
    const bool fills = op.code == kPad || op.code == kTake;
    if (op.operands.size() == 1 && op_class == OpClass::kShape && !fills) {
      fixed_[Index(op.results[0])] = FixedAt(op.operands[0]);
    }
    for (ValueId result : op.results) {
      for (ValueId operand : op.operands) Pass(operand, result);
    }
  }

  // An event is false where its guard is.
  void FixEvent(const Op& op) {
    const auto found = decided_.events.find(op.attributes.site);
    if (found == decided_.events.end()) return;
    const auto [checks, count] = found->second;
    if (count == 0) {
      fixed_[Index(op.results[0])] = {&op.attributes.site, false};
    } else if (count == checks) {
      const bool guarded = op.operands.size() > 2;
      const Fixed guard = guarded ? FixedAt(op.operands[2]) : Fixed{};
      const bool decides = !guarded || (guard.site != nullptr && guard.value);
      if (decides) fixed_[Index(op.results[0])] = {&op.attributes.site, true};
    }
  }

  void FixLogic(const Op& op) {
    Fixed& result = fixed_[Index(op.results[0])];
    const Fixed first = FixedAt(op.operands[0]);
    if (op.code == kNot) {
      if (first.site != nullptr) result = {first.site, !first.value};
      return;
    }
    // One operand of this value settles it; two of the other do as well.
    const bool settles = op.code == kOr;
    const Fixed second = FixedAt(op.operands[1]);
    if (op.code == kXor) {
      const bool both = first.site != nullptr && second.site != nullptr;
      if (both) result = {first.site, first.value != second.value};
      return;
    }
    for (const Fixed& one : {first, second}) {
      if (one.site != nullptr && one.value == settles) {
        result = one;
        return;
      }
    }
    if (first.site != nullptr && second.site != nullptr) result = first;
  }

  void FollowSelect(const Op& op) {
    const Fixed condition = FixedAt(op.operands[0]);
    for (const bool chosen : {true, false}) {
      const ValueId operand = op.operands[chosen ? 1 : 2];
      if (condition.site == nullptr || condition.value == chosen) {
        Pass(operand, op.results[0]);
      } else {
        gates_.push_back({operand, condition.site});
      }
    }
  }

  void FollowWhile(const Op& op) {
    const WhileCounts counts = CountsOf(op);
    const size_t carried = static_cast<size_t>(counts.carried);
    const size_t exports = static_cast<size_t>(counts.exports);
    const Region& test = op.regions[0];
    const Region& body = op.regions[1];
    const size_t first_export = FirstExport(op);
    const auto ran = decided_.iterations.find(op.attributes.site);
    const bool runs = ran == decided_.iterations.end() || ran->second > 0;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      Pass(op.operands[k], test.args[k]);
      Pass(op.operands[k], body.args[k < carried ? k : k + exports]);
    }
    Follow(test);
    for (size_t k = 0; k < exports; ++k) {
      Pass(test.yields[first_export + k], body.args[carried + k]);
      Pass(test.yields[first_export + k], op.results[carried + k]);
    }
    for (size_t k = 0; k < carried; ++k) Pass(test.args[k], op.results[k]);
    if (IsBranch(op)) {
      // Not taken at any time, where an event says so.
      const Fixed stop = FixedAt(test.yields[0]);
      if (stop.site != nullptr && stop.value) return StopAt(body, *stop.site);
    }
    if (!runs) return StopAt(body, op.attributes.site);
    Follow(body);
    for (size_t k = 0; k < carried; ++k) {
      Pass(body.yields[k], body.args[k]);
      Pass(body.yields[k], test.args[k]);
    }
  }

  // Stops at `site` every value that the operations of a body that never ran read.
  void StopAt(const Region& body, const std::string& site) {
    for (const Op& op : body.ops) {
      budget_.Visit();
      for (ValueId id : op.operands) gates_.push_back({id, &site});
      for (const Region& nested : op.regions) StopAt(nested, site);
    }
  }

  void FollowFor(const Op& op) {
    const Region& body = op.regions[0];
    const size_t carried = static_cast<size_t>(op.attributes.carried);
    for (size_t k = 0; k < op.operands.size(); ++k) {
      Pass(op.operands[k], body.args[k + 1]);
      if (k < carried) Pass(op.operands[k], op.results[k]);
    }
    if (op.attributes.max_iter == 0) return;
    Follow(body);
    for (size_t k = 0; k < body.yields.size(); ++k) {
      if (k < carried) Pass(body.yields[k], body.args[k + 1]);
      Pass(body.yields[k], op.results[k]);
    }
  }

  // By where they lead.
  void SortEdges() {
    first_.assign(program_.values.size(), kNowhere);
    begin_.assign(program_.values.size() + 1, 0);
    for (const Edge& edge : edges_) ++begin_[Index(edge.to) + 1];
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    from_.resize(edges_.size());
    std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
    for (const Edge& edge : edges_) {
      budget_.Visit();
      from_[next[Index(edge.to)]++] = edge.from;
    }
  }

  // Against the flow, from where it ends to all that gets there and has found nothing so far.
  void Spread(ValueId end, int32_t what) {
    budget_.Visit();
    if (first_[Index(end)] != kNowhere) return;
    first_[Index(end)] = what;
    std::vector<ValueId> todo = {end};
    while (!todo.empty()) {
      const size_t to = Index(todo.back());
      todo.pop_back();
      for (size_t i = begin_[to]; i < begin_[to + 1]; ++i) {
        budget_.Visit();
        if (first_[Index(from_[i])] != kNowhere) continue;
        first_[Index(from_[i])] = what;
        todo.push_back(from_[i]);
      }
    }
  }

  const Program& program_;
  const Decided& decided_;
  PassBudget& budget_;
  std::vector<Fixed> fixed_;  // by value
  std::vector<Edge> edges_;
  std::vector<Gate> gates_;
  std::vector<size_t> begin_;   // by value: its first edge in from_, and one more at the end
  std::vector<ValueId> from_;   // of the edges, sorted by where they lead
  std::vector<int32_t> first_;  // by value: its first gate, or kArrives
};

}  // namespace

void Decided::Add(const std::vector<Site>& sites, const StepDiagnostics& diagnostics) {
  for (const Site& site : sites) {
    const size_t number = static_cast<size_t>(site.number);
    if (site.kind == SiteKind::kTermination) {
      if (number >= diagnostics.terminations.size()) return;  // nothing was recorded
      uint64_t& sum = iterations[site.name];
      uint64_t& capped = at_cap[site.name];
      for (const TerminationStep& step : diagnostics.terminations[number]) {
        sum += step.iterations_sum;
        capped += step.reasons[static_cast<size_t>(StopReason::kMaxIter)] +
                  step.reasons[static_cast<size_t>(StopReason::kNonFinite)];
      }
    } else {
      if (number >= diagnostics.events.size()) return;
      Event& sum = events[site.name];
      for (const EventStep& step : diagnostics.events[number]) {
        sum.checks += step.checks;
        sum.count += step.count;
      }
    }
  }
}

std::vector<Unconverged> Decided::UnconvergedOf(const std::vector<LoopChoice>& loops) const {
  std::vector<Unconverged> found;
  for (const LoopChoice& choice : loops) {
    if (choice.how != LoopChoice::How::kImplicit) continue;
    Unconverged loop{choice.site, 0};
    for (const auto& [site, runs] : at_cap) {
      if (BaseOfSite(site) == choice.site) loop.runs += runs;
    }
    if (loop.runs > 0) found.push_back(std::move(loop));
  }
  return found;
}

absl::StatusOr<Gates> Gates::Find(const Program& program, const Decided& decided,
                                  PassBudget* budget) {
  PassBudget unlimited;
  Gates gates;
  absl::Status status = WithinBudget(
      [&] { gates.gates_ = Flow(program, decided, budget ? *budget : unlimited).GateOfEach(); });
  if (!status.ok()) return status;
  return gates;
}

}  // namespace simgrad::sim
