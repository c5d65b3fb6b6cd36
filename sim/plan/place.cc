#include "sim/plan/place.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::plan {
namespace {

// Free bytes [begin, end) of the workspace, found by size and by neighbours.
class FreeBytes {
 public:
  // The smallest gap that holds them; else at the end, which grows.
  int64_t Take(int64_t bytes) {
    const auto gap = by_size_.lower_bound({bytes, 0});
    if (gap == by_size_.end()) {
      // A gap at the end grows.
      const int64_t begin = Last() == by_begin_.end() ? end_ : Last()->first;
      if (begin != end_) Erase(Last());
      end_ = begin + bytes;
      return begin;
    }
    const auto [size, begin] = *gap;
    Erase(by_begin_.find(begin));
    if (size > bytes) Insert(begin + bytes, size - bytes);
    return begin;
  }

  void Give(int64_t begin, int64_t bytes) {
    auto next = by_begin_.lower_bound(begin);
    if (next != by_begin_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = Erase(next);
    }
    if (next != by_begin_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        Erase(before);
      }
    }
    Insert(begin, bytes);
  }

  int64_t end() const { return end_; }

 private:
  using ByBegin = std::map<int64_t, int64_t>;  // to their number
  ByBegin::iterator Last() {
    if (by_begin_.empty()) return by_begin_.end();
    const auto last = std::prev(by_begin_.end());
    return last->first + last->second == end_ ? last : by_begin_.end();
  }
  void Insert(int64_t begin, int64_t bytes) {
    by_begin_[begin] = bytes;
    by_size_.emplace(bytes, begin);
  }
  ByBegin::iterator Erase(ByBegin::iterator at) {
    by_size_.erase({at->second, at->first});
    return by_begin_.erase(at);
  }

  ByBegin by_begin_;
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t end_ = 0;
};

constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();

struct Life {
  int64_t first = -1;
  int64_t last = -1;
};

class Placer {
 public:
  explicit Placer(Function& function)
      : function_(function), lives_(function.buffers.size()), declared_(lives_.size(), -1) {}

  void Run() {
    int64_t moment = 0;
    Block(function_.statements, moment, 0);
    std::vector<std::pair<Life, size_t>> begins;
    for (size_t id = 0; id < lives_.size(); ++id) {
      if (lives_[id].first >= 0) begins.push_back({lives_[id], id});
    }
    std::sort(begins.begin(), begins.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first.first, a.second) < std::pair(b.first.first, b.second);
    });
    std::set<std::pair<int64_t, size_t>> ends;
    FreeBytes free;
    for (const auto& [life, id] : begins) {
      while (!ends.empty() && ends.begin()->first < life.first) {
        const size_t ended = ends.begin()->second;
        free.Give(function_.buffers[ended].offset, BytesOfBuffer(ended));
        ends.erase(ends.begin());
      }
      function_.buffers[id].offset = free.Take(BytesOfBuffer(id));
      if (life.last == kAlways) function_.kept = free.end();  // these come first
      ends.emplace(life.last, id);
    }
    function_.workspace = free.end();
  }

 private:
  int64_t BytesOfBuffer(size_t id) const {
    const Buffer& buffer = function_.buffers[id];
    return (buffer.count * BytesOf(buffer.carrier) + 7) / 8 * 8;
  }

  bool IsPlaced(const Buffer& buffer) const {
    return buffer.kind == BufferKind::kLocal &&
           (buffer.placed || (!buffer.shared && buffer.count > 1));
  }

  // `around_`: of the statements around the current one, outermost first, the first moment and the
  // locals to extend to its last.
  struct Around {
    int64_t first;
    std::vector<size_t> touched;
  };

  void Touch(size_t id, int64_t moment) {
    if (!IsPlaced(function_.buffers[id]) || declared_[id] < 0) return;
    Life& life = lives_[id];
    // Statements between its declaration and here take part as a whole.
    const size_t depth = static_cast<size_t>(declared_[id]);
    if (around_.size() > depth) {
      around_[depth].touched.push_back(id);
      moment = around_[depth].first;
    }
    if (life.first < 0) life.first = moment;
    life.last = std::max(life.last, moment);
  }

  // Invariant loops store for the steps that follow, too.
  void KeepStored(const std::vector<Statement>& body) {
    EachStatement(body, [&](const Statement& s) {
      if (!WritesBuffer(s)) return;
      const size_t id = static_cast<size_t>(s.buffer);
      if (declared_[id] == 0 && IsPlaced(function_.buffers[id])) lives_[id] = {0, kAlways};
    });
  }

  void Block(const std::vector<Statement>& block, int64_t& moment, int64_t depth) {
    for (const Statement& s : block) {
      ++moment;
      if (s.code == Code::kDeclare) declared_[static_cast<size_t>(s.buffer)] = depth;
      if (ReadsBuffer(s) || WritesBuffer(s)) Touch(static_cast<size_t>(s.buffer), moment);
      if (s.invariant) KeepStored(s.body);
      if (s.body.empty()) continue;
      around_.push_back({moment, {}});
      Block(s.body, moment, depth + 1);
      ++moment;
      for (size_t id : around_.back().touched) {
        lives_[id].last = std::max(lives_[id].last, moment);
      }
      around_.pop_back();
    }
  }

  Function& function_;
  std::vector<Life> lives_;
  std::vector<int64_t> declared_;  // by buffer: the depth of its block
  std::vector<Around> around_;
};

}  // namespace

void Place(Function& function) { Placer(function).Run(); }

Plan Place(Plan plan, WorkMeter& meter) {
  EachFunction(plan, [&](Function& function) {
    meter.Add(WorkMeter::kPiece);
    Place(function);
  });
  return plan;
}

}  // namespace simgrad::sim::plan
