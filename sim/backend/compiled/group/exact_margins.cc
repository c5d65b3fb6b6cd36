#include "sim/backend/compiled/group/exact_margins.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "precision/ulp.h"
#include "sim/backend/compiled/group/group_args.h"

namespace simgrad::sim::compiled {
namespace {

using precision::Format;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

// The places of one lane's numbers.
struct Sides {
  const void* lhs;
  const void* rhs;
  const void* extra;
};

template <class T>
T At(const void* list, int lane) {
  return static_cast<const T*>(list)[lane];
}
template <class T>
uint64_t BitsAt(const void* list, int lane) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return std::bit_cast<Bits>(At<T>(list, lane));
}

double RealAt(const void* list, bool is_f64, int lane) {
  return is_f64 ? At<double>(list, lane) : At<float>(list, lane);
}

double ExtraAt(const MarginKind& kind, const Sides& sides, int lane) {
  if (sides.extra == nullptr) return 0.0;
  return RealAt(sides.extra, kind.extra_is_f64 || kind.format == Format::kF64, lane);
}

precision::Margin MarginAt(const MarginKind& kind, const Sides& sides, int lane) {
  if (kind.is_integer) {
    const double distance =
        precision::IntegerMargin(At<int64_t>(sides.lhs, lane), At<int64_t>(sides.rhs, lane));
    return {distance, distance};
  }
  const bool is_f64 = kind.format == Format::kF64;
  return precision::MarginOf(kind.format, RealAt(sides.lhs, is_f64, lane),
                             RealAt(sides.rhs, is_f64, lane), ExtraAt(kind, sides, lane));
}

// The bits of 2^e of the largest magnitude, in the carrier of the sides, as machine code has them.
uint64_t PowerAt(const MarginKind& kind, const Sides& sides, int lane) {
  if (kind.format == Format::kF64) {
    const double extra = ExtraAt(kind, sides, lane);
    return std::max({BitsAt<double>(sides.lhs, lane) & precision::kDoubleInfinityBits,
                     BitsAt<double>(sides.rhs, lane) & precision::kDoubleInfinityBits,
                     precision::BitsOf(extra) & precision::kDoubleInfinityBits});
  }
  const auto narrowed = [&](const void* list) {
    return static_cast<uint32_t>(BitsAt<float>(list, lane)) & precision::kFloatInfinityBits;
  };
  uint32_t power = std::max(narrowed(sides.lhs), narrowed(sides.rhs));
  if (sides.extra != nullptr && kind.extra_is_f64) {
    const double extra =
        precision::DoubleOf(BitsAt<double>(sides.extra, lane) & precision::kDoubleInfinityBits);
    power = std::max(power, precision::BitsOf(static_cast<float>(extra)));
  } else if (sides.extra != nullptr) {
    power = std::max(power, narrowed(sides.extra));
  }
  return power;
}

void Offer(ExtremeMargin& to, double magnitude, uint64_t key) {
  const uint64_t bits = precision::BitsOf(magnitude);
  if (bits < to.magnitude || (bits == to.magnitude && key < to.key)) to = {bits, key};
}

float Above(double x) {
  const float rounded = static_cast<float>(x);
  return std::nextafter(rounded, std::numeric_limits<float>::infinity());
}

double LimitOf(const ExtremeMargin& nearest) {
  return nearest.magnitude == ~uint64_t{0} ? kInfinity : precision::DoubleOf(nearest.magnitude);
}

// Sets the limits. Products of `reach` are no subnormals where the sides are none: these are slow.
void Narrow(MarginWatch& watch, const MarginKind& kind, double absolute, double ulps, double band) {
  const bool counts = kind.is_event && !kind.extremes;  // only NaNs matter
  const double widest = std::max({kind.extremes ? ulps : 0.0, band, 0.5});
  const double unit =
      kind.is_integer ? 1.0
                      : precision::DoublePowerOfTwo(1 - precision::Traits(kind.format).precision);
  watch.reach_f64 = counts ? -1.0 : std::nextafter(widest, kInfinity) * unit;
  watch.reach_f32 = counts ? -1.0F : Above(widest * unit);
  // The least normal magnitude, which stands for smaller ones too.
  const double least =
      kind.is_integer ? 0.0
                      : precision::DoublePowerOfTwo(precision::Traits(kind.format).min_exponent);
  const double reached = counts ? -1.0 : std::nextafter(widest, kInfinity) * unit * least;
  const double limit = std::max(kind.extremes ? absolute : -1.0, reached);
  watch.absolute_f64 = limit < 0.0 ? limit : std::nextafter(limit, kInfinity);
  watch.absolute_f32 = limit < 0.0 ? -1.0F : Above(limit);
}

// Many instances at rest show the same numbers, whose margin is then often the smallest.
void Remember(MarginWatch& watch, const MarginKind& kind, const Sides& sides, int lane,
              uint32_t rank) {
  const bool narrow = !kind.is_integer && kind.format != Format::kF64;
  const auto bits = [&](const void* list) {
    return narrow ? BitsAt<float>(list, lane) : BitsAt<double>(list, lane);
  };
  if (!kind.is_integer) {
    const uint64_t power = PowerAt(kind, sides, lane);
    // NaNs would look like this lane.
    if (power >= (narrow ? precision::kFloatInfinityBits : precision::kDoubleInfinityBits)) return;
    watch.power = power;
  }
  watch.lhs = bits(sides.lhs);
  watch.rhs = bits(sides.rhs);
  watch.rank = static_cast<int32_t>(rank);
}

}  // namespace

