#include "sim/backend/reference/watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/op/op_info.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

bool IsSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The operands that element `element` of the result was made of. Of a reduction: the smallest and
// the largest of the elements it read.
std::vector<double> OperandsAt(const Program& program, const Op& op, Arrays operands,
                               const Array& result, size_t element) {
  std::vector<double> found;
  const OpInfo& info = InfoOf(op.code);
  if (info.made_of != nullptr) return info.made_of(program, op, operands, result, element);
  if (info.op_class == OpClass::kReduction) {
    double low = 0.0;
    double high = 0.0;
    bool first = true;
    for (size_t i : ReducedElements(program, op, element)) {
      const double x = operands[0]->AsDouble(i);
      low = first || x < low || x != x ? x : low;
      high = first || x > high || x != x ? x : high;
      first = false;
    }
    if (!first) found = {low, high};
    return found;
  }
  if (IsStochastic(op)) operands = operands.first(1);  // what it draws by is no operand to people
  for (const Array* operand : operands) {
    if (element < SizeOf(*operand)) found.push_back(operand->AsDouble(element));
  }
  return found;
}

NonFiniteClass Classify(OpCode code, const std::vector<double>& operands, double result) {
  const auto finite = [](double x) { return precision::IsFinite(x); };
  if (!std::all_of(operands.begin(), operands.end(), finite)) return NonFiniteClass::kInput;
  const OpInfo& info = InfoOf(code);
  if (info.birth == Birth::kConversion) return NonFiniteClass::kConversion;
  const bool divides = info.divides_by_zero != nullptr && info.divides_by_zero(operands);
  if (std::isinf(result) && divides) return NonFiniteClass::kDivideByZero;
  const bool sums = info.birth == Birth::kAccumulation;
  return std::isnan(result) && !sums ? NonFiniteClass::kInvalid : NonFiniteClass::kOverflow;
}

}  // namespace

NonFiniteClass ClassOf(const Program& program, const Op& op, Arrays operands, const Array& result,
                       size_t element) {
  return Classify(op.code, OperandsAt(program, op, operands, result, element),
                  result.real[element]);
}

bool IsExecuted(const Array* where, size_t i, size_t n) {
  if (where == nullptr) return true;
  const std::vector<int64_t>& mask = where->integer;
  if (mask.size() == n) return mask[i] != 0;
  return std::any_of(mask.begin(), mask.end(), [](int64_t b) { return b != 0; });
}

void NonFiniteWatch::Begin(InstanceHealth* health, Phase phase, int64_t step) {
  health_ = health;
  phase_ = phase;
  step_ = step;
}

void NonFiniteWatch::SeeResult(const Op& op, Arrays operands, const Frame& frame,
                               const Array& result, const Array* where) {
  if (!watching()) return;
  if (!op.results.empty() && op.results[0] != ValueId::kNone &&
      !program_.program[op.results[0]].watched) {
    return;
  }
  const std::vector<bool>& infinite = program_.infinite;
  const bool meant = !infinite.empty() && !op.results.empty() && infinite[Index(op.results[0])];
  for (size_t i = 0; i < result.real.size(); ++i) {
    if (precision::IsFinite(result.real[i]) || !IsExecuted(where, i, result.real.size())) continue;
    if (meant && !std::isnan(result.real[i])) continue;
    const Program& p = program_.program;
    BirthCertificate birth;
    birth.operation = InfoOf(op.code).name;
    birth.label = op.label;
    birth.site = op.site.empty() ? std::string(frame.loop_site) : op.site;
    birth.role = op.role;
    if (!op.results.empty()) {
      birth.value_name = p[op.results[0]].name;
      birth.format = *p[op.results[0]].format;
    }
    const int64_t size = static_cast<int64_t>(result.real.size());
    birth.element = frame.element * size + static_cast<int64_t>(i);
    birth.iteration = frame.iteration;
    birth.operands = OperandsAt(p, op, operands, result, i);
    birth.result = result.real[i];
    birth.non_finite_class = Classify(op.code, birth.operands, birth.result);
    Report(std::move(birth));
    return;
  }
}

