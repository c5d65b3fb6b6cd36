// The witness in reverse: the rules of docs/numerics.md section 6.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {
namespace {

std::vector<char> All(size_t n) { return std::vector<char>(n, 1); }

std::vector<char> Both(const std::vector<char>& a, const std::vector<char>& b) {
  std::vector<char> both;
  for (size_t i = 0; i < a.size(); ++i) both.push_back(a[i] != 0 && b[i] != 0);
  return both;
}

bool Chooses(const std::string& what) { return what == "select" || what == "max" || what == "min"; }

}  // namespace

bool Witness::Reverses(const std::string& what) {
  return Chooses(what) || HasRule(what) || Reversals().count(what) != 0;
}

// Numbers as an adjoint operation of `role` reads them.
std::vector<double> Witness::BringRead(const Read& x, Role role, const std::vector<char>& where,
                                       const Context& context) {
  const precision::RoleSetting& setting = Setting(role);
  // A tape is executed where what reads it is.
  for (size_t i = 0; i < x.v.size() && x.tape != nullptr; ++i) {
    if (where[i] == 0) continue;
    Check("tape", x.label, "", Role::kTape, x.format, x.tape->place, i, x.v.size(), {x.tape->v[i]},
          x.v[i]);
  }
  if (x.format == setting.format && !x.exact) return x.v;
  std::vector<double> cast;
  for (size_t i = 0; i < x.v.size(); ++i) {
    cast.push_back(Nearest(setting.format, x.v[i], setting.overflow));
    if (where[i] == 0) continue;
    Check("cast", context.label, "", role, setting.format, x.exact ? Place{} : context.place, i,
          x.v.size(), {x.v[i]}, cast[i]);
  }
  return cast;
}

Witness::Read Witness::Do(const std::string& what, const std::vector<Read>& in,
                          const Context& context) {
  std::vector<std::vector<double>> operands;
  for (const Read& x : in) operands.push_back(BringRead(x, context.role, context.where, context));
  Read result;
  result.format = Setting(context.role).format;
  const size_t n = context.where.size();
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> at;
    for (const auto& operand : operands) at.push_back(operand[i]);
    result.v.push_back(Compute(what, result.format, at));
    if (context.where[i] == 0) continue;
    Check(what, context.label, "", context.role, result.format, context.place, i, n, at,
          result.v[i]);
  }
  return result;
}

Witness::Read Witness::Tape(Node& node, const Context& context) {
  if (node.exact) return {node.v, Format::kF64, true};
  if (node.plain) return {node.v, Setting(context.role).format, false};
  if (node.taped) return *node.taped;
  const precision::RoleSetting& setting = Setting(Role::kTape);
  Read read{{}, setting.format, false, &node, context.label};
  for (const double x : node.v) {
    read.v.push_back(Nearest(setting.format, x, setting.overflow));
  }
  node.taped = read;
  return read;
}

// Fan-in: the first is assigned, a later one added where it is present.
Witness::Slot Witness::Merged(const Slot& first, const Slot& second, Role role,
                              const Context& context) {
  if (first.partial && !second.partial) return Merged(second, first, role, context);
  Context here = context;
  here.role = role;
  const auto bring = [&](const Slot& slot) {
    return BringRead({slot.v, slot.format, false}, role, slot.mask, here);
  };
  const std::vector<double> a = bring(first);
  const std::vector<double> b = bring(second);
  Slot merged{a, first.mask, first.partial, Setting(role).format};
  const std::string what = first.partial ? "merge2" : second.partial ? "merge" : "add";
  for (size_t i = 0; i < a.size(); ++i) {
    const double has_a = first.mask[i];
    const double has_b = second.mask[i];
    if (has_b == 0.0) continue;
    merged.mask[i] = 1;
    merged.v[i] = has_a != 0.0 ? Compute("add", merged.format, {a[i], b[i]}) : b[i];
    std::vector<double> operands = {a[i], b[i]};
    if (what == "merge") operands = {a[i], b[i], has_b};
    if (what == "merge2") operands = {a[i], has_a, b[i], has_b};
    Check(what, context.label, "", role, merged.format, context.place, i, a.size(), operands,
          merged.v[i]);
  }
  return merged;
}

void Witness::Accumulate(Node& to, const Slot& slot, const Context& context) {
  const precision::RoleSetting& setting = Setting(Role::kGradient);
  const std::vector<double> value =
      BringRead({slot.v, slot.format, false}, Role::kGradient, slot.mask, context);
  std::vector<double>& sum = gradients_[{to.input, Varies(to.input) ? now_ : 0}];
  sum.resize(value.size(), 0.0);
  for (size_t i = 0; i < value.size(); ++i) {
    if (slot.mask[i] == 0) continue;
    const double before = sum[i];
    sum[i] = Compute("add", setting.format, {before, value[i]});
    Check("accumulate", context.label, "", Role::kGradient, setting.format, context.place, i,
          value.size(), {before, value[i]}, sum[i]);
  }
}