uint64_t MarginKind::Code() const {
  return static_cast<uint64_t>(format) | (uint64_t{is_integer} << 8) |
         (uint64_t{extra_is_f64} << 9) | (uint64_t{is_event} << 10) | (uint64_t{extremes} << 11);
}

MarginKind MarginKind::Of(uint64_t code) {
  return {.format = static_cast<Format>(code & 0xFF),
          .is_integer = ((code >> 8) & 1) != 0,
          .extra_is_f64 = ((code >> 9) & 1) != 0,
          .is_event = ((code >> 10) & 1) != 0,
          .extremes = ((code >> 11) & 1) != 0};
}

MarginWatch NewWatch() {
  constexpr float kInfinityF32 = std::numeric_limits<float>::infinity();
  // Until the first lane has come, every one does.
  MarginWatch watch{};
  watch.absolute_f32 = watch.reach_f32 = kInfinityF32;
  watch.absolute_f64 = watch.reach_f64 = kInfinity;
  watch.rank = watch.zero_rank = kNoRank;
  // Beyond every key, read in 64 bits or in the lower 32.
  watch.tested_min = 0x7FFFFFFF7FFFFFFF;
  watch.tested_max = static_cast<int64_t>(0x8000000080000000);
  return watch;
}

void NoteMargins(GroupArgs* args, MarginWatch* watch, void* column, uint64_t kind_code,
                 uint64_t lanes, uint64_t stopped, const void* lhs, const void* rhs,
                 const void* extra, const void* tests) {
  const MarginKind kind = MarginKind::Of(kind_code);
  const Sides sides = {lhs, rhs, extra};
  TerminationColumn* const termination =
      kind.is_event ? nullptr : static_cast<TerminationColumn*>(column);
  EventColumn* const event = kind.is_event ? static_cast<EventColumn*>(column) : nullptr;
  ExtremeMargin& absolute = kind.is_event ? event->absolute : termination->absolute;
  ExtremeMargin& ulps = kind.is_event ? event->ulps : termination->ulps;
  int known = -1;  // the last lane that need not be counted again
  for (uint64_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const precision::Margin margin = MarginAt(kind, sides, lane);
    if (std::isnan(margin.ulps)) {
      ++(kind.is_event ? event->nan_margins : termination->nan_margins);
      continue;
    }
    const bool is_near = !kind.is_event && std::abs(margin.ulps) <= args->near_band_ulps;
    if (is_near) {
      ++(((stopped >> lane) & 1) != 0 ? termination->near_stopped : termination->near_continued);
    }
    if (!is_near) known = lane;
    if (margin.absolute == 0.0) {
      watch->zero_rank = std::min(watch->zero_rank, static_cast<int32_t>(args->ranks[lane]));
    }
    if (!kind.extremes) continue;
    const bool negative = std::signbit(margin.absolute);
    const uint32_t test = tests == nullptr ? 0 : At<uint32_t>(tests, lane);
    Offer(absolute, std::abs(margin.absolute), MarginKey(args->ranks[lane], negative, 0));
    Offer(ulps, std::abs(margin.ulps), MarginKey(args->ranks[lane], negative, test));
  }
  if (known >= 0) Remember(*watch, kind, sides, known, args->ranks[known]);
  const double band = kind.is_event ? 0.0 : args->near_band_ulps;
  Narrow(*watch, kind, LimitOf(absolute), LimitOf(ulps), band);
}

void NoteTested(MarginWatch* watch, TerminationColumn* column, bool is_f64, uint64_t lanes,
                const void* values) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  for (uint64_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const double x = is_f64 ? At<double>(values, lane) : At<float>(values, lane);
    const uint64_t bits = precision::BitsOf(x);
    const uint64_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
    column->tested_min = std::min<unsigned long long>(column->tested_min, ordered);
    column->tested_max = std::max<unsigned long long>(column->tested_max, ordered);
    const int64_t own = is_f64 ? static_cast<int64_t>(BitsAt<double>(values, lane))
                               : static_cast<int32_t>(BitsAt<float>(values, lane));
    const int64_t key =
        is_f64 ? own ^ ((own >> 63) & std::numeric_limits<int64_t>::max())
               : static_cast<int32_t>(own) ^ ((static_cast<int32_t>(own) >> 31) & 0x7FFFFFFF);
    watch->tested_min = std::min(watch->tested_min, key);
    watch->tested_max = std::max(watch->tested_max, key);
  }
}

}  // namespace simgrad::sim::compiled
