#include "sim/backend/compiled/exact_margins.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "precision/ulp.h"
#include "sim/backend/compiled/group_args.h"

namespace simgrad::sim::compiled {
namespace {

using precision::Format;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

// Where one lane's numbers lie.
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

precision::Margin MarginAt(const MarginKind& kind, const Sides& sides, int lane) {
  if (kind.is_integer) {
    const double distance = static_cast<double>(At<int64_t>(sides.lhs, lane)) -
                            static_cast<double>(At<int64_t>(sides.rhs, lane));
    return {distance, distance};
  }
  const bool narrow = kind.format != Format::kF64;
  const auto real = [&](const void* list, bool is_f64) -> double {
    return is_f64 ? At<double>(list, lane) : At<float>(list, lane);
  };
  const double extra =
      sides.extra == nullptr ? 0.0 : real(sides.extra, kind.extra_is_f64 || !narrow);
  return precision::MarginOf(kind.format, real(sides.lhs, !narrow), real(sides.rhs, !narrow),
                             extra);
}

// Returns whether it is the nearest now.
bool Offer(ExtremeMargin& to, double magnitude, uint64_t key) {
  const uint64_t bits = precision::BitsOf(magnitude);
  if (bits > to.magnitude || (bits == to.magnitude && key >= to.key)) return false;
  to = {bits, key};
  return true;
}

float Above(double x) {
  const float rounded = static_cast<float>(x);
  return std::nextafter(rounded, std::numeric_limits<float>::infinity());
}

double LimitOf(const ExtremeMargin& nearest) {
  return nearest.magnitude == ~uint64_t{0} ? kInfinity : precision::DoubleOf(nearest.magnitude);
}

void Narrow(MarginWatch& watch, const MarginKind& kind, double absolute, double ulps, double band) {
  const double widest = std::nextafter(std::max(kind.extremes ? ulps : 0.0, band), kInfinity);
  const double of_power =
      kind.is_integer ? 1.0
                      : precision::DoublePowerOfTwo(1 - precision::Traits(kind.format).precision);
  const double least = kind.extremes ? std::nextafter(absolute, kInfinity) : -1.0;
  watch.absolute_f64 = least;
  watch.reach_f64 = widest * of_power;
  watch.absolute_f32 = kind.extremes ? Above(absolute) : -1.0F;
  watch.reach_f32 = Above(widest * of_power);
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
  watch.rank = kNoRank;
  // Beyond every key, read in 64 bits or in the lower 32.
  watch.tested_min = 0x7FFFFFFF7FFFFFFF;
  watch.tested_max = static_cast<int64_t>(0x8000000080000000);
  return watch;
}

void NoteMargins(GroupArgs* args, MarginWatch* watch, void* column, uint64_t kind_code,
                 uint64_t lanes, uint64_t stopped, const void* lhs, const void* rhs,
                 const void* extra) {
  const MarginKind kind = MarginKind::Of(kind_code);
  const Sides sides = {lhs, rhs, extra};
  TerminationColumn* const termination =
      kind.is_event ? nullptr : static_cast<TerminationColumn*>(column);
  EventColumn* const event = kind.is_event ? static_cast<EventColumn*>(column) : nullptr;
  ExtremeMargin& absolute = kind.is_event ? event->absolute : termination->absolute;
  ExtremeMargin& ulps = kind.is_event ? event->ulps : termination->ulps;
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
    if (!kind.extremes) continue;
    const uint64_t key = 2 * uint64_t{args->ranks[lane]} + (std::signbit(margin.absolute) ? 0 : 1);
    Offer(ulps, std::abs(margin.ulps), key);
    if (!Offer(absolute, std::abs(margin.absolute), key)) continue;
    watch->rank = kNoRank;
    if (is_near) continue;  // each one is counted
    const bool narrow = !kind.is_integer && kind.format != Format::kF64;
    watch->lhs = narrow ? BitsAt<float>(lhs, lane) : BitsAt<double>(lhs, lane);
    watch->rhs = narrow ? BitsAt<float>(rhs, lane) : BitsAt<double>(rhs, lane);
    if (extra != nullptr) {
      watch->extra =
          narrow && !kind.extra_is_f64 ? BitsAt<float>(extra, lane) : BitsAt<double>(extra, lane);
    }
    watch->rank = static_cast<int32_t>(args->ranks[lane]);
  }
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
