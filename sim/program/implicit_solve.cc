#include "sim/program/implicit_solve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/format.h"
#include "sim/program/field_error.h"
#include "sim/program/told.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using Values = std::vector<ValueId>;

const Type kScalar = {ElementType::kReal, {}};
const Type kTruth = {ElementType::kBool, {}};
const Type kCount = {ElementType::kI32, {}};
// r is the next direction where |r| is below this share of what it was.
constexpr double kFall = 0.9;
// The tolerance of a format that can reach it, where the request says none.
constexpr double kUsualTol = 1e-9;
// Rounding alone leaves a residual of about this many units: half of one each of w, of J' w, of their
// difference, and of what J' adds up.
constexpr double kUnitsOfResidual = 4;
// Rounding alone may keep an iteration going by so many units of its largest number: w between the two
// neighbours of what it should be.
constexpr double kUnitsOfChange = 2;
// The rest of a product beside the basis is rounding if it is below so many ulps of the product.
constexpr double kRoundingUlps = 4;

class Solver {
 public:
  Solver(AdjointWriter& writer, const LoopChoice& choice, const std::string& site, const Values& g,
         ValueId ran, const precision::Policy& policy, const Transposed& transposed)
      : w_(writer),
        choice_(choice),
        site_(site),
        g_(g),
        ran_(ran),
        policy_(policy),
        transposed_(transposed),
        context_(writer.context()) {
    for (ValueId id : g) count_ += ElementCount(ShapeOf(id));
  }

  Values Run() {
    if (choice_.solver == LoopChoice::Solver::kLu && count_ > kMostLu) {
      throw PassBudget::Ended{
          LimitError("loops", absl::StrCat("loop '", site_, "' carries ", count_,
                                           " numbers; the limit of solver lu is ", kMostLu))};
    }
    const bool by_lu = choice_.solver == LoopChoice::Solver::kLu ||
                       (choice_.solver == LoopChoice::Solver::kDefault && count_ <= kUsualLu);
    if (count_ == 0) return g_;
    if (choice_.solver == LoopChoice::Solver::kGmres) return ByGmres();
    return by_lu ? Factored() : Iterated();
  }

 private:
  Shape ShapeOf(ValueId id) const { return w_.program()[id].type.shape; }
  Type TypeOf(ValueId id) const { return w_.program()[id].type; }

  ValueId Emit(Op op, const Type& type) {
    w_.SetContext(context_);
    return w_.Emit(std::move(op), type);
  }
  ValueId Do(OpCode code, Values operands, const Type& type) {
    return Emit({.code = code, .operands = std::move(operands)}, type);
  }
  ValueId Number(double number, const Type& type) {
    w_.SetContext(context_);
    return w_.Number(number, type);
  }
  ValueId Array(std::vector<double> numbers, const Type& type) {
    Op op{.code = kLiteral};
    op.attributes.literal = std::move(numbers);
    return Emit(std::move(op), type);
  }
  ValueId Minus(ValueId a, ValueId b) { return Do(kSub, {a, b}, TypeOf(a)); }
  ValueId Wide(ValueId scalar, const Shape& shape) {
    Op op{.code = kBroadcast, .operands = {scalar}};
    op.attributes.shape = shape;
    return Emit(std::move(op), {TypeOf(scalar).element, shape});
  }
  // a where the bool scalar holds, else b.
  ValueId Either(ValueId holds, ValueId a, ValueId b) {
    const Type type = TypeOf(a);
    if (!type.shape.empty()) holds = Wide(holds, type.shape);
    return Do(kSelect, {holds, a, b}, type);
  }
  // A reduction over all numbers of a row.
  ValueId Over(OpCode code, ValueId row) {
    Op op{.code = code, .operands = {row}};
    op.attributes.axes = {0};
    return Emit(std::move(op), kScalar);
  }
  ValueId Dot(ValueId a, ValueId b) { return Over(kSum, Do(kMul, {a, b}, TypeOf(a))); }
  ValueId Scaled(ValueId scalar, ValueId row) {
    return Do(kMul, {Wide(scalar, ShapeOf(row)), row}, TypeOf(row));
  }
  ValueId Concatenated(const Values& parts, const Type& type) {
    Op op{.code = kConcat, .operands = parts};
    op.attributes.axes = {0};
    return Emit(std::move(op), type);
  }
  ValueId Reshaped(ValueId id, Shape shape) {
    if (ShapeOf(id) == shape) return id;
    Op op{.code = kReshape, .operands = {id}};
    op.attributes.shape = shape;
    return Emit(std::move(op), {ElementType::kReal, std::move(shape)});
  }
  Values NewArgs(Region& region, const Values& like) {
    Values args;
    for (ValueId id : like) args.push_back(w_.AddValue(TypeOf(id)));
    region.args.insert(region.args.end(), args.begin(), args.end());
    return args;
  }

