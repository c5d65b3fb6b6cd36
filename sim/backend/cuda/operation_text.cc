// The device text of every elementwise operation, and of casts, conversions and merges.
#include <array>

#include "sim/backend/cuda/region_writer.h"
#include "sim/op/op_info.h"
#include "sim/program/detect.h"

namespace simgrad::sim::cuda {
namespace {

using enum OpCode;

// $0, $1, $2: the operands; $L: Lane of the result's format; $F: that format; $T: its C++ type.
struct Row {
  OpCode code;
  std::string_view real;
  std::string_view integer;  // of i32 and i64; logic stands here
};

constexpr std::array kTable = {
    Row{kAdd, "$L::Add($0, $1)", "Add($0, $1)"},
    Row{kSub, "$L::Sub($0, $1)", "Sub($0, $1)"},
    Row{kMul, "$L::Mul($0, $1)", "Mul($0, $1)"},
    Row{kDiv, "$L::Div($0, $1)", "FloorDivide($0, $1)"},
    Row{kNeg, "precision::Neg($0)", "Neg($0)"},
    Row{kAbs, "precision::Abs($0)", "Abs($0)"},
    Row{kSign, "precision::Sign($0)", "Sign($0)"},
    Row{kMin, "precision::Min($0, $1)", "Min($0, $1)"},
    Row{kMax, "precision::Max($0, $1)", "Max($0, $1)"},
    Row{kFma, "$L::Fma($0, $1, $2)", ""},
    Row{kSqrt, "$L::Sqrt($0)", ""},
    Row{kFloor, "precision::Floor($0)", ""},
    Row{kRound, "precision::Round($0)", ""},
    Row{kMod, "static_cast<$T>(Mod<$F>($0, $1))", "FloorRemainder($0, $1)"},
    Row{kExp, "$L::Round(Exp<$F>($0))", ""},
    Row{kLog, "$L::Round(Log<$F>($0))", ""},
    Row{kLog1p, "$L::Round(Log1p<$F>($0))", ""},
    Row{kExpm1, "$L::Round(Expm1<$F>($0))", ""},
    Row{kSin, "$L::Round(Sin<$F>($0))", ""},
    Row{kCos, "$L::Round(Cos<$F>($0))", ""},
    Row{kAtan2, "$L::Round(Atan2<$F>($0, $1))", ""},
    Row{kTanh, "$L::Round(Tanh<$F>($0))", ""},
    Row{kSigmoid, "$L::Round(Sigmoid<$F>($0))", ""},
    Row{kSoftplus, "$L::Round(Softplus<$F>($0))", ""},
    Row{kPow, "$L::Round(Pow($0, $1))", ""},
    Row{kLt, "$0 < $1", "$0 < $1"},
    Row{kLe, "$0 <= $1", "$0 <= $1"},
    Row{kGt, "$0 > $1", "$0 > $1"},
    Row{kGe, "$0 >= $1", "$0 >= $1"},
    Row{kEq, "$0 == $1", "$0 == $1"},
    Row{kNe, "($0 < $1 || $0 > $1)", "$0 != $1"},
    Row{kAnd, "", "$0 && $1"},
    Row{kOr, "", "$0 || $1"},
    Row{kNot, "", "!$0"},
    Row{kSelect, "$0 ? $1 : $2", "$0 ? $1 : $2"},
    Row{kMerge, "$2 ? $L::Add($0, $1) : $0", ""},
    Row{kMerge2, "$1 ? ($3 ? $L::Add($0, $2) : $0) : ($3 ? $2 : $T{0})", ""},
};

const Row& RowOf(OpCode code) {
  for (const Row& row : kTable) {
    if (row.code == code) return row;
  }
  HasNoRule(code, "cuda");
}

}  // namespace

void RegionWriter::Elementwise(const Op& op) {
  const ValueId id = op.results[0];
  std::vector<Place> operands;
  for (ValueId operand : op.operands) operands.push_back(PlaceOf(operand));
  // A comparison's row is chosen by what it compares, every other by what it gives.
  const bool compares = InfoOf(op.code).op_class == OpClass::kCompare;
  const bool real = source_.IsReal(compares ? op.operands[0] : id);
  const Row& row = RowOf(op.code);
  const std::string_view text = real ? row.real : row.integer;
  const Format format = source_.FormatOf(id);
  Define(id, CommentOf(op), [&](const std::string& index) {
    std::string written;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '$') {
        written += text[i];
        continue;
      }
      const char what = text[++i];
      if (what == 'L') {
        written += LaneText(format);
      } else if (what == 'F') {
        written += FormatText(format);
      } else if (what == 'T') {
        written += source_.CType(id);
      } else {
        written += operands[static_cast<size_t>(what - '0')][index];
      }
    }
    return written;
  });
}

