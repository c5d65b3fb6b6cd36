#include "sim/plan/fuse.h"

#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "sim/plan/cover_looks.h"
#include "sim/plan/forward_stores.h"
#include "sim/plan/memory_names.h"
#include "sim/plan/statement_walk.h"
#include "sim/plan/sweep.h"

namespace simgrad::sim::plan {
namespace {

// A nest grows to at most so many statements; registers and compile time have bounds.
constexpr int64_t kLargestNest = 1200;

// The work of one statement, in element-operations (work_meter.h).
constexpr int64_t kFusingWork = 1024;

// Whether no statement may move across this one.
bool IsBarrier(Code code) {
  return code == Code::kRepeat || code == Code::kLeave || code == Code::kIf ||
         code == Code::kCommit || code == Code::kPush;
}

// The elements of a buffer that a loop touches in one iteration: stride * counter + outer terms +
// [low, high].
struct Footprint {
  bool reads = false;
  bool writes = false;
  bool is_known = true;
  int64_t stride = 0;
  int64_t low = 0;
  int64_t high = 0;
  std::vector<std::pair<Register, int64_t>> outer;

  void Join(const Footprint& other) {
    const bool is_first = !reads && !writes;
    if (is_first) {
      *this = other;
      return;
    }
    reads = reads || other.reads;
    writes = writes || other.writes;
    is_known = is_known && other.is_known && stride == other.stride && outer == other.outer;
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
  // No two iterations touch one element.
  bool HasOwnRows() const { return is_known && high - low < std::abs(stride); }
};
using Footprints = std::map<BufferId, Footprint>;

// Frames are one buffer more, whose writes commute: each number of a frame is kept once.
constexpr BufferId kTape = -2;

// The effects of one statement and of all statements inside it.
struct Summary {
  Footprints footprints;
  std::vector<Register> reads;  // some defined inside
  int64_t statements = 0;
  bool has_barrier = false;
  bool has_loop_inside = false;  // of the innermost body of its parallel axes
};

class FunctionFuser {
 public:
  FunctionFuser(Function& function, WorkMeter& meter)
      : function_(function),
        meter_(meter),
        memory_(MemoryNames(function)),
        defined_(function.registers.size(), 0) {}

  void Fuse() { Block(function_.statements); }

 private:
  // A run of statements that move freely, then one nest or barrier. Moments: 2k for the former, 2k +
  // 1 for the latter.
  struct Unit {
    std::vector<Statement> before;
    std::vector<Statement> nest;  // one, or none at the end
    Footprints footprints;
    int64_t statements = 0;
  };
  struct Touched {
    int64_t written = 0;
    int64_t touched = 0;
  };

  static bool IsNest(const Statement& s) {
    return s.code == Code::kEach && s.parallel && s.operands.empty();
  }

  Summary SummaryOf(const Statement& s) {
    Summary summary;
    std::vector<std::pair<Register, int64_t>> inner;  // counters and extents
    const Statement* innermost = &s;
    while (innermost->body.size() == 1 && IsNest(innermost->body[0])) {
      innermost = &innermost->body[0];
    }
    for (const Statement& inside : innermost->body) {
      summary.has_loop_inside = summary.has_loop_inside || inside.code == Code::kEach;
    }
    Summarize(s, s.code == Code::kEach ? s.result : kNoRegister, inner, summary);
    return summary;
  }

  void Summarize(const Statement& s, Register counter,
                 std::vector<std::pair<Register, int64_t>>& inner, Summary& summary) {
    ++summary.statements;
    const bool is_dynamic = s.code == Code::kEach && !s.operands.empty();
    summary.has_barrier = summary.has_barrier || IsBarrier(s.code) || is_dynamic;
    EachOperand(s, [&](Register r) { summary.reads.push_back(r); });
    if (s.code == Code::kDeclare) summary.footprints[s.buffer].is_known = true;
    if (s.code == Code::kKeep || s.code == Code::kRecall) {
      Footprint& tape = summary.footprints[kTape];
      tape.is_known = false;
      (s.code == Code::kKeep ? tape.writes : tape.reads) = true;
    }
    if (ReadsBuffer(s) || WritesBuffer(s)) Touch(s, counter, inner, summary);
    const bool is_inner = s.code == Code::kEach && s.result != counter;
    if (is_inner) inner.emplace_back(s.result, s.number);
    for (const Statement& inside : s.body) Summarize(inside, counter, inner, summary);
    // A buffer that is declared inside belongs to one iteration.
    for (const Statement& inside : s.body) {
      if (inside.code == Code::kDeclare) summary.footprints.erase(inside.buffer);
    }
    if (is_inner) inner.pop_back();
  }

