// Operations that decide control flow: events and loops. The reference executor runs them with the
// regions; loop.h defines loops.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/op/expansion.h"
#include "sim/op/types.h"
#include "sim/program/rename.h"

namespace simgrad::sim::op {
namespace {

Types EventTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  if (TypeOf(program, op, 1) != type || type.element == ElementType::kBool) {
    return FieldError("operands[1]",
                      absl::StrCat("event compares two equal real or integer types, has ",
                                   TypeText(type), " and ", TypeText(TypeOf(program, op, 1))));
  }
  const Type result{ElementType::kBool, type.shape};
  if (op.operands.size() == 3 && TypeOf(program, op, 2) != result) {
    return FieldError("operands[2]", absl::StrCat("the guard must be ", TypeText(result), ", is ",
                                                  TypeText(TypeOf(program, op, 2))));
  }
  return std::vector<Type>{result};
}

Types ChoiceTypes(const Program& program, const Op& op) {
  const Type& chosen = TypeOf(program, op, 0);
  if (chosen.element == ElementType::kReal || chosen.element == ElementType::kBool) {
    return FieldError("operands[0]",
                      absl::StrCat("what is chosen is an integer, is ", TypeText(chosen)));
  }
  const Type compared{ElementType::kReal, chosen.shape};
  for (size_t k : {1, 2}) {
    if (TypeOf(program, op, k) == compared) continue;
    return FieldError(absl::StrCat("operands[", k, "]"),
                      absl::StrCat("a choice compares ", TypeText(compared), ", has ",
                                   TypeText(TypeOf(program, op, k))));
  }
  return std::vector<Type>{chosen};
}

// A loop of at most one turn for each region: it carries the results, and its body is the region. Results
// from `kept_from` on are 0 unless the last region is taken, the only one that yields them.
void ExpandCond(ExpansionWriter& writer) {
  const Op& op = writer.op();
  const Type of_choice = writer.TypeOf(op.operands[0]);
  const Type truth{ElementType::kBool, {}};
  const bool is_bool = of_choice.element == ElementType::kBool;
  const int64_t last = static_cast<int64_t>(op.regions.size()) - 1;
  ValueId choice = op.operands[0];
  if (!is_bool) {
    choice = writer.Do(OpCode::kMax, {choice, writer.Number(0, of_choice)}, of_choice);
    choice = writer.Do(OpCode::kMin, {choice, writer.Number(double(last), of_choice)}, of_choice);
  }
  std::vector<ValueId> zeros;
  for (ValueId id : op.results) zeros.push_back(writer.Number(0, writer.TypeOf(id)));
  const auto first_kept = zeros.begin() + op.attributes.kept_from;
  const bool keeps = op.attributes.kept_from > 0;
  std::vector<ValueId> given(zeros.begin(), keeps ? first_kept : zeros.end());
  for (int64_t k = 0; k <= last; ++k) {
    if (keeps && k == last) given.insert(given.end(), first_kept, zeros.end());
    Op branch = writer.Begin(OpCode::kWhile, given);
    branch.attributes.predicate = true;
    branch.attributes.max_iter = 1;
    branch.attributes.cap_order = CapOrder::kCapFirst;
    branch.attributes.carried = static_cast<int32_t>(given.size());
    branch.attributes.kept_from = k == last ? op.attributes.kept_from : 0;
    // The loop stops where another region is taken.
    ValueId stop = choice;
    if (!is_bool) {
      stop = writer.Do(OpCode::kNe, {choice, writer.Number(double(k), of_choice)}, truth);
    } else if (k == 1) {
      stop = writer.Do(OpCode::kNot, {choice}, truth);
    }
    Region& test = branch.regions.emplace_back();
    Region body = op.regions[static_cast<size_t>(k)];
    Renaming names;
    for (size_t a = 0; a < body.args.size(); ++a) names[body.args[a]] = op.operands[a + 1];
    Rename(names, body, writer.budget());
    body.args.clear();
    for (ValueId id : given) {
      test.args.push_back(writer.NewValue(writer.TypeOf(id)));
      body.args.push_back(writer.NewValue(writer.TypeOf(id)));
    }
    test.yields = {stop};
    branch.regions.push_back(std::move(body));
    for (size_t r = 0; r < given.size(); ++r) {
      given[r] = k == last ? op.results[r] : writer.NewValue(writer.TypeOf(given[r]));
    }
    branch.results = given;
    branch.results.push_back(writer.NewValue({ElementType::kI32, {}}));
    writer.Push(std::move(branch));
  }
}

// The body's operations in the place of the call. Its results are those of the body; with a vjp of its
// own, `own_vjp` keeps the region at hand for differentiation.
void ExpandCall(ExpansionWriter& writer) {
  const Op& op = writer.op();
  Region body = op.regions[0];
  Renaming names;
  for (size_t a = 0; a < body.args.size(); ++a) names[body.args[a]] = op.operands[a];
  Rename(names, body, writer.budget());
  for (Op& inner : body.ops) writer.Push(std::move(inner));
  if (op.regions.size() > 1) {
    Op own = writer.Begin(OpCode::kOwnVjp, op.operands);
    own.operands.insert(own.operands.end(), body.yields.begin(), body.yields.end());
    own.results = op.results;
    own.regions = {op.regions[1]};
    writer.Push(std::move(own));
    return;
  }
  for (size_t r = 0; r < op.results.size(); ++r) {
    Op same = writer.Begin(OpCode::kReshape, {body.yields[r]});
    same.attributes.shape = writer.TypeOf(op.results[r]).shape;
    same.results = {op.results[r]};
    writer.Push(std::move(same));
  }
}

Types AcceptTypes(const Program& program, const Op& op) {
  const Type& compared = TypeOf(program, op, 0);
  if (TypeOf(program, op, 1) != compared || compared.element == ElementType::kBool) {
    return FieldError("operands[1]",
                      absl::StrCat("accept compares two equal real or integer types, has ",
                                   TypeText(compared), " and ", TypeText(TypeOf(program, op, 1))));
  }
  const Type& trial = TypeOf(program, op, 2);
  if (TypeOf(program, op, 3) != trial) {
    return FieldError("operands[3]",
                      absl::StrCat("the trial is ", TypeText(trial), ", the current value ",
                                   TypeText(TypeOf(program, op, 3))));
  }
  if (!compared.shape.empty() && compared.shape != trial.shape) {
    return FieldError("operands[2]", "one test for all elements, or one for each");
  }
  return std::vector<Type>{trial};
}

// select(event, trial, current). The event's role is `termination`: it decides where a solver goes on from.
void ExpandAccept(ExpansionWriter& writer) {
  const Op& op = writer.op();
  const Type compared = writer.TypeOf(writer.X(0));
  const Type trial = writer.TypeOf(writer.X(2));
  Op event = writer.Begin(OpCode::kEvent, {writer.X(0), writer.X(1)});
  event.attributes.site = op.attributes.site;
  event.attributes.comparison = op.attributes.comparison;
  event.attributes.kind = TestKind::kAcceptance;
  event.role = Role::kTermination;
  event.site = op.attributes.site;
  ValueId accepted = writer.NewValue({ElementType::kBool, compared.shape});
  event.results = {accepted};
  writer.Push(std::move(event));
  if (compared.shape != trial.shape) {
    accepted = writer.Do(OpCode::kBroadcast, {accepted}, {ElementType::kBool, trial.shape});
    writer.Last().attributes.shape = trial.shape;
  }
  writer.Give(OpCode::kSelect, {accepted, writer.X(2), writer.X(3)});
}

}  // namespace