void Witness::Contribute(Node* to, Slot slot, const Context& context) {
  if (!to->active) return;
  if (to->input >= 0) return Accumulate(*to, slot, context);
  if (!to->slot) {
    to->slot = std::move(slot);
    return;
  }
  const Role role = to->role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  to->slot = Merged(*to->slot, slot, role, context);
}

// The cotangent goes to the operand taken only; the later operand first.
void Witness::Choice(Node& node, const Slot& slot, const std::vector<char>& first_taken,
                     size_t first, size_t second, const Context& context) {
  std::vector<char> other;
  for (char taken : first_taken) other.push_back(taken == 0);
  Slot to_second{slot.v, Both(slot.mask, other), true, slot.format};
  Slot to_first{slot.v, Both(slot.mask, first_taken), true, slot.format};
  Contribute(node.in[second], std::move(to_second), context);
  Contribute(node.in[first], std::move(to_first), context);
}

// The cotangent times the products of the factors before and behind each.
void Witness::ReverseProduct(Node& node, const Slot& slot, const Context& context) {
  const size_t n = node.in[0]->v.size();
  const Format format = Setting(context.role).format;
  Context wide = context;
  wide.where.assign(n, slot.mask[0]);
  const std::vector<double> x = BringRead(Tape(*node.in[0], wide), context.role, wide.where, wide);
  const auto products = [&](bool reverse) {
    Read read{std::vector<double>(n, 1.0), format, false};
    double product = 1.0;
    for (size_t k = 0; k < n; ++k) {
      const size_t i = reverse ? n - 1 - k : k;
      read.v[i] = product;
      product = Compute("mul", format, {product, x[i]});
    }
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    for (size_t i = 0; i < n && slot.mask[0] != 0; ++i) {
      Check("exclusive_prod", context.label, "", context.role, format, context.place, i, n,
            {*low, *high}, read.v[i]);
    }
    return read;
  };
  const Read before = products(false);
  const Read behind = products(true);
  const Read others = Do("mul", {before, behind}, wide);
  const Read spread{std::vector<double>(n, slot.v[0]), slot.format, false};
  const Read result = Do("mul", {spread, others}, wide);
  Contribute(node.in[0], {result.v, wide.where, slot.partial, result.format}, context);
}

void Witness::Pass(Node& node, const Slot& slot, const Context& context) {
  Contribute(node.in[0], slot, context);
}

void Witness::Hand(Node& node, const Slot& slot, const Context& context) {
  for (size_t e = node.in.size(); e-- > 0;) {
    Contribute(node.in[e], {{slot.v[e]}, {slot.mask[e]}, slot.partial, slot.format}, context);
  }
}

Witness::Slot Witness::Absent(const Node& node, const Slot& slot) {
  const size_t n = node.in[0]->v.size();
  return {std::vector<double>(n, 0.0), std::vector<char>(n, 0), slot.partial, slot.format};
}

void Witness::PutBack(Node& node, const Slot& slot, const Context& context) {
  Slot wide = Absent(node, slot);
  wide.v[static_cast<size_t>(node.element)] = slot.v[0];
  wide.mask[static_cast<size_t>(node.element)] = slot.mask[0];
  Contribute(node.in[0], std::move(wide), context);
}

void Witness::Widen(Node& node, const Slot& slot, const Context& context) {
  Slot wide = Absent(node, slot);
  wide.partial = true;
  for (size_t i = 0; i < slot.v.size(); ++i) {
    wide.v[i + static_cast<size_t>(node.line->start)] = slot.v[i];
    wide.mask[i + static_cast<size_t>(node.line->start)] = slot.mask[i];
  }
  Contribute(node.in[0], std::move(wide), context);
}

void Witness::Spread(Node& node, const Slot& slot, const Context& context) {
  const size_t n = node.in[0]->v.size();
  Slot wide{std::vector<double>(n, slot.v[0]), std::vector<char>(n, slot.mask[0]), slot.partial,
            slot.format};
  Contribute(node.in[0], std::move(wide), context);
}

// The sum over what it was spread to; an absent element counts as +0.
void Witness::AddUp(Node& node, const Slot& slot, const Context& context) {
  Slot sum = Absent(node, slot);
  const precision::RoleSetting& setting = Setting(context.role);
  std::vector<double> filled =
      BringRead({slot.v, slot.format, false}, context.role, slot.mask, context);
  for (size_t i = 0; i < filled.size(); ++i) filled[i] = slot.mask[i] != 0 ? filled[i] : 0.0;
  sum.v[0] = SumOf(filled, setting.order, setting.accumulator, setting.format);
  sum.mask[0] = std::any_of(slot.mask.begin(), slot.mask.end(), [](char m) { return m != 0; });
  sum.format = setting.format;
  const auto [low, high] = std::minmax_element(filled.begin(), filled.end());
  if (sum.mask[0] != 0) {
    Check("sum", context.label, "", context.role, setting.format, context.place, 0, 1,
          {*low, *high}, sum.v[0]);
  }
  Contribute(node.in[0], std::move(sum), context);
}