void NonFiniteWatch::SeeInput(const Input& input, Format format, int64_t element, double sent,
                              double read) {
  if (!watching() || precision::IsFinite(read)) return;
  BirthCertificate birth;
  birth.operation = std::string(InputKindName(input.kind)) + "." + input.name;
  birth.value_name = input.name;
  birth.role = input.kind == InputKind::kState ? Role::kState : Role::kDynamics;
  birth.format = format;
  birth.element = element;
  birth.operands = {sent};
  birth.result = read;
  birth.non_finite_class =
      precision::IsFinite(sent) ? NonFiniteClass::kConversion : NonFiniteClass::kInput;
  const Phase phase = std::exchange(phase_, Phase::kInput);
  Report(std::move(birth));
  phase_ = phase;
}

void NonFiniteWatch::NoteCotangent(const std::string& name, Format format, int64_t element,
                                   double sent, double read) {
  if (precision::IsFinite(read)) return;
  if (!noted_.empty() && noted_.front().step != step_) noted_.clear();
  if (!precision::IsFinite(sent)) return;
  for (const BirthCertificate& earlier : noted_) {
    if (IsSame(earlier.result, read)) return;
  }
  BirthCertificate& birth = noted_.emplace_back();
  birth.step = step_;
  birth.operation = "cotangent." + name;
  birth.value_name = name;
  birth.role = Role::kAdjoint;
  birth.format = format;
  birth.element = element;
  birth.operands = {sent};
  birth.result = read;
  birth.non_finite_class = NonFiniteClass::kConversion;
}

void NonFiniteWatch::SeeSum(std::string_view operation, std::string_view value_name, Role role,
                            Format format, int64_t element, std::vector<double> operands,
                            double result) {
  if (!watching() || precision::IsFinite(result)) return;
  BirthCertificate birth;
  birth.operation = operation;
  birth.value_name = value_name;
  birth.role = role;
  birth.format = format;
  birth.element = element;
  // One operand: it was stored in a narrower format.
  birth.non_finite_class = Classify(operands.size() == 1 ? kCast : kAdd, operands, result);
  birth.operands = std::move(operands);
  birth.result = result;
  Report(std::move(birth));
}

void NonFiniteWatch::SeeAccumulate(const Op& op, const Frame& frame, std::string_view input,
                                   Format format, int64_t element, double before, double added,
                                   double sum) {
  if (!watching() || precision::IsFinite(sum)) return;
  SeeSum(InfoOf(op.code).name, input, op.role, format, element, {before, added}, sum);
  if (certificate_->operation != InfoOf(op.code).name) return;  // born elsewhere
  certificate_->label = op.label;
  certificate_->site = op.site.empty() ? std::string(frame.loop_site) : op.site;
  certificate_->iteration = frame.iteration;
}

const BirthCertificate* NonFiniteWatch::NotedAmong(const std::vector<double>& operands) const {
  bool came_in = false;
  for (double operand : operands) {
    if (precision::IsFinite(operand)) continue;
    came_in = true;
    for (const BirthCertificate& noted : noted_) {
      if (IsSame(noted.result, operand)) return &noted;
    }
  }
  return came_in || noted_.empty() ? nullptr : &noted_.front();
}

void NonFiniteWatch::Report(BirthCertificate birth) {
  health_->ok = false;
  health_->phase = phase_;
  health_->step = step_;
  // In an instance whose forward run was finite, only a cotangent comes in from outside.
  const bool came_in = birth.non_finite_class == NonFiniteClass::kInput;
  if (came_in && phase_ == Phase::kAdjoint) {
    if (const BirthCertificate* noted = NotedAmong(birth.operands)) birth = *noted;
  }
  birth.phase = phase_;
  birth.step = step_;
  birth.instance_id = instance_id_;
  certificate_ = std::move(birth);
}

}  // namespace simgrad::sim::reference