  void Touch(const Statement& s, Register counter,
             const std::vector<std::pair<Register, int64_t>>& inner, Summary& summary) {
    Footprint own;
    own.reads = ReadsBuffer(s);
    own.writes = WritesBuffer(s);
    own.low = own.high = s.index.base;
    own.is_known = s.index.moved == kNoRegister;
    const auto spread = [&](int64_t stride, int64_t count) {
      (stride < 0 ? own.low : own.high) += stride * std::max<int64_t>(count - 1, 0);
    };
    if (s.code == Code::kExactSum) spread(s.stride, s.number);
    for (const auto& [r, stride] : s.index.terms) {
      if (r == counter) {
        own.stride += stride;
        continue;
      }
      const auto at = std::find_if(inner.begin(), inner.end(),
                                   [r = r](const auto& loop) { return loop.first == r; });
      if (at != inner.end()) {
        spread(stride, at->second);
      } else {
        own.outer.emplace_back(r, stride);
      }
    }
    std::sort(own.outer.begin(), own.outer.end());
    summary.footprints[memory_[static_cast<size_t>(s.buffer)]].Join(own);
  }

  // ---- one block ----
  static int64_t NestMoment(size_t unit) { return 2 * static_cast<int64_t>(unit) + 1; }

  int64_t DefinedBefore(const Summary& summary) const {
    int64_t moment = barrier_;
    for (Register r : summary.reads) {
      moment = std::max(moment, defined_[static_cast<size_t>(r)]);
    }
    return moment;
  }

  // The last moment that this footprint must follow.
  int64_t Follows(BufferId memory, const Footprint& f) const {
    const auto at = touched_.find(memory);
    if (at == touched_.end()) return 0;
    if (memory == kTape) {
      // `written`: kept; `touched`: recalled.
      return std::max(f.reads ? at->second.written : 0, f.writes ? at->second.touched : 0);
    }
    return f.writes ? at->second.touched : at->second.written;
  }

  void Remember(const Footprints& footprints, int64_t moment) {
    for (const auto& [memory, f] : footprints) {
      Touched& to = touched_[memory];
      if (memory == kTape) {
        if (f.writes) to.written = std::max(to.written, moment);
        if (f.reads) to.touched = std::max(to.touched, moment);
        continue;
      }
      to.touched = std::max(to.touched, moment);
      if (f.writes) to.written = std::max(to.written, moment);
    }
  }

  void Define(const Statement& s, int64_t moment) {
    if (s.result == kNoRegister || s.code == Code::kEach) return;
    defined_[static_cast<size_t>(s.result)] = moment;
    defined_here_.push_back(s.result);
  }

  // Moves freely: to the first moment behind all that it follows.
  void Place(Statement s, Summary summary) {
    if (s.code == Code::kDeclare) summary.footprints[s.buffer].writes = true;
    int64_t moment = DefinedBefore(summary);
    for (const auto& [memory, f] : summary.footprints) {
      moment = std::max(moment, Follows(memory, f));
    }
    moment += moment % 2;
    const size_t unit = static_cast<size_t>(moment / 2);
    while (units_.size() <= unit) units_.emplace_back();
    Define(s, moment);
    Remember(summary.footprints, moment);
    units_[unit].before.push_back(std::move(s));
  }