const OpInfo kEvent = Complete({
    .name = "event",
    .doc = "The bool (a `comparison` b) and guard, of reals or integers: the named site "
           "`decision_site`, one decision per element. Where the guard is false nothing is "
           "decided.",
    .op_class = OpClass::kControl,
    .operands = "a, b, guard?",
    .attributes = {Attribute::kSite, Attribute::kComparison, Attribute::kTestKind},
    .result = Result::kBool,
    .types = EventTypes,
});

const OpInfo kChoice = Complete({
    .name = "choice",
    .doc = "The integers `chosen`, because the real a is above the real b: the named site "
           "`decision_site`, one decision per element, whose margin is a - b.",
    .op_class = OpClass::kControl,
    .operands = "chosen, a, b",
    .attributes = {Attribute::kSite, Attribute::kTestKind},
    .types = ChoiceTypes,
});

const OpInfo kWhile = Complete({
    .name = "while",
    .doc = "A loop that stops when its test holds, or at its cap; below.",
    .op_class = OpClass::kControl,
    .operands = "carried, mapped, ...",
    .attributes = {Attribute::kSite, Attribute::kComparison, Attribute::kMaxIter,
                   Attribute::kCapFirst, Attribute::kHasEntry, Attribute::kPredicate,
                   Attribute::kElements, Attribute::kCarried},
});

