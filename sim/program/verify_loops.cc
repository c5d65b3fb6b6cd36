// Loops: caps, what enters and leaves their regions, and that its types fit.
#include <algorithm>
#include <utility>

#include "sim/program/field_error.h"
#include "sim/program/verifier.h"

namespace simgrad::sim::internal {

// Refuses a bool that depends on an unnamed comparison: inside the loop that would be unknown.
absl::Status Verifier::MayEnterLoop(ValueId id, const std::string& field) const {
  const bool real = program_[id].type.element == ElementType::kReal;
  if (real || !known_[Index(id)].from_real_compare) return absl::OkStatus();
  return FieldError(field,
                    "what enters a loop, a branch or a call, or halts, hangs on a comparison of "
                    "reals; name it: use an event");
}

absl::Status Verifier::CheckCap(int64_t cap, int64_t lowest, const std::string& field,
                                int64_t& iterations) {
  if (cap < lowest || cap > limits_.max_loop_iterations) {
    const std::string message =
        absl::StrCat(cap, " is not in ", lowest, " to ", limits_.max_loop_iterations);
    return cap < lowest ? FieldError(field + ".max_iter", message)
                        : LimitError(field + ".max_iter", message);
  }
  iterations *= std::max<int64_t>(cap, 1);
  if (iterations > limits_.max_nested_iterations) {
    return LimitError(
        field + ".max_iter",
        absl::StrCat("nested loops may run ", limits_.max_nested_iterations, " iterations in all"));
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckFor(const Op& op, const std::string& field, int64_t depth,
                                int64_t iterations) {
  if (op.regions.size() != 1) return FieldError(field + ".regions", "for has one region");
  if (absl::Status s = CheckCap(op.attributes.max_iter, 0, field, iterations); !s.ok()) return s;
  const int64_t n = op.attributes.max_iter;
  const int64_t scanned = op.attributes.scanned;
  const size_t carried = static_cast<size_t>(std::max<int32_t>(op.attributes.carried, 0));
  if (op.attributes.carried < 0 || scanned < 0 || op.results.size() < carried ||
      op.operands.size() != carried + static_cast<size_t>(scanned)) {
    return FieldError(field + ".carried", "for carries exactly its operands and results");
  }
  std::vector<Type> types = {{ElementType::kI32, {}}};
  for (size_t i = 0; i < op.operands.size(); ++i) {
    Type type = program_[op.operands[i]].type;
    if (i >= carried) {
      if (type.shape.empty() || type.shape[0] != n) {
        return FieldError(At(field + ".operands", i), absl::StrCat("needs a leading axis of ", n));
      }
      type.shape.erase(type.shape.begin());
    }
    types.push_back(std::move(type));
  }
  const Region& body = op.regions[0];
  const std::string here = field + ".regions[0]";
  if (absl::Status s = OpenRegion(body, here, types, false); !s.ok()) return s;
  if (absl::Status s = Ops(body, here, depth + 1, iterations); !s.ok()) return s;
  if (absl::Status s = UseYields(body, here); !s.ok()) return s;
  if (body.yields.size() != op.results.size()) {
    return FieldError(here + ".yields", "one per carried value, and one per stacked result");
  }
  for (size_t i = 0; i < body.yields.size(); ++i) {
    if (absl::Status s = MayEnterLoop(body.yields[i], At(here + ".yields", i)); !s.ok()) return s;
    Type result = program_[body.yields[i]].type;
    if (i < carried && result != types[i + 1]) {
      return FieldError(At(here + ".yields", i), "differs from the carried type");
    }
    if (i >= carried) result.shape.insert(result.shape.begin(), n);
    if (program_[op.results[i]].type != result) {
      return FieldError(At(here + ".yields", i), i < carried ? "differs from the carried type"
                                                             : "differs from an element of the "
                                                               "stacked result");
    }
  }
  Close();
  return LoopResults(op, field);
}

absl::Status Verifier::LoopResults(const Op& op, const std::string& field) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (absl::Status s = Define(op.results[i], At(field + ".results", i)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Regions by number; what they hang on has a name, as in a loop.
absl::Status Verifier::CheckCond(const Op& op, const std::string& field, int64_t depth,
                                 int64_t iterations) {
  if (op.operands.empty()) return FieldError(field + ".operands", "cond needs its choice");
  const Type& choice = program_[op.operands[0]].type;
  const bool is_bool = choice == Type{ElementType::kBool, {}};
  if (!is_bool && choice != Type{ElementType::kI32, {}}) {
    return FieldError(field + ".operands[0]", "a choice is a bool or i32 scalar");
  }
  if (op.regions.size() < 2 || (is_bool && op.regions.size() != 2)) {
    return FieldError(field + ".regions", is_bool ? "a bool chooses between two regions"
                                                  : "cond has two regions at least");
  }
  if (op.results.empty()) return FieldError(field + ".results", "cond gives at least one value");
  std::vector<Type> types;
  for (size_t i = 1; i < op.operands.size(); ++i) types.push_back(program_[op.operands[i]].type);
  for (size_t k = 0; k < op.regions.size(); ++k) {
    const Region& region = op.regions[k];
    const std::string here = At(field + ".regions", k);
    if (absl::Status s = OpenRegion(region, here, types, false); !s.ok()) return s;
    if (absl::Status s = Ops(region, here, depth + 1, iterations); !s.ok()) return s;
    if (absl::Status s = UseYields(region, here); !s.ok()) return s;
    if (region.yields.size() != op.results.size()) {
      return FieldError(here + ".yields", "one per result");
    }
    for (size_t i = 0; i < region.yields.size(); ++i) {
      if (absl::Status s = MayEnterLoop(region.yields[i], At(here + ".yields", i)); !s.ok()) {
        return s;
      }
      if (program_[region.yields[i]].type != program_[op.results[i]].type) {
        return FieldError(At(here + ".yields", i), "differs from the type of the result");
      }
    }
    Close();
  }
  return LoopResults(op, field);
}

// The yields of the body may depend on any value that the place of the call sees.
absl::Status Verifier::CheckCall(const Op& op, const std::string& field, int64_t depth,
                                 int64_t iterations) {
  const size_t regions = op.regions.size();
  if (regions != 1 && regions != 2) {
    return FieldError(field + ".regions", "call has a body, and may have a vjp");
  }
  if (op.results.empty()) return FieldError(field + ".results", "call gives at least one value");
  std::vector<Type> types;
  for (ValueId id : op.operands) types.push_back(program_[id].type);
  const Region& body = op.regions[0];
  const std::string here = field + ".regions[0]";
  if (absl::Status s = OpenRegion(body, here, types, regions == 2); !s.ok()) return s;
  if (absl::Status s = Ops(body, here, depth + 1, iterations); !s.ok()) return s;
  if (absl::Status s = UseYields(body, here); !s.ok()) return s;
  if (body.yields.size() != op.results.size()) {
    return FieldError(here + ".yields", "one per result");
  }
  for (size_t i = 0; i < body.yields.size(); ++i) {
    if (absl::Status s = MayEnterLoop(body.yields[i], At(here + ".yields", i)); !s.ok()) return s;
    if (program_[body.yields[i]].type != program_[op.results[i]].type) {
      return FieldError(At(here + ".yields", i), "differs from the type of the result");
    }
  }
  Close();
  if (regions == 2) {
    if (absl::Status s = CheckVjp(op, field, depth, iterations); !s.ok()) return s;
  }
  return LoopResults(op, field);
}

absl::Status Verifier::CheckVjp(const Op& op, const std::string& field, int64_t depth,
                                int64_t iterations) {
  std::vector<Type> types;
  for (const std::vector<ValueId>* list : {&op.operands, &op.results}) {
    for (ValueId id : *list) types.push_back(program_[id].type);
  }
  std::vector<Type> cotangents;
  for (ValueId id : op.results) {
    if (program_.IsReal(id)) types.push_back(program_[id].type);
  }
  for (ValueId id : op.operands) {
    if (program_.IsReal(id)) cotangents.push_back(program_[id].type);
  }
  const Region& vjp = op.regions[1];
  const std::string here = field + ".regions[1]";
  if (absl::Status s = OpenRegion(vjp, here, types, true); !s.ok()) return s;
  ++in_vjp_;
  if (absl::Status s = Ops(vjp, here, depth + 1, iterations); !s.ok()) return s;
  --in_vjp_;
  if (absl::Status s = UseYields(vjp, here); !s.ok()) return s;
  if (vjp.yields.size() != cotangents.size()) {
    return FieldError(here + ".yields",
                      absl::StrCat("one cotangent per real operand: needs ", cotangents.size(),
                                   ", has ", vjp.yields.size()));
  }
  for (size_t i = 0; i < vjp.yields.size(); ++i) {
    if (program_[vjp.yields[i]].type != cotangents[i]) {
      return FieldError(At(here + ".yields", i), "differs from the type of its operand");
    }
  }
  Close();
  return absl::OkStatus();
}

absl::Status Verifier::CheckWhile(const Op& op, const std::string& field, int64_t depth,
                                  int64_t iterations) {
  if (absl::Status s = CheckSite(op, field); !s.ok()) return s;
  if (op.regions.size() != 2)
    return FieldError(field + ".regions", "while has two regions, test and body");
  if (op.attributes.predicate && op.attributes.has_entry) {
    return FieldError(field + ".has_entry", "a predicate says by itself whether a loop is entered");
  }
  if (absl::Status s = CheckCap(op.attributes.max_iter, 1, field, iterations); !s.ok()) return s;
  const WhileCounts counts = CountsOf(op);
  const int64_t n = op.attributes.elements;
  if (counts.carried < 0 || counts.mapped < 0 || counts.exports < 0 || n < 0 ||
      (n == 0 && counts.mapped != 0)) {
    return FieldError(field + ".carried",
                      "the numbers of operands, results and carried values do not fit");
  }
  std::vector<Type> inner;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    Type type = program_[op.operands[i]].type;
    if (n > 0) {
      if (type.shape.empty() || type.shape[0] != n) {
        return FieldError(At(field + ".operands", i), absl::StrCat("needs a leading axis of ", n));
      }
      type.shape.erase(type.shape.begin());
    }
    inner.push_back(std::move(type));
  }
  std::vector<Type> exports;
  if (absl::Status s = CheckTest(op, field, inner, counts, depth, iterations, exports); !s.ok())
    return s;
  return CheckBody(op, field, inner, counts, exports, depth, iterations);
}

absl::Status Verifier::CheckTest(const Op& op, const std::string& field,
                                 const std::vector<Type>& inner, const WhileCounts& counts,
                                 int64_t depth, int64_t iterations, std::vector<Type>& exports) {
  const Region& test = op.regions[0];
  const std::string here = field + ".regions[0]";
  if (absl::Status s = OpenRegion(test, here, inner, op.attributes.elements > 0); !s.ok()) return s;
  if (absl::Status s = Ops(test, here, depth + 1, iterations); !s.ok()) return s;
  if (absl::Status s = UseYields(test, here); !s.ok()) return s;
  const size_t tested = FirstExport(op);
  if (test.yields.size() != tested + static_cast<size_t>(counts.exports)) {
    return FieldError(here + ".yields", absl::StrCat("needs ", tested, " tested values and ",
                                                     counts.exports, " exports"));
  }
  for (size_t i = 0; i < test.yields.size(); ++i) {
    const Type& type = program_[test.yields[i]].type;
    const ElementType element = op.attributes.predicate ? ElementType::kBool : ElementType::kReal;
    if (i < tested && type != Type{element, {}}) {
      return FieldError(At(here + ".yields", i), op.attributes.predicate
                                                     ? "a predicate yields stop, a bool scalar"
                                                     : "what is tested is a real scalar");
    }
    if (i >= tested) {
      exports.push_back(type);
      export_taint_.push_back(known_[Index(test.yields[i])].from_real_compare);
    }
  }
  Close();
  return absl::OkStatus();
}

absl::Status Verifier::CheckBody(const Op& op, const std::string& field,
                                 const std::vector<Type>& inner, const WhileCounts& counts,
                                 const std::vector<Type>& exports, int64_t depth,
                                 int64_t iterations) {
  const size_t c = static_cast<size_t>(counts.carried);
  const std::vector<bool> taint(export_taint_.end() - static_cast<int64_t>(exports.size()),
                                export_taint_.end());
  export_taint_.resize(export_taint_.size() - exports.size());
  std::vector<Type> args(inner.begin(), inner.begin() + static_cast<int64_t>(c));
  args.insert(args.end(), exports.begin(), exports.end());
  args.insert(args.end(), inner.begin() + static_cast<int64_t>(c), inner.end());
  const Region& body = op.regions[1];
  const std::string here = field + ".regions[1]";
  if (absl::Status s = OpenRegion(body, here, args, op.attributes.elements > 0); !s.ok()) return s;
  for (size_t i = 0; i < exports.size(); ++i) {
    known_[Index(body.args[c + i])].from_real_compare = taint[i];
  }
  if (absl::Status s = Ops(body, here, depth + 1, iterations); !s.ok()) return s;
  if (absl::Status s = UseYields(body, here); !s.ok()) return s;
  if (body.yields.size() != c) return FieldError(here + ".yields", "one per carried value");
  std::vector<Type> results(inner.begin(), inner.begin() + static_cast<int64_t>(c));
  for (size_t i = 0; i < c; ++i) {
    if (absl::Status s = MayEnterLoop(body.yields[i], At(here + ".yields", i)); !s.ok()) return s;
    if (program_[body.yields[i]].type != inner[i]) {
      return FieldError(At(here + ".yields", i), "differs from the carried type");
    }
  }
  results.insert(results.end(), exports.begin(), exports.end());
  results.push_back({ElementType::kI32, {}});
  for (size_t i = 0; i < results.size(); ++i) {
    Type type = results[i];
    if (op.attributes.elements > 0) type.shape.insert(type.shape.begin(), op.attributes.elements);
    if (program_[op.results[i]].type != type) {
      return FieldError(At(field + ".results", i), "has another type than the loop gives");
    }
  }
  Close();
  if (absl::Status s = LoopResults(op, field); !s.ok()) return s;
  for (size_t i = 0; i < exports.size(); ++i) {
    known_[Index(op.results[c + i])].from_real_compare = taint[i];
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim::internal