  // All numbers in one row.
  ValueId Joined(const Values& parts) {
    Values flat;
    for (ValueId id : parts) flat.push_back(Reshaped(id, {ElementCount(ShapeOf(id))}));
    if (flat.size() == 1) return flat[0];
    return Concatenated(flat, {ElementType::kReal, {count_}});
  }

  Values Parted(ValueId row) {
    if (g_.size() == 1) return {Reshaped(row, ShapeOf(g_[0]))};
    const ValueId flat = Reshaped(row, {count_});
    Values parts;
    int64_t start = 0;
    for (ValueId id : g_) {
      const Shape shape = ShapeOf(id);
      const int64_t length = ElementCount(shape);
      Op op{.code = kSlice, .operands = {flat}};
      op.attributes.start = {start};
      op.attributes.shape = {length};
      parts.push_back(Reshaped(Emit(std::move(op), {ElementType::kReal, {length}}), shape));
      start += length;
    }
    return parts;
  }

  // Row i is J' of the i-th unit vector, so it is row i of J.
  ValueId Jacobian() {
    Op loop{.code = kFor, .role = context_.role, .label = context_.label};
    loop.attributes.max_iter = count_;
    loop.attributes.scanned = static_cast<int32_t>(g_.size());
    int64_t first = 0;
    for (ValueId id : g_) {
      Shape shape = ShapeOf(id);
      const int64_t length = ElementCount(shape);
      shape.insert(shape.begin(), count_);
      std::vector<double> units(static_cast<size_t>(count_ * length), 0.0);
      for (int64_t k = 0; k < length; ++k) {
        units[static_cast<size_t>((first + k) * length + k)] = 1.0;
      }
      loop.operands.push_back(Array(std::move(units), {ElementType::kReal, shape}));
      first += length;
    }
    Region body;
    w_.Open(body);
    body.args.push_back(w_.AddValue({ElementType::kI32, {}}, "index"));
    const Values unit = NewArgs(body, g_);
    body.yields = {Joined(transposed_(unit))};
    w_.Close(body);
    loop.regions.push_back(std::move(body));
    loop.results = {w_.AddValue({ElementType::kReal, {count_, count_}})};
    const ValueId jacobian = loop.results[0];
    w_.Push(std::move(loop));
    return jacobian;
  }

  Values Factored() {
    const Type square = {ElementType::kReal, {count_, count_}};
    const ValueId jacobian = Jacobian();
    std::vector<double> diagonal(static_cast<size_t>(count_ * count_), 0.0);
    for (int64_t k = 0; k < count_; ++k) {
      diagonal[static_cast<size_t>(k * (count_ + 1))] = 1.0 + choice_.damping;
    }
    const ValueId a = Do(kSub, {Array(std::move(diagonal), square), jacobian}, square);
    const ValueId factors = Do(kLu, {a}, square);
    const ValueId rows = Do(kLuPermutation, {a}, {ElementType::kI32, {count_}});
    Op solve{.code = kLuSolve, .operands = {a, factors, rows, Reshaped(Joined(g_), {count_, 1})}};
    solve.attributes.transposed = true;
    return Parted(Emit(std::move(solve), {ElementType::kReal, {count_, 1}}));
  }

