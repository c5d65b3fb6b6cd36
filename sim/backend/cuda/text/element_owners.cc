#include "sim/backend/cuda/text/element_owners.h"

#include <algorithm>

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::cuda {
namespace {

using plan::Buffer;
using plan::BufferId;
using plan::BufferKind;
using plan::Code;
using plan::Register;
using plan::Statement;

constexpr int64_t kTape = -1;

bool IsOneNumber(const Buffer& buffer) { return buffer.count == 1; }

}  // namespace

int64_t SharedLoop::turns() const {
  int64_t turns = 1;
  for (int64_t extent : extents) turns *= extent;
  return turns;
}

ElementOwners::ElementOwners(const plan::Function& function, const std::vector<bool>& kept,
                             bool tells_instances)
    : function_(function), kept_(kept), tells_instances_(tells_instances) {
  for (size_t id = 0; id < function.buffers.size(); ++id) {
    const Buffer& buffer = function.buffers[id];
    const bool is_local = buffer.kind == BufferKind::kLocal;
    const auto own = static_cast<int64_t>(id);
    memory_.push_back(
        is_local ? own : named_.try_emplace({buffer.kind, buffer.number}, own).first->second);
  }
  FindPrivate(function.statements, false);
}

void ElementOwners::FindPrivate(const std::vector<Statement>& statements, bool inside) {
  for (const Statement& s : statements) {
    if (inside && s.code == Code::kDeclare) private_.insert(s.buffer);
    FindPrivate(s.body, inside || ShareOut(s).body != nullptr);
  }
}

bool ElementOwners::IsShared(BufferId id) const {
  if (private_.contains(id)) return false;
  const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
  switch (buffer.kind) {
    case BufferKind::kLocal:
    case BufferKind::kField:
      return !IsOneNumber(buffer);
    case BufferKind::kGradient:
      return !kept_[static_cast<size_t>(buffer.number)];
    default:
      return false;  // only read, or a flag that every thread has
  }
}

// Numbers of their own that turns write are flags that they join by `or`, or the loop stays whole.
bool ElementOwners::FindFlags(const std::vector<Statement>& body, SharedLoop& loop) const {
  std::set<BufferId> declared;
  std::map<Register, const Statement*> made;
  bool fits = true;
  plan::EachStatement(body, [&](const Statement& s) {
    if (s.result != plan::kNoRegister) made[s.result] = &s;
    if (s.code == Code::kDeclare) declared.insert(s.buffer);
    loop.pushes = loop.pushes || s.code == Code::kPush;
    loop.in_order = loop.in_order || (tells_instances_ && s.code == Code::kRun);
    if (s.code != Code::kStore || declared.contains(s.buffer) || IsShared(s.buffer)) return;
    const auto value = made.find(s.operands[0]);
    const bool is_or = value != made.end() && value->second->code == Code::kCall &&
                       value->second->function == "or_bool";
    const auto before = is_or ? made.find(value->second->operands[0]) : made.end();
    const bool joins = before != made.end() && before->second->code == Code::kLoad &&
                       before->second->buffer == s.buffer;
    fits = fits && joins;
    if (std::find(loop.flags.begin(), loop.flags.end(), s.buffer) == loop.flags.end()) {
      loop.flags.push_back(s.buffer);
    }
  });
  return fits;
}

SharedLoop ElementOwners::ShareOut(const Statement& statement) const {
  SharedLoop loop;
  const Statement* s = &statement;
  const auto may = [](const Statement& each) {
    return each.code == Code::kEach && each.parallel && each.operands.empty();
  };
  if (!may(*s)) return {};
  while (true) {
    loop.counters.push_back(s->result);
    loop.extents.push_back(s->number);
    loop.body = &s->body;
    if (s->body.size() != 1 || !may(s->body[0])) break;
    s = &s->body[0];
  }
  if (loop.turns() < 2 || !FindFlags(*loop.body, loop)) return {};
  return loop;
}

void ElementOwners::Touch(BufferId id, const plan::Index& index, bool writes,
                          const SharedLoop* loop, const Extents& inner, Accesses& to) const {
  if (!IsShared(id)) return;
  Access access = {memory_[static_cast<size_t>(id)], writes, {}};
  if (loop == nullptr || loop->in_order) {
    access.owner.kind = writes || loop != nullptr ? Owner::kFirst : Owner::kAll;
    to.insert(access);
    return;
  }
  // base + stride * turn + what loops inside add, which stays below the stride.
  std::vector<int64_t> strides(loop->counters.size(), 0);
  int64_t span = 0;
  bool is_known = index.moved == plan::kNoRegister;
  for (const auto& [counter, stride] : index.terms) {
    const auto own = std::find(loop->counters.begin(), loop->counters.end(), counter);
    if (own != loop->counters.end()) {
      strides[static_cast<size_t>(own - loop->counters.begin())] += stride;
      continue;
    }
    const auto extent = inner.find(counter);
    is_known = is_known && extent != inner.end() && stride >= 0;
    if (is_known) span += stride * (extent->second - 1);
  }
  for (size_t k = 0; k + 1 < strides.size(); ++k) {
    is_known = is_known && strides[k] == strides[k + 1] * loop->extents[k + 1];
  }
  if (is_known && strides.back() > span) {
    access.owner = {Owner::kTurns, index.base, strides.back()};
  }
  to.insert(access);
}

void ElementOwners::Gather(const Statement& s, const SharedLoop* loop, Extents& inner,
                           Accesses& to) const {
  switch (s.code) {
    case Code::kLoad:
      return Touch(s.buffer, s.index, false, loop, inner, to);
    case Code::kStore:
      return Touch(s.buffer, s.index, true, loop, inner, to);
    case Code::kExactSum: {
      // Any element, from any thread.
      if (IsShared(s.buffer)) to.insert({memory_[static_cast<size_t>(s.buffer)], false, {}});
      return;
    }
    case Code::kKeep:
      to.insert({kTape, true, {}});
      return;
    case Code::kRecall:
      to.insert({kTape, false, {}});
      return;
    case Code::kNumber:
    case Code::kInteger:
    case Code::kConstant:
    case Code::kTime:
    case Code::kCall:
    case Code::kDeclare:
    case Code::kEach:
    case Code::kRepeat:
    case Code::kLeave:
    case Code::kLook:
    case Code::kRange:
    case Code::kStored:
    case Code::kAbsorbed:
    case Code::kCommit:
    case Code::kTest:
    case Code::kRun:
    case Code::kDecide:
    case Code::kIf:
    case Code::kPush:
    case Code::kSeed:
    case Code::kTake:
      break;
  }
  SharedLoop own;
  if (loop == nullptr) own = ShareOut(s);
  if (own.body != nullptr) {
    Extents none;
    for (const Statement& nested : *own.body) Gather(nested, &own, none, to);
    return;
  }
  if (s.code == Code::kEach && s.operands.empty()) inner[s.result] = s.number;
  for (const Statement& nested : s.body) Gather(nested, loop, inner, to);
}

Accesses ElementOwners::Of(const Statement& statement) const {
  Accesses touched;
  Extents inner;
  Gather(statement, nullptr, inner, touched);
  return touched;
}

Accesses ElementOwners::Of(const std::vector<Statement>& statements) const {
  Accesses touched;
  Extents inner;
  for (const Statement& s : statements) Gather(s, nullptr, inner, touched);
  return touched;
}

bool ElementOwners::Meet(const Accesses& before, const Accesses& after) {
  for (const Access& b : after) {
    for (auto a = before.lower_bound({b.memory, false, {}});
         a != before.end() && a->memory == b.memory; ++a) {
      if (b.memory == kTape) {
        if (a->writes && !b.writes) return true;  // what is pushed lies where nothing lay
        continue;
      }
      const bool same_thread = a->owner == b.owner && a->owner.kind != Owner::kAll;
      if ((a->writes || b.writes) && !same_thread) return true;
    }
  }
  return false;
}

}  // namespace simgrad::sim::cuda