  // Whether a nest may be one with that of `unit`, which it follows.
  bool Joins(const Summary& summary, size_t unit, int64_t defined) const {
    if (unit == kNoUnit || units_[unit].statements + summary.statements > kLargestNest)
      return false;
    const int64_t moment = NestMoment(unit);
    if (defined > moment) return false;
    const Footprints& before = units_[unit].footprints;
    for (const auto& [memory, f] : summary.footprints) {
      const int64_t follows = Follows(memory, f);
      if (follows > moment) return false;
      if (follows < moment) continue;
      const auto at = before.find(memory);
      if (memory == kTape) return false;
      Footprint both = at->second;
      both.Join(f);
      if (!both.HasOwnRows()) return false;
    }
    return true;
  }

  void Append(Statement s, Summary summary, bool is_barrier) {
    if (units_.empty() || !units_.back().nest.empty()) units_.emplace_back();
    Unit& unit = units_.back();
    const int64_t moment = NestMoment(units_.size() - 1);
    Define(s, moment);
    Remember(summary.footprints, moment);
    unit.statements = summary.statements;
    unit.footprints = std::move(summary.footprints);
    unit.nest.push_back(std::move(s));
    if (!is_barrier) return;
    barrier_ = moment;
    last_.clear();
  }

  void Join(Statement s, Summary summary, size_t unit) {
    Unit& to = units_[unit];
    const Register counter = to.nest[0].result;
    EachStatement(s.body, [&](Statement& inside) {
      EachOperand(inside, [&](Register& r) { r = r == s.result ? counter : r; });
    });
    std::move(s.body.begin(), s.body.end(), std::back_inserter(to.nest[0].body));
    Remember(summary.footprints, NestMoment(unit));
    to.statements += summary.statements;
    for (const auto& [memory, f] : summary.footprints) to.footprints[memory].Join(f);
  }

  // The flags of a nest and the number of its elements, then its extents.
  static constexpr size_t kAlike = 3;
  static std::vector<int64_t> KindOf(const Statement& s, const Summary& summary) {
    std::vector<int64_t> kind = {summary.has_loop_inside ? 1 : 0, s.invariant ? 1 : 0, 1};
    for (const Statement* nest = &s;; nest = &nest->body[0]) {
      kind[kAlike - 1] *= nest->number;
      kind.push_back(nest->number);
      if (nest->body.size() != 1 || !IsNest(nest->body[0])) return kind;
    }
  }

  // A nest of one loop as the nest of loops of these extents, whose product is its own; nothing where
  // its counter counts for more than places in memory.
  std::optional<Statement> Split(const Statement& s, std::span<const int64_t> extents) {
    int64_t uses = 0;
    int64_t places = 0;
    EachStatement(s.body, [&](const Statement& inside) {
      EachOperand(inside, [&](Register r) { uses += r == s.result ? 1 : 0; });
      for (const auto& [r, stride] : inside.index.terms) places += r == s.result ? 1 : 0;
    });
    if (uses != places) return std::nullopt;
    std::vector<Register> counters;
    for (size_t k = 0; k < extents.size(); ++k) {
      counters.push_back(function_.AddRegister(Carrier::kI64));
    }
    defined_.resize(function_.registers.size(), 0);
    std::vector<Statement> body = s.body;
    EachStatement(body, [&](Statement& inside) {
      std::vector<std::pair<Register, int64_t>> terms;
      for (const auto& [r, stride] : inside.index.terms) {
        if (r != s.result) {
          terms.emplace_back(r, stride);
          continue;
        }
        // The outermost first, as nests of several loops have them.
        int64_t step = stride * s.number;
        for (size_t k = 0; k < extents.size(); ++k) {
          step /= extents[k];
          terms.emplace_back(counters[k], step);
        }
      }
      inside.index.terms = std::move(terms);
    });
    for (size_t k = extents.size(); k-- > 0;) {
      Statement loop = s;
      loop.result = counters[k];
      loop.number = extents[k];
      loop.invariant = k == 0 && s.invariant;  // of the whole nest
      loop.body = std::move(body);
      body.clear();
      body.push_back(std::move(loop));
    }
    return std::move(body[0]);
  }