  // The largest magnitude of what `of` gives for each value of g.
  template <class Of>
  ValueId Largest(const Of& of) {
    ValueId largest = ValueId::kNone;
    for (size_t k = 0; k < g_.size(); ++k) {
      const Type type = TypeOf(g_[k]);
      if (ElementCount(type.shape) == 0) continue;
      ValueId size = Do(kAbs, {of(k)}, type);
      if (!type.shape.empty()) {
        Op op{.code = kReduceMax, .operands = {size}};
        for (size_t axis = 0; axis < type.shape.size(); ++axis) {
          op.attributes.axes.push_back(static_cast<int64_t>(axis));
        }
        size = Emit(std::move(op), kScalar);
      }
      largest = largest == ValueId::kNone ? size : Do(kMax, {largest, size}, kScalar);
    }
    return largest;
  }

  // ---- tolerances that the request leaves open ----

  precision::Format Computes() const { return policy_[context_.role].computes_in(); }

  // The distance of neighbouring numbers at 1, in the format of the solve, or of what its matmuls read.
  double Unit() const {
    constexpr double kOfTf32 = 0x1p-10;
    if (policy_[context_.role].inputs) return kOfTf32;
    return std::ldexp(1.0, 1 - precision::Traits(Computes()).precision);
  }

  double TolOfResidual() const {
    if (choice_.tol > 0) return choice_.tol;
    return std::max(kUsualTol, kUnitsOfResidual * Unit());
  }

  // At least what is not 0 in either format of the test.
  double TolOfChange() const {
    if (choice_.tol > 0) return choice_.tol;
    double tol = kUsualTol;
    for (const precision::Format format : {Computes(), policy_[Role::kTermination].computes_in()}) {
      tol = std::max(tol, std::ldexp(1.0, precision::Traits(format).emin));
    }
    return tol;
  }

  // Whether a change by units of the largest number of w ends an iteration, too. In f64 1e-9 is reached
  // without.
  bool EndsByUnit() const { return choice_.tol == 0 && Computes() != precision::Format::kF64; }

  // The solver's own loop: it ends where `tested`, the last that it carries, compares with `bound`, or
  // with the value carried before it, where there is none. Returns what it carried, and its turns.
  template <class Body>
  Values Turns(const Values& start, Comparison comparison, ValueId bound, const Body& next) {
    Op loop{.code = kWhile, .role = context_.role, .operands = start, .label = context_.label};
    loop.attributes.site = AdjointSite();
    loop.attributes.comparison = comparison;
    loop.attributes.cap_order = CapOrder::kCapFirst;
    loop.attributes.max_iter = choice_.max_iter;
    loop.attributes.carried = static_cast<int32_t>(start.size());
    Region test;
    const Values tested = NewArgs(test, start);
    test.yields = {tested.back(), bound != ValueId::kNone ? bound : tested[tested.size() - 2]};
    Region body;
    w_.Open(body);
    body.yields = next(NewArgs(body, start));
    w_.Close(body);
    loop.regions.push_back(std::move(test));
    loop.regions.push_back(std::move(body));
    for (ValueId id : start) loop.results.push_back(w_.AddValue(TypeOf(id)));
    loop.results.push_back(w_.AddValue(kCount));
    const Values results = loop.results;
    w_.Push(std::move(loop));
    return results;
  }

  std::string AdjointSite() const { return site_ + ".adjoint"; }

  // That a solve ended after `turns`, with `residual`. At the cap it is `within` its tolerance or not.
  void Tell(ValueId turns, ValueId within, ValueId residual) {
    if (!w_.tells()) return;
    const ValueId cap = Number(static_cast<double>(choice_.max_iter), kCount);
    within = Do(kOr, {within, Do(kLt, {turns, cap}, kTruth)}, kTruth);
    const AdjointWriter::Context before =
        std::exchange(context_, {Role::kGradient, context_.label, {}});
    const auto number = [&](ValueId scalar) { return Reshaped(scalar, {1}); };
    const ValueId none = Number(0.0, kScalar);
    const ValueId one = Either(ran_, Number(1.0, kScalar), none);
    const ValueId ran = number(Either(ran_, Do(kConvert, {turns}, kScalar), none));
    const ValueId capped = Either(within, none, one);
    // A residual of a wider format saturates: it is told, and no overflow of the gradient.
    Op cast{.code = kCast, .operands = {residual}};
    cast.attributes.overflow = Overflow::kSaturate;
    const ValueId rest = number(Either(ran_, Emit(std::move(cast), kScalar), none));
    const ValueId counted =
        Concatenated({number(one), ran, number(capped)}, {ElementType::kReal, {kCountedNumbers}});
    const ValueId largest = Concatenated({ran, rest}, {ElementType::kReal, {kLargestNumbers}});
    w_.Tell(AdjointSite(), counted, largest);
    context_ = before;
  }