const OpInfo kFor = Complete({
    .name = "for",
    .doc = "A loop of `max_iter` iterations over `carried` values, and over the leading axis of "
           "its last `scanned` operands, with `reverse` from the last element down. Region: args "
           "index (i32), carried, elements of the scanned; yields carried, then what is stacked. "
           "Results: carried, stacked along a leading axis.",
    .op_class = OpClass::kControl,
    .operands = "carried, ...",
    .attributes = {Attribute::kCount, Attribute::kForCarried, Attribute::kScanned,
                   Attribute::kReverse},
});

const OpInfo kCond = Complete({
    .name = "cond",
    .doc = "One of its regions: of a bool the second where it holds, else the first; of an i32 "
           "the region of that number, counted from 0, the first or last where there is none. "
           "Regions: args as the operands behind `choice`; yield the results.",
    .op_class = OpClass::kControl,
    .operands = "choice, ...",
    .expand = ExpandCond,
});

const OpInfo kCall = Complete({
    .name = "call",
    .doc = "The body in its first region, in the place of the call. With a second region that "
           "region is its vjp: args operands, results, cotangents of the real results; yields "
           "cotangents of the real operands. Neither then sees values around it.",
    .op_class = OpClass::kControl,
    .operands = "args, ...",
    .expand = ExpandCall,
});

const OpInfo kOwnVjp = Complete({
    .name = "own_vjp",
    .doc = "What a `call` with a vjp of its own is until it is differentiated: its results are "
           "those of the body.",
    .op_class = OpClass::kControl,
    .operands = "args, ...",
    .in_worlds = false,
    .passage =
        [](const Program&, const Op& op, size_t operand) {
          const bool is_argument = operand + op.results.size() < op.operands.size();
          return is_argument ? Passage::kSame : Passage::kNone;
        },
});

const OpInfo kHalt = Complete({
    .name = "halt",
    .doc =
        "Ends the run of the instance where the bool holds, under the name `decision_site`: this "
        "step completes and later ones do not run. With `error` the step does not count either, "
        "and the instance has no gradient.",
    .op_class = OpClass::kControl,
    .operands = "condition",
    .attributes = {Attribute::kSite, Attribute::kError},
    .types = [](const Program&, const Op&) -> Types { return std::vector<Type>{}; },
});

const OpInfo kAccept = Complete({
    .name = "accept",
    .doc = "`trial` where a `comparison` b, else `current`: the named site `decision_site`, of "
           "kind acceptance, one decision per element of a and b.",
    .op_class = OpClass::kControl,
    .operands = "a, b, trial, current",
    .attributes = {Attribute::kSite, Attribute::kComparison},
    .types = AcceptTypes,
    .expand = ExpandAccept,
});

}  // namespace simgrad::sim::op
