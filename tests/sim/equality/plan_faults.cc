#include "tests/sim/equality/plan_faults.h"

#include <algorithm>
#include <utility>

#include "sim/plan/place.h"
#include "sim/plan/statement_walk.h"

namespace simgrad::sim::equality {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Carrier;
using plan::Code;
using plan::Function;
using plan::kNoRegister;
using plan::Plan;
using plan::Statement;

// Edits every statement of the plan; whether one of them was.
bool EditEach(Plan& plan, const std::function<bool(const Function&, Statement&)>& edit) {
  bool edited = false;
  plan::EachFunction(plan, [&](Function& function) {
    plan::EachStatement(function.statements, [&](Statement& s) { edited |= edit(function, s); });
  });
  return edited;
}

// Edits every block, inner ones too; whether one of them was.
bool EditBlocks(std::vector<Statement>& block,
                const std::function<bool(std::vector<Statement>&)>& edit) {
  bool edited = edit(block);
  for (Statement& s : block) edited |= EditBlocks(s.body, edit);
  return edited;
}
bool EditBlocks(Plan& plan, const std::function<bool(std::vector<Statement>&)>& edit) {
  bool edited = false;
  plan::EachFunction(plan,
                     [&](Function& function) { edited |= EditBlocks(function.statements, edit); });
  return edited;
}

bool Drop(std::vector<Statement>& block, const std::function<bool(const Statement&)>& which) {
  return std::erase_if(block, which) > 0;
}

const Buffer& BufferOf(const Function& function, const Statement& s) {
  return function.buffers[static_cast<size_t>(s.buffer)];
}

bool SharesOneOffset(Plan& plan) {
  bool edited = false;
  plan::EachFunction(plan, [&](Function& function) {
    const Buffer* first = nullptr;
    for (Buffer& buffer : function.buffers) {
      if (buffer.kind != BufferKind::kLocal || buffer.offset < 0) continue;
      if (first == nullptr) {
        first = &buffer;
      } else if (buffer.offset != first->offset && buffer.carrier == first->carrier &&
                 buffer.count <= first->count) {
        buffer.offset = first->offset;
        edited = true;
      }
    }
  });
  return edited;
}

// The lanes that meet a test leave at the end of the turn, not at the test.
bool LeavesLate(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    if (s.code != Code::kRepeat) return false;
    const auto leaves = [](const Statement& of) { return of.code == Code::kLeave; };
    const auto first = std::find_if(s.body.begin(), s.body.end(), leaves);
    if (first == s.body.end() || std::find_if(first + 1, s.body.end(), [](const Statement& of) {
                                   return of.code == Code::kStore;
                                 }) == s.body.end()) {
      return false;
    }
    std::rotate(first, first + 1, s.body.end());
    return true;
  });
}

// Two numbers of one frame, of one width, change places where they are read.
bool RecallsTheNeighbour(Plan& plan) {
  return EditBlocks(plan, [](std::vector<Statement>& block) {
    Statement* before = nullptr;
    for (Statement& s : block) {
      if (s.code != Code::kRecall || s.shared || !s.index.terms.empty()) continue;
      if (before != nullptr && before->frame == s.frame && before->number != s.number) {
        std::swap(before->number, s.number);
        std::swap(before->index, s.index);
        return true;
      }
      before = &s;
    }
    return false;
  });
}

bool KeepsNothing(Plan& plan) {
  return EditBlocks(plan, [](std::vector<Statement>& block) {
    return Drop(block, [](const Statement& s) { return s.code == Code::kKeep && !s.shared; });
  });
}

bool LastStepAsAnyOther(Plan& plan) {
  if (plan.reverse_last.statements.empty() || plan.reverse.statements.empty()) return false;
  plan.reverse_last = plan.reverse;
  // It runs once: there is no step before it whose numbers its loops could use.
  for (Statement& s : plan.reverse_last.statements) s.invariant = false;
  plan.reverse_last.kept = 0;
  return true;
}