  Values Iterated() {
    // The first change is above tol in every format: tol itself, rounded to that of the adjoint, may lie
    // below tol as the test has it.
    constexpr double kFar = 0x1p15;
    const double least = TolOfChange();
    const ValueId tol = Number(least, kScalar);
    Values start = g_;
    if (EndsByUnit()) start.push_back(tol);
    start.push_back(Number(std::max(kFar, 2 * least), kScalar));
    const ValueId bound = EndsByUnit() ? ValueId::kNone : tol;
    const Values ended = Turns(start, Comparison::kLt, bound, [&](const Values& now) {
      Values next = NextOf(now);
      if (!EndsByUnit()) return next;
      const ValueId largest = Largest([&](size_t k) { return next[k]; });
      const ValueId units = Do(kMul, {Number(kUnitsOfChange * Unit(), kScalar), largest}, kScalar);
      next.insert(next.end() - 1, Do(kMax, {Number(least, kScalar), units}, kScalar));
      return next;
    });
    const ValueId change = ended[start.size() - 1];
    Tell(ended.back(), Do(kLt, {change, EndsByUnit() ? ended[g_.size()] : tol}, kTruth), change);
    return {ended.begin(), ended.begin() + static_cast<int64_t>(g_.size())};
  }

  // (g + J' w) / (1 + damping) of the w that `now` begins with, and by how much that changed.
  Values NextOf(const Values& now) {
    const Values w(now.begin(), now.begin() + static_cast<int64_t>(g_.size()));
    const Values moved = transposed_(w);
    Values next;
    for (size_t k = 0; k < g_.size(); ++k) {
      const Type type = TypeOf(g_[k]);
      ValueId sum = Do(kAdd, {g_[k], moved[k]}, type);
      if (choice_.damping > 0) sum = Do(kDiv, {sum, Number(1.0 + choice_.damping, type)}, type);
      next.push_back(sum);
    }
    next.push_back(Largest([&](size_t k) { return Do(kSub, {next[k], w[k]}, TypeOf(next[k])); }));
    return next;
  }

  // ---- gmres ----

  // The values that a turn of gmres carries, in this order. Rows of `basis` are orthonormal, and
  // each is A times its row of `steps`. `best` is the w of the smallest residual that was looked at.
  // `open` is 1, and 0 once that is small enough: it is compared in role adjoint, in whose format it
  // is, as in a narrower one of `termination` it could be 0 or Inf.
  enum Carried : size_t {
    kW,
    kR,
    kNext,
    kBasis,
    kSteps,
    kTurns,
    kRows,
    kChecks,
    kNorm,
    kBest,
    kBestNorm,
    kOpen
  };

  int64_t Restart() const {
    const int64_t most = kMostBasis / count_;
    if (most == 0) {
      throw PassBudget::Ended{
          LimitError("loops", absl::StrCat("loop '", site_, "' carries ", count_,
                                           " numbers; the limit of solver gmres is ", kMostBasis))};
    }
    if (choice_.restart > most) {
      throw PassBudget::Ended{LimitError(
          "loops",
          absl::StrCat("loop '", site_, "' carries ", count_, " numbers; with them restart ",
                       "of solver gmres is at most ", most, ", not ", choice_.restart))};
    }
    const int64_t restart = choice_.restart > 0 ? choice_.restart : kUsualRestart;
    return std::min({restart, most, count_});
  }