  // Whether it reads what the nest of `unit` wrote last.
  bool ReadsFrom(const Summary& summary, size_t unit) const {
    return std::any_of(summary.footprints.begin(), summary.footprints.end(),
                       [&](const auto& touched) {
                         const auto at = touched_.find(touched.first);
                         return touched.first != kTape && touched.second.reads &&
                                at != touched_.end() && at->second.written == NestMoment(unit);
                       });
  }

  // Joins a nest of one loop to the last one of several loops that has as many elements, where that
  // spares the way through memory.
  bool JoinsSplit(const Statement& s, const std::vector<int64_t>& kind, const Summary& whole,
                  int64_t defined) {
    if (kind.size() != kAlike + 1) return false;
    const auto alike = std::span(kind).first(kAlike);
    for (auto at = last_.lower_bound({alike.begin(), alike.end()}); at != last_.end(); ++at) {
      const auto& [other, unit] = *at;
      if (!std::ranges::equal(alike, std::span(other).first(kAlike))) break;
      const auto extents = std::span(other).subspan(kAlike);
      if (extents.size() < 2 || unit == kNoUnit) continue;
      if (defined > NestMoment(unit) || !ReadsFrom(whole, unit)) continue;
      std::optional<Statement> split = Split(s, extents);
      if (!split) return false;
      Summary summary = SummaryOf(*split);
      if (!Joins(summary, unit, defined)) continue;
      Join(*std::move(split), std::move(summary), unit);
      return true;
    }
    return false;
  }

  void Block(std::vector<Statement>& block) {
    units_.clear();
    touched_.clear();
    last_.clear();
    barrier_ = 0;
    for (Statement& s : block) {
      meter_.Add(kFusingWork);
      Summary summary = SummaryOf(s);
      const bool moves = s.body.empty() && !IsBarrier(s.code) && s.code != Code::kEach;
      if (moves) {
        Place(std::move(s), std::move(summary));
      } else if (summary.has_barrier || !IsNest(s)) {
        const bool is_barrier = summary.has_barrier;
        Append(std::move(s), std::move(summary), is_barrier);
      } else {
        const std::vector<int64_t> kind = KindOf(s, summary);
        const auto [last, is_new] = last_.try_emplace(kind, kNoUnit);
        const int64_t defined = DefinedBefore(summary);
        if (Joins(summary, last->second, defined)) {
          Join(std::move(s), std::move(summary), last->second);
        } else if (!JoinsSplit(s, kind, summary, defined)) {
          Append(std::move(s), std::move(summary), false);
          last->second = units_.size() - 1;
        }
      }
    }
    block.clear();
    for (Unit& unit : units_) {
      std::move(unit.before.begin(), unit.before.end(), std::back_inserter(block));
      std::move(unit.nest.begin(), unit.nest.end(), std::back_inserter(block));
    }
    for (Register r : defined_here_) defined_[static_cast<size_t>(r)] = 0;
    defined_here_.clear();
    for (Statement& s : block) {
      if (!s.body.empty()) Block(s.body);
    }
  }

  static constexpr size_t kNoUnit = ~size_t{0};

  Function& function_;
  WorkMeter& meter_;
  std::vector<BufferId> memory_;  // by buffer: the first that names the same memory
  std::vector<int64_t> defined_;  // by register of this block: the moment
  std::vector<Register> defined_here_;
  std::vector<Unit> units_;
  std::unordered_map<BufferId, Touched> touched_;
  std::map<std::vector<int64_t>, size_t> last_;  // by kind: the nest that the next may join
  int64_t barrier_ = 0;
};

}  // namespace

Plan Fuse(Plan plan, WorkMeter& meter) {
  EachFunction(plan, [&](Function& function) {
    FunctionFuser(function, meter).Fuse();
    meter.Add(WorkMeter::kPiece);
    ForwardStores(function);
    meter.Add(WorkMeter::kPiece);
    CoverLooks(function);
    meter.Add(WorkMeter::kPiece);
    Sweep(function);
  });
  return plan;
}

}  // namespace simgrad::sim::plan