bool LooksNowhere(Plan& plan) {
  return EditBlocks(plan, [](std::vector<Statement>& block) {
    return Drop(block, [](const Statement& s) { return s.code == Code::kLook; });
  });
}

bool TestsEverywhere(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    const bool decides = s.code == Code::kTest || s.code == Code::kDecide;
    return decides && std::exchange(s.where, kNoRegister) != kNoRegister;
  });
}

bool WidensNoUlp(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    const bool decides = s.code == Code::kTest || s.code == Code::kDecide;
    return decides && std::exchange(s.extra, kNoRegister) != kNoRegister;
  });
}

bool CountsRangesEverywhere(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    if (s.code != Code::kRange || s.operands.size() < 3) return false;
    s.operands.resize(2);
    return true;
  });
}

bool CountsRangesTwice(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    if (s.code != Code::kRange) return false;
    s.number *= 2;
    return true;
  });
}

bool TellsOneTurnMore(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    return s.code == Code::kRun && std::exchange(s.iteration, kNoRegister) != kNoRegister;
  });
}

bool SubtractsTheOtherWay(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    if (s.code != Code::kCall || !s.function.starts_with("sub_f")) return false;
    std::swap(s.operands[0], s.operands[1]);
    return true;
  });
}

// What a turn of a loop made is not there in the next one.
bool ForgetsATurn(Plan& plan) {
  bool edited = false;
  plan::EachFunction(plan, [&](Function& function) {
    plan::EachStatement(function.statements, [&](Statement& s) {
      if (s.code != Code::kRepeat) return;
      const auto forgotten = std::find_if(s.body.begin(), s.body.end(), [&](const Statement& of) {
        if (of.code != Code::kStore) return false;
        const Carrier carrier = BufferOf(function, of).carrier;
        return carrier == Carrier::kF32 || carrier == Carrier::kF64;
      });
      if (forgotten == s.body.end()) return;
      s.body.erase(forgotten);
      edited = true;
    });
  });
  return edited;
}

bool SumsOneFewer(Plan& plan) {
  return EditEach(plan, [](const Function&, Statement& s) {
    if (s.code != Code::kExactSum || s.number < 2) return false;
    --s.number;
    return true;
  });
}

bool ReadsTheOtherInput(Plan& plan) {
  bool edited = false;
  plan::EachFunction(plan, [&](Function& function) {
    Buffer* first = nullptr;
    for (Buffer& buffer : function.buffers) {
      if (buffer.kind != BufferKind::kInput) continue;
      if (first == nullptr) {
        first = &buffer;
      } else if (buffer.number != first->number && buffer.count == first->count &&
                 buffer.carrier == first->carrier) {
        std::swap(buffer.number, first->number);
        edited = true;
        return;
      }
    }
  });
  return edited;
}

bool StoresNoGradient(Plan& plan) {
  bool edited = false;
  for (Function* function : {&plan.reverse, &plan.reverse_last}) {
    edited |= EditBlocks(function->statements, [&](std::vector<Statement>& block) {
      return Drop(block, [&](const Statement& s) {
        return s.code == Code::kStore && BufferOf(*function, s).kind == BufferKind::kGradient;
      });
    });
  }
  return edited;
}

bool ConnectsNothing(Plan& plan) {
  bool edited = false;
  plan::EachFunction(plan, [&](Function& function) {
    edited |= EditBlocks(function.statements, [&](std::vector<Statement>& block) {
      return Drop(block, [&](const Statement& s) {
        return s.code == Code::kStore && BufferOf(function, s).kind == BufferKind::kConnected;
      });
    });
  });
  return edited;
}

// The last store of a state in the step is lost.
bool LeavesAState(Plan& plan) {
  return EditBlocks(plan.step.statements, [&](std::vector<Statement>& block) {
    for (size_t k = block.size(); k-- > 0;) {
      if (block[k].code != Code::kStore) continue;
      if (BufferOf(plan.step, block[k]).kind != BufferKind::kField) continue;
      block.erase(block.begin() + static_cast<std::ptrdiff_t>(k));
      return true;
    }
    return false;
  });
}