  Values ByGmres() {
    restart_ = Restart();
    const Type row = {ElementType::kReal, {count_}};
    const Type rows = {ElementType::kReal, {restart_, count_}};
    const ValueId g = Joined(g_);
    const ValueId norm = Over(kNorm2, g);
    bound_ = Do(kMul, {Number(TolOfResidual(), kScalar), norm}, kScalar);
    zeros_ = Number(0.0, rows);
    joined_g_ = g;
    const ValueId none = Number(0.0, kCount);
    rounding_ = Number(kRoundingUlps * Unit(), kScalar);
    const ValueId nothing = Number(0.0, row);
    const Values start = {nothing, g,       g,    zeros_,
                          zeros_,  none,    none, Number(0.0, kTruth),
                          norm,    nothing, norm, Open(norm)};
    const Values ended = Turns(start, Comparison::kLt, Number(0.5, kScalar),
                               [&](const Values& now) { return TurnOf(now); });
    const ValueId within = Do(kLe, {ended[kBestNorm], bound_}, kTruth);
    const ValueId any = Do(kGt, {norm, Number(0.0, kScalar)}, kTruth);
    const ValueId by = Either(any, norm, Number(1.0, kScalar));
    Tell(ended.back(), within, Do(kDiv, {ended[kBestNorm], by}, kScalar));
    // No w was found if g or a product is not finite, or their norm overflows.
    const ValueId is_found = Do(kIsFinite, {ended[kBestNorm]}, kTruth);
    const ValueId none_found = Minus(ended[kBestNorm], ended[kBestNorm]);
    return Parted(Either(is_found, ended[kBest], Wide(none_found, {count_})));
  }

  ValueId Open(ValueId norm) {
    return Either(Do(kLe, {norm, bound_}, kTruth), Number(0.0, kScalar), Number(1.0, kScalar));
  }

  // A v = (1 + damping) v - J' v.
  ValueId Times(ValueId v) {
    const ValueId moved = Joined(transposed_(Parted(v)));
    if (choice_.damping == 0) return Minus(v, moved);
    return Minus(Scaled(Number(1.0 + choice_.damping, kScalar), v), moved);
  }

  // A direction, orthogonal to the basis, and the step that A makes it of.
  std::pair<ValueId, ValueId> Orthogonal(ValueId direction, ValueId step, const Values& now) {
    const Type row = TypeOf(direction);
    Op loop{.code = kFor,
            .role = context_.role,
            .operands = {direction, step, now[kBasis], now[kSteps]},
            .label = context_.label};
    loop.attributes.max_iter = restart_;
    loop.attributes.carried = 2;
    loop.attributes.scanned = 2;
    Region body;
    w_.Open(body);
    body.args.push_back(w_.AddValue(kCount, "index"));
    const Values args = NewArgs(body, {direction, step, direction, step});
    const ValueId share = Dot(args[2], args[0]);
    body.yields = {Minus(args[0], Scaled(share, args[2])), Minus(args[1], Scaled(share, args[3]))};
    w_.Close(body);
    loop.regions.push_back(std::move(body));
    loop.results = {w_.AddValue(row), w_.AddValue(row)};
    const std::pair<ValueId, ValueId> results = {loop.results[0], loop.results[1]};
    w_.Push(std::move(loop));
    return results;
  }

  // `first` in front of all rows but the last.
  ValueId Pushed(ValueId first, ValueId rows) {
    const ValueId row = Reshaped(first, {1, count_});
    if (restart_ == 1) return row;
    Op op{.code = kSlice, .operands = {rows}};
    op.attributes.start = {0, 0};
    op.attributes.shape = {restart_ - 1, count_};
    const ValueId others = Emit(std::move(op), {ElementType::kReal, {restart_ - 1, count_}});
    return Concatenated({row, others}, TypeOf(rows));
  }