const std::map<std::string, Witness::Reversal>& Witness::Reversals() {
  static const auto* const kAll = new std::map<std::string, Reversal>{
      // What stands for a loop.
      {"move", &Witness::Pass},
      {"gather", &Witness::Hand},
      {"element", &Witness::PutBack},
      // Lines.
      {"cast", &Witness::Pass},
      {"slice", &Witness::Widen},
      {"total", &Witness::Spread},
      {"product of all", &Witness::ReverseProduct},
      {"broadcast", &Witness::AddUp},
  };
  return *kAll;
}

void Witness::ReverseNode(Node& node) {
  if (!node.slot || node.in.empty()) return;
  const Slot slot = *node.slot;
  Context context;
  context.role =
      node.line != nullptr && node.role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  context.label = node.label;
  context.place = node.place;
  context.where = slot.partial ? slot.mask : All(slot.v.size());
  const std::string& what = node.what;
  if (!Chooses(what)) {
    if (ReverseFunction(node, slot, context)) return;
    const auto reversal = Reversals().find(what);
    if (reversal == Reversals().end()) {
      std::fprintf(stderr, "the witness cannot reverse '%s'\n", what.c_str());
      std::abort();
    }
    (this->*reversal->second)(node, slot, context);
    return;
  }
  std::vector<char> first_taken;
  const size_t first = what == "select" ? 1 : 0;
  for (size_t i = 0; i < slot.v.size(); ++i) {
    const double a = node.read[0][i];
    const double b = node.read[1][i];
    first_taken.push_back(what == "select" ? a != 0.0 : what == "max" ? a > b : a < b);
  }
  Choice(node, slot, first_taken, first, first + 1, context);
}

void Witness::ReverseScene(Scene& scene) {
  for (size_t i = scene.nodes.size(); i-- > 0;) ReverseNode(*scene.nodes[i]);
}

// What leaves a region has the format of role adjoint.
std::optional<Witness::Slot> Witness::LeaveRegion(const std::optional<Slot>& slot) {
  if (!slot) return slot;
  Slot out = *slot;
  out.v = BringRead({slot->v, slot->format, false}, Role::kAdjoint, slot->mask, {});
  out.format = Setting(Role::kAdjoint).format;
  return out;
}

Witness::Slot Witness::SentSlot(const std::vector<double>& row) const {
  const Format format = Setting(Role::kAdjoint).format;
  const double seed = Nearest(Setting(Role::kObjective).format, policy_.loss_scale);
  Slot slot{{}, All(row.size()), false, format};
  for (double x : row) slot.v.push_back(Nearest(format, x * seed));
  return slot;
}

void Witness::Reverse() {
  phase_ = sim::Phase::kAdjoint;
  const Format objective = Setting(Role::kObjective).format;
  const Slot seed{{Nearest(objective, policy_.loss_scale)}, {1}, false, objective};
  const Context none;
  Scene& last = scenes_.back();
  now_ = steps_;
  if (recipe_.sends_final) Contribute(last.state[2], SentSlot(sent_.final_cotangent[0]), none);
  if (recipe_.sends_trajectory) {
    Contribute(last.state[2], SentSlot(sent_.trajectory_cotangent.back()), none);
  }
  if (last.cost != nullptr) Contribute(last.cost, seed, none);
  ReverseScene(last);
  std::optional<Slot> slots[3];
  for (size_t i = 0; i < 3; ++i) slots[i] = LeaveRegion(last.state[i]->slot);
  for (int64_t t = steps_ - 1; t >= 0; --t) {
    now_ = t;
    Scene& scene = scenes_[static_cast<size_t>(t)];
    if (recipe_.sends_trajectory) {
      Contribute(scene.state[2], SentSlot(sent_.trajectory_cotangent[static_cast<size_t>(t)]),
                 none);
    }
    for (size_t i = 3; i-- > 0;) {
      if (slots[i]) Contribute(scene.next[i], *slots[i], none);
    }
    if (scene.cost != nullptr) Contribute(scene.cost, seed, none);
    ReverseScene(scene);
    for (size_t i = 0; i < 3; ++i) slots[i] = LeaveRegion(scene.state[i]->slot);
  }
  const precision::RoleSetting& setting = Setting(Role::kGradient);
  for (size_t k = 0; k < 3; ++k) {
    for (size_t i = 0; slots[k] && i < slots[k]->v.size(); ++i) {
      if (slots[k]->mask[i] == 0) continue;
      const double x = slots[k]->v[i];
      Check("cast", "", "", Role::kGradient, setting.format, {}, i, slots[k]->v.size(), {x},
            Nearest(setting.format, x, setting.overflow));
    }
  }
}

}  // namespace simgrad::nonfinite
