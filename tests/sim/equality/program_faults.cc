#include "tests/sim/equality/program_faults.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace simgrad::sim::equality {
namespace {

using enum OpCode;

// Every region of the program, outermost first.
void ForEachRegion(Region& region, const std::function<void(Region&)>& visit) {
  visit(region);
  for (Op& op : region.ops) {
    for (Region& inside : op.regions) ForEachRegion(inside, visit);
  }
}

void ForEachRegion(NumericalProgram& numerical, const std::function<void(Region&)>& visit) {
  for (Region* region : RegionsOf(numerical)) ForEachRegion(*region, visit);
}

// Whether `change` did something to any operation.
bool ChangeOps(NumericalProgram& numerical, const std::function<bool(Op&)>& change) {
  bool any = false;
  ForEachRegion(numerical, [&](Region& region) {
    for (Op& op : region.ops) any = change(op) || any;
  });
  return any;
}

Format Wider(Format format) { return format == Format::kF32 ? Format::kF64 : Format::kF32; }

void Become(Op& op, OpCode code, std::vector<ValueId> operands) {
  op.code = code;
  op.operands = std::move(operands);
}

// The product that is added in `sum`, if it was made in the same region and format.
const Op* ProductOf(const Program& program, const Region& region, const Op& sum, size_t operand) {
  for (const Op& op : region.ops) {
    const bool product = op.code == kMul && op.results[0] == sum.operands[operand];
    if (product && program[op.results[0]].format == program[sum.results[0]].format) return &op;
  }
  return nullptr;
}

}  // namespace

bool WrongOrderOfSums(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code != kSum) return false;
    const bool sequential = op.attributes.order == Order::kSequential;
    op.attributes.order = sequential ? Order::kPairwise : Order::kSequential;
    return true;
  });
}

bool MissingRoundingAfterMul(NumericalProgram& numerical) {
  return ChangeOps(numerical, [&](Op& op) {
    if (op.code != kMul) return false;
    Value& result = numerical.program[op.results[0]];
    if (!result.format || *result.format == Format::kF64) return false;
    result.format = Wider(*result.format);
    return true;
  });
}

bool ContractionToFma(NumericalProgram& numerical) {
  bool any = false;
  ForEachRegion(numerical, [&](Region& region) {
    for (Op& op : region.ops) {
      if (op.code != kAdd || !numerical.program[op.results[0]].format) continue;
      for (const size_t operand : {size_t{0}, size_t{1}}) {
        const Op* product = ProductOf(numerical.program, region, op, operand);
        if (product == nullptr) continue;
        Become(op, kFma, {product->operands[0], product->operands[1], op.operands[1 - operand]});
        any = true;
        break;
      }
    }
  });
  return any;
}

bool StaleCarriedValue(NumericalProgram& numerical) {
  Program& program = numerical.program;
  return ChangeOps(numerical, [&](Op& op) {
    if (op.code != kWhile || op.attributes.carried == 0) return false;
    const auto twin = [&](ValueId of) {
      const Value like = program[of];
      const ValueId made = program.AddValue(like.type, like.name);
      program[made].format = like.format;
      return made;
    };
    // A new first slot that is always one iteration behind takes the place of the old one outside.
    Region& test = op.regions[0];
    Region& body = op.regions[1];
    op.operands.insert(op.operands.begin(), op.operands[0]);
    test.args.insert(test.args.begin(), twin(test.args[0]));
    body.yields.insert(body.yields.begin(), body.args[0]);
    body.args.insert(body.args.begin(), twin(body.args[0]));
    op.results.insert(op.results.begin() + 1, twin(op.results[0]));
    ++op.attributes.carried;
    return true;
  });
}

bool OneIterationTooMany(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code != kWhile && op.code != kWhileVjp) return false;
    ++op.attributes.max_iter;
    return true;
  });
}

bool TestBeforeCapWhereCapIsFirst(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    const bool loop = op.code == kWhile || op.code == kWhileVjp;
    const bool cap_first = op.attributes.cap_order == CapOrder::kCapFirst;
    if (!loop || op.attributes.site.empty() || !cap_first) return false;
    op.attributes.cap_order = CapOrder::kTestFirst;
    return true;
  });
}

bool EqualityCountsAsLess(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if ((op.code != kWhile && op.code != kEvent) || op.attributes.predicate) return false;
    Comparison& comparison = op.attributes.comparison;
    if (comparison == Comparison::kLt) {
      comparison = Comparison::kLe;
    } else if (comparison == Comparison::kGt) {
      comparison = Comparison::kGe;
    } else {
      return false;
    }
    return true;
  });
}

// select(a > b, a, b) is b where a is NaN.
bool MaxDropsNaN(NumericalProgram& numerical) {
  Program& program = numerical.program;
  bool any = false;
  ForEachRegion(numerical, [&](Region& region) {
    std::vector<Op> ops;
    for (Op& op : region.ops) {
      const bool extreme = op.code == kMax || op.code == kMin;
      if (extreme && program[op.results[0]].type.element == ElementType::kReal) {
        Op compare;
        compare.code = op.code == kMax ? kGt : kLt;
        compare.role = op.role;
        compare.operands = op.operands;
        const Shape shape = program[op.results[0]].type.shape;
        compare.results = {program.AddValue({ElementType::kBool, shape})};
        Become(op, kSelect, {compare.results[0], op.operands[0], op.operands[1]});
        ops.push_back(std::move(compare));
        any = true;
      }
      ops.push_back(std::move(op));
    }
    region.ops = std::move(ops);
  });
  return any;
}

bool MergeAddsWhatIsAbsent(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code == kMerge) {
      Become(op, kAdd, {op.operands[0], op.operands[1]});
    } else if (op.code == kMerge2) {
      Become(op, kAdd, {op.operands[0], op.operands[2]});
    } else {
      return false;
    }
    return true;
  });
}

bool TapeIsNotRounded(NumericalProgram& numerical) {
  Program& program = numerical.program;
  return ChangeOps(numerical, [&](Op& op) {
    if (op.code != kTape || !program[op.results[0]].format) return false;
    const std::optional<Format> primal = program[op.attributes.primal].format;
    if (program[op.results[0]].format == primal) return false;
    program[op.results[0]].format = primal;
    return true;
  });
}

bool CastIgnoresSaturation(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code != kCast || op.attributes.overflow != Overflow::kSaturate) return false;
    op.attributes.overflow = Overflow::kIeee;
    return true;
  });
}

bool AccumulateIgnoresItsMask(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code != kAccumulate || op.operands.size() < 2) return false;
    op.operands.resize(1);
    op.attributes.where = ValueId::kNone;
    return true;
  });
}

bool GuardIsIgnored(NumericalProgram& numerical) {
  return ChangeOps(numerical, [](Op& op) {
    if (op.code != kEvent || op.operands.size() < 3) return false;
    op.operands.resize(2);
    return true;
  });
}

}  // namespace simgrad::sim::equality