// The body of an `if` runs where any lane takes it, for all that reached it.
bool EntersUnasked(Plan& plan) {
  return EditBlocks(plan, [](std::vector<Statement>& block) {
    bool edited = false;
    for (size_t k = 0; k < block.size(); ++k) {
      if (block[k].code != Code::kIf) continue;
      std::vector<Statement> body = std::move(block[k].body);
      const auto at = block.erase(block.begin() + static_cast<std::ptrdiff_t>(k));
      block.insert(at, body.begin(), body.end());
      edited = true;
    }
    return edited;
  });
}

bool MixesSites(Plan& plan) {
  const int sites = static_cast<int>(plan.terminations.size());
  if (sites < 2) return false;
  return EditEach(plan, [&](const Function&, Statement& s) {
    if (s.code != Code::kTest && s.code != Code::kRun) return false;
    s.site = (s.site + 1) % sites;
    return true;
  });
}

bool TakesAnotherNumber(Plan& plan) {
  if (plan.numbers.size() < 2 || plan.numbers[0] == plan.numbers[1]) return false;
  std::swap(plan.numbers[0], plan.numbers[1]);
  return true;
}

// A loop that reads states, and stores none, runs in the first step of a call alone.
bool RunsOnce(Plan& plan) {
  bool edited = false;
  for (Statement& s : plan.step.statements) {
    if (s.code != Code::kEach || s.invariant) continue;
    bool reads = false, stores = false;
    plan::EachStatement(s.body, [&](const Statement& inner) {
      const bool is_field =
          inner.buffer != plan::kNoBuffer && BufferOf(plan.step, inner).kind == BufferKind::kField;
      reads = reads || (inner.code == Code::kLoad && is_field);
      stores = stores || inner.code == Code::kStore;
    });
    s.invariant = reads && stores;
    edited = edited || s.invariant;
  }
  if (edited) plan::Place(plan.step);  // or later steps would read memory that none has written
  return edited;
}

// What invariant loops stored is lost to locals that share its place.
bool KeepsNoPlace(Plan& plan) {
  for (Function* function : {&plan.step, &plan.replay, &plan.reverse}) {
    for (Buffer& buffer : function->buffers) {
      const bool is_other = buffer.kind == BufferKind::kLocal && buffer.offset >= function->kept;
      const bool fits = buffer.count * plan::BytesOf(buffer.carrier) <= function->kept;
      if (!is_other || !fits) continue;
      buffer.offset = 0;
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<PlanFault> PlanFaults() {
  return {
      {"two locals share one place", SharesOneOffset},
      {"lanes leave a loop a turn late", LeavesLate},
      {"a reversed step reads the number beside", RecallsTheNeighbour},
      {"a frame keeps nothing", KeepsNothing},
      {"the last step is reversed like any other", LastStepAsAnyOther},
      {"results are not looked at", LooksNowhere},
      {"tests are recorded where there are none", TestsEverywhere},
      {"a magnitude behind a test is lost", WidensNoUlp},
      {"ranges are counted where there are none", CountsRangesEverywhere},
      {"ranges are counted twice", CountsRangesTwice},
      {"a run is told for another turn of the loops around", TellsOneTurnMore},
      {"operands change places", SubtractsTheOtherWay},
      {"a turn of a loop is forgotten", ForgetsATurn},
      {"an exact sum leaves out its last term", SumsOneFewer},
      {"two inputs change places", ReadsTheOtherInput},
      {"a gradient is not stored", StoresNoGradient},
      {"no gradient is connected", ConnectsNothing},
      {"a state keeps its old number", LeavesAState},
      {"a branch is entered unasked", EntersUnasked},
      {"sites are mixed up", MixesSites},
      {"numbers of the table are mixed up", TakesAnotherNumber},
      {"a loop that varies runs once", RunsOnce},
      {"what invariant loops stored has no place of its own", KeepsNoPlace},
  };
}

}  // namespace simgrad::sim::equality