void RegionWriter::CountRanges(const Op& op, Format from, Format to, const Indexed& x,
                               const Indexed& r, ValueId result) {
  if (!mode_.counts_ranges || !precision::Narrows(from, to)) return;
  const ValueId where = op.attributes.where;
  const Place& place = PlaceOf(result);
  const std::string ranges = RangesOf(op.role);
  // Where all threads compute the same, one counts.
  const bool alone = place.kind != PlaceKind::kSpread && !Speaks().empty();
  EachElement(place, [&](const std::string& i) {
    std::string condition = "counts";
    if (alone) condition += " && speaks";
    if (where != ValueId::kNone) condition += Cat(" && ", Executed(where, place.count, i));
    return Cat("if (", condition, ") CountRange<", FormatText(to), ">(", ranges, ", ", x(i), ", ",
               r(i), ");");
  });
}

std::string RegionWriter::RoundText(const Op& cast, const std::string& x) const {
  const Overflow overflow = OverflowInForce(source_.numerical().policy, cast);
  const std::string mode = overflow == Overflow::kIeee ? "" : Cat(", ", OverflowText(overflow));
  return Cat(LaneText(source_.FormatOf(cast.results[0])), "::Round(", x, mode, ")");
}

void RegionWriter::Cast(const Op& op) {
  if (constant_casts_.contains(&op)) return ConstantCast(op);
  const ValueId id = op.results[0];
  const Place from = PlaceOf(op.operands[0]);
  Define(id, CommentOf(op), [&](const std::string& i) { return RoundText(op, from[i]); });
  const Place place = PlaceOf(id);
  CountRanges(
      op, source_.FormatOf(op.operands[0]), source_.FormatOf(id),
      [&](const std::string& i) { return from[i]; }, [&](const std::string& i) { return place[i]; },
      id);
}

void RegionWriter::Convert(const Op& op) {
  const ValueId id = op.results[0];
  const Place from = PlaceOf(op.operands[0]);
  const bool from_real = source_.IsReal(op.operands[0]);
  const std::string type = source_.CType(id);
  Define(id, CommentOf(op), [&](const std::string& i) {
    if (source_.IsReal(id)) {
      if (from_real) return Cat("static_cast<", type, ">(", from[i], ")");
      return Cat("ToReal<", FormatText(source_.FormatOf(id)), ">(", from[i], ")");
    }
    if (from_real) return Cat("ToInteger<", type, ">(", from[i], ")");
    return Cat("WrapTo<", type, ">(", from[i], ")");
  });
}

void RegionWriter::Operation(const Op& op) {
  if (op.code == kEvent) return Event(op);
  if (op.code == kWhile) return While(op);
  if (op.code == kFor) return For(op);
  if (op.code == kAccumulate) return Accumulate(op);
  if (op.code == kWhileVjp) return WhileVjp(op);
  if (op.code == kForVjp) return ForVjp(op);
  if (op.code == kLiteral) {
    Literal(op);
  } else if (op.code == kCast) {
    Cast(op);
  } else if (op.code == kConvert) {
    Convert(op);
  } else if (op.code == kStopGradient || op.code == kReshape) {
    Alias(op);
  } else if (op.code == kBroadcast) {
    Broadcast(op);
  } else if (op.code == kSlice) {
    Slice(op);
  } else if (op.code == kPad) {
    Pad(op);
  } else if (op.code == kConcat) {
    Concat(op);
  } else if (op.code == kTape) {
    Tape(op);
  } else if (InfoOf(op.code).op_class == OpClass::kReduction) {
    Reduction(op);
  } else {
    Elementwise(op);
  }
  Look(op.results[0], op.attributes.where);
}

}  // namespace simgrad::sim::cuda
