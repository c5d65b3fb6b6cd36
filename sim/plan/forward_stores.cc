#include "sim/plan/forward_stores.h"

#include <set>
#include <unordered_map>
#include <utility>

#include "sim/plan/memory_names.h"
#include "sim/plan/statement_walk.h"

namespace simgrad::sim::plan {
namespace {

// The most elements of one buffer that are known at a time.
constexpr size_t kKnownElements = 64;

struct Known {
  Index index;
  Register value;
};

class Forwarder {
 public:
  explicit Forwarder(Function& function)
      : function_(function), known_(function.buffers.size()), same_(function.registers.size()) {
    for (size_t r = 0; r < same_.size(); ++r) same_[r] = static_cast<Register>(r);
    for (BufferId name : MemoryNames(function)) memory_.push_back(static_cast<size_t>(name));
  }

  void Run() { Block(function_.statements); }

 private:
  // The knowledge of each buffer before a block changed it.
  using Log = std::vector<std::pair<size_t, std::vector<Known>>>;

  std::vector<Known>& Change(size_t buffer) {
    if (logged_.insert(buffer).second) log_.emplace_back(buffer, known_[buffer]);
    return known_[buffer];
  }

  // Different elements of one buffer at the same counters.
  static bool AreApart(const Index& a, const Index& b) {
    return a.terms == b.terms && a.moved == b.moved && a.base != b.base;
  }

  void Add(size_t buffer, const Index& index, Register value) {
    std::vector<Known>& known = Change(buffer);
    if (known.size() == kKnownElements) known.erase(known.begin());
    known.push_back({index, value});
  }

  void Store(const Statement& s) {
    const size_t buffer = memory_[static_cast<size_t>(s.buffer)];
    std::vector<Known>& known = Change(buffer);
    std::erase_if(known, [&](const Known& k) { return !AreApart(k.index, s.index); });
    const Carrier held = function_.registers[static_cast<size_t>(s.operands[0])];
    if (held == function_.buffers[buffer].carrier) Add(buffer, s.index, s.operands[0]);
  }

  void Load(const Statement& s) {
    const size_t buffer = memory_[static_cast<size_t>(s.buffer)];
    for (const Known& k : known_[buffer]) {
      if (k.index == s.index) {
        same_[static_cast<size_t>(s.result)] = k.value;
        return;
      }
    }
    Add(buffer, s.index, s.result);
  }

  void Block(std::vector<Statement>& block) {
    for (Statement& s : block) {
      EachOperand(s, [&](Register& r) { r = same_[static_cast<size_t>(r)]; });
      if (s.code == Code::kStore) Store(s);
      if (s.code == Code::kLoad) Load(s);
      if (s.body.empty()) continue;
      std::set<size_t> stored;
      EachStatement(s.body, [&](const Statement& inside) {
        if (inside.code == Code::kStore) stored.insert(memory_[static_cast<size_t>(inside.buffer)]);
      });
      // A turn sees what the turn before stored.
      for (size_t buffer : stored) Change(buffer).clear();
      Log around = std::exchange(log_, {});
      std::set<size_t> logged = std::exchange(logged_, {});
      Block(s.body);
      for (auto& [buffer, before] : log_) known_[buffer] = std::move(before);
      log_ = std::move(around);
      logged_ = std::move(logged);
    }
  }

  Function& function_;
  std::vector<size_t> memory_;  // by buffer: the first that names the same memory
  std::vector<std::vector<Known>> known_;
  std::vector<Register> same_;  // by register: the one to read instead
  Log log_;
  std::set<size_t> logged_;  // buffers in the log of this block
};

}  // namespace

void ForwardStores(Function& function) { Forwarder(function).Run(); }

}  // namespace simgrad::sim::plan