  // One product: of the next direction, or of w, which gives the residual as it is.
  Values TurnOf(const Values& now) {
    const ValueId zero = Number(0.0, kScalar);
    const ValueId one = Number(1.0, kScalar);
    const ValueId checks = now[kChecks];
    const ValueId product = Times(now[kNext]);
    const auto [left, step_left] = Orthogonal(product, now[kNext], now);
    const ValueId length = Over(kNorm2, left);
    // If `product` is in the span of the basis, there is no new direction. A step of a direction that
    // is rounding is not what A makes it of, and is so long that it spoils w.
    const ValueId least = Do(kMul, {rounding_, Over(kNorm2, product)}, kScalar);
    const ValueId is_new = Do(kGt, {length, least}, kTruth);
    const ValueId goes = Do(kAnd, {is_new, Do(kNot, {checks}, kTruth)}, kTruth);
    const ValueId by = Wide(Either(goes, length, one), {count_});
    const ValueId direction = Do(kDiv, {left, by}, TypeOf(left));
    const ValueId step = Do(kDiv, {step_left, by}, TypeOf(left));
    const ValueId share = Either(goes, Dot(direction, now[kR]), zero);
    const ValueId w = Either(goes, Do(kAdd, {now[kW], Scaled(share, step)}, TypeOf(step)), now[kW]);
    const ValueId seen = Minus(joined_g_, product);
    const ValueId r = Either(checks, seen, Minus(now[kR], Scaled(share, direction)));
    const ValueId norm = Over(kNorm2, r);
    const auto count = [&](int64_t number) { return Number(static_cast<double>(number), kCount); };
    const ValueId all = Do(kAdd, {now[kTurns], count(1)}, kCount);
    const ValueId turn = Do(kAdd, {now[kRows], count(1)}, kCount);
    const ValueId is_full = Do(kGe, {turn, count(restart_)}, kTruth);
    const ValueId restarts = Do(kOr, {checks, is_full}, kTruth);
    // The next turn looks at the residual where this one believes to have ended or goes nowhere,
    // and where it is the last.
    const ValueId ends = Do(kGe, {all, count(choice_.max_iter - 1)}, kTruth);
    const ValueId stands = Do(kOr, {Do(kNot, {is_new}, kTruth), ends}, kTruth);
    const ValueId looks = Do(kOr, {Do(kLe, {norm, bound_}, kTruth), stands}, kTruth);
    const ValueId will_check = Do(kAnd, {looks, Do(kNot, {checks}, kTruth)}, kTruth);
    // r itself leads on where it fell; where it stands still, A r would be in the basis.
    const ValueId fell =
        Do(kLt, {norm, Do(kMul, {Number(kFall, kScalar), now[kNorm]}, kScalar)}, kTruth);
    const ValueId leads = Either(Do(kOr, {fell, restarts}, kTruth), r, direction);
    // One that is NaN stays the best, so that it is told.
    const ValueId is_worse = Do(kGe, {norm, now[kBestNorm]}, kTruth);
    const ValueId is_best = Do(kAnd, {checks, Do(kNot, {is_worse}, kTruth)}, kTruth);
    const ValueId best_norm = Either(is_best, norm, now[kBestNorm]);
    return {w,
            r,
            Either(will_check, w, leads),
            Either(restarts, zeros_, Pushed(direction, now[kBasis])),
            Pushed(step, now[kSteps]),
            all,
            Either(restarts, count(0), turn),
            will_check,
            norm,
            Either(is_best, w, now[kBest]),
            best_norm,
            Open(best_norm)};
  }

  AdjointWriter& w_;
  const LoopChoice& choice_;
  const std::string& site_;
  const Values& g_;
  const ValueId ran_;
  const precision::Policy& policy_;
  const Transposed& transposed_;
  AdjointWriter::Context context_;
  int64_t count_ = 0;
  // Set for gmres: rows of its basis; tol |g|; kRoundingUlps of 1; an empty basis; g in one row.
  int64_t restart_ = 0;
  ValueId bound_ = ValueId::kNone;
  ValueId rounding_ = ValueId::kNone;
  ValueId zeros_ = ValueId::kNone;
  ValueId joined_g_ = ValueId::kNone;
};

}  // namespace

std::vector<ValueId> SolveImplicit(AdjointWriter& writer, const LoopChoice& choice,
                                   const std::string& site, const std::vector<ValueId>& g,
                                   ValueId ran, const precision::Policy& policy,
                                   const Transposed& transposed) {
  return Solver(writer, choice, site, g, ran, policy, transposed).Run();
}

}  // namespace simgrad::sim
