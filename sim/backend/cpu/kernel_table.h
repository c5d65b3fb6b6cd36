// What a vector kernel is, and the table of them that one instruction set offers.
//
// Layout: the values of a block are stored [element][lane]; a row is the lanes of one element. A
//   *varying* value has `Lanes::width[0]` lanes per row; a *uniform* one is the same for every
//   instance and has kLaneGroup equal lanes per row, so that an operation on uniforms alone is the
//   same kernel on narrow rows. Widths are multiples of kLaneGroup, rows are aligned to 64 bytes.
// Carriers: f64 is computed in double, every narrower format in float, whose values it holds
//   exactly; a bool is an int32 of 0 or -1.
// NaN: inside a block a NaN is the canonical one up to its sign. Code that reads a value out of a
//   block makes it canonical.
// This header is included by sources that are compiled for different instruction sets, so it holds
// no inline function and nothing of precision/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simgrad::sim::cpu {

inline constexpr int kLaneGroup = 16;

enum class Carrier : uint8_t { kF32, kF64, kI32, kI64, kBool };  // kBool: an int32 of 0 or -1
inline constexpr int kCarrierCount = 5;

// How an operand is stored, in the order of the operands.
enum class Operands2 : uint8_t { kVV, kVU, kUV };
enum class Operands3 : uint8_t { kVVV, kVVU, kVUV, kVUU };

struct Instruction;
struct Lanes;
using Kernel = void (*)(const Instruction&, Lanes&);

// The part of a machine that kernels see.
struct Lanes {
  // Before so many element-operations of an instruction that cannot be cut into rows; throws.
  void (*count)(Lanes& lanes, int64_t element_operations) = nullptr;
  std::byte** at = nullptr;                     // storage by slot
  int64_t width[2] = {kLaneGroup, kLaneGroup};  // lanes per row: varying, uniform
  bool evades_subnormals = false;               // products near zero are not left to the processor
  bool met_subnormals = false;                  // since this was reset, there was one
  uint64_t* magnitudes = nullptr;               // by slot: all bits of the magnitudes in its row
};

// Of Lanes::magnitudes, where no product near zero has looked at the row or written it.
inline constexpr uint64_t kUnknownMagnitudes = ~uint64_t{0};

// One operation over a block. Slots index Lanes::at.
struct Instruction {
  Kernel run = nullptr;
  int32_t to = -1;
  int32_t a = -1, b = -1, c = -1, d = -1;
  int32_t count = 1;    // rows of the result
  int32_t uniform = 0;  // 1: all operands and the result are uniform
  bool rows = false;    // `plan` is a RowPlan
  // Of a product: an earlier product has left the magnitudes of its varying factor.
  bool magnitudes_known = false;
  const void* plan = nullptr;  // what the kernel needs besides: a list of rows, a loop, ...
};

// Where the rows of a result come from: row k is row `from[k]` of operand `operand[k]`, or +0.
struct RowPlan {
  const int32_t* from = nullptr;     // [rows]; -1: zero
  const int32_t* operand = nullptr;  // [rows]; index into `slots`
  const int32_t* slots = nullptr;
  const int32_t* slot_uniform = nullptr;  // [slots]
  int64_t rows = 0;
  int64_t lane_bytes = 4;
};

// The elements that a reduction joins: result k reads rows index[k * inputs + i], i < inputs; for
// a cumulative sum the first `own` of them end at the result's own place.
struct ReducePlan {
  const int32_t* index = nullptr;
  int64_t inputs = 0;
  int64_t results = 0;
  bool cumulative = false;
};

// Kinds of instructions with a table entry each, in the order of sim/op/opcode.h.
enum Arithmetic2 : uint8_t { kAdd2, kSub2, kMul2, kDiv2, kMod2, kAtan22, kPow2 };
inline constexpr int kArithmetic2Count = 7;
enum Arithmetic1 : uint8_t {
  kSqrt1,
  kExp1,
  kLog1,
  kLog1p1,
  kExpm11,
  kSin1,
  kCos1,
  kTanh1,
  kSigmoid1,
  kSoftplus1,
};
inline constexpr int kArithmetic1Count = 10;
enum Move1 : uint8_t { kNeg1, kAbs1, kSign1, kFloor1, kRound1 };
inline constexpr int kMove1Count = 5;
enum Integer2 : uint8_t { kIntAdd, kIntSub, kIntMul, kIntDiv, kIntMod, kMin2, kMax2 };
inline constexpr int kInteger2Count = 7;

inline constexpr int kFormats = 6;      // precision::Format
inline constexpr int kComparisons = 6;  // sim::Comparison

// A tested pair a op b over the lanes of one row, in the carrier of its format.
struct MarginScan {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* extra[4] = {};  // operands of what made a or b
  bool uniform[6] = {};       // a, b, extra...: one number for all lanes
  int32_t extras = 0;
  const int32_t* executed = nullptr;  // mask of the lanes that count; null: all
  int64_t width = 0;
  // Keys that order |a - b| and |a - b| / ulp; a NaN has the largest, above that of infinity.
  int64_t smallest_absolute = 0;  // out of scan, into candidates
  int64_t smallest_ulps = 0;
  bool any_nan = false;
};

// Extremes among some lanes. Keys are the bits of a number, turned so that integers order them.
struct KeyRange {
  int64_t lowest = 0;
  int64_t highest = 0;
};

// What lies next to the threshold b of a test among some lanes: the largest a < b and the smallest
// a >= b, as keys.
struct TestNeighbours {
  int64_t below = 0;
  int64_t above = 0;
  bool any_below = false;
  bool any_above = false;
  bool any_nan = false;
};

// What is added to one sum or two: round(z * y), with z the numbers x or round(x * by).
struct ScaledRow {
  const void* x = nullptr;
  const void* by = nullptr;  // null: z is x
  const void* y = nullptr;   // one number for all lanes
  const void* second_y = nullptr;
  void* sum = nullptr;
  void* second_sum = nullptr;  // null: one sum
};

// What some products were like.
struct ProductsMet {
  bool subnormal = false;                  // an operand or a product was
  bool zero = false;                       // every product is zero
  uint64_t factor = kUnknownMagnitudes;    // all bits of the magnitudes of x
  uint64_t products = kUnknownMagnitudes;  // and of the products
};

// What is looked for while the tests of a row of floats are decided.
struct TestWatch {
  // A number matters where its bits are `low` to `low + span`. All of them, unless said otherwise.
  uint32_t low = 0;
  uint32_t span = ~uint32_t{0};
  bool negative = false;  // those below zero do, too
  float* held = nullptr;  // where the numbers of the lanes that hold are put
  bool quiet = false;     // out: no number matters and none is NaN; may be false without need
};

// The margins of x < y in ulps of y, for lanes with 0 <= x < y.
struct TestsBelow {
  int ulp_field = 0;              // biased exponent of that ulp, as of a float
  uint32_t* histogram = nullptr;  // by MarginBucket; added to
  int64_t lowest = 0;             // out: keys of x
  int64_t highest = 0;
};

// Outcomes that one table of add_outcomes tells apart; 0, none, is among them.
inline constexpr int kOutcomes = 16;

struct KernelTable {
  const char* name;
  // Rounded to the format.
  Kernel arithmetic2[kArithmetic2Count][kFormats][3];
  Kernel arithmetic1[kArithmetic1Count][kFormats];
  Kernel fma[kFormats];       // VVV
  Kernel merge[kFormats][2];  // a, b, mask_b: VVV; with -b
  Kernel merge2[kFormats];    // a, mask_a, b, mask_b: VVVV
  // The same as merge where c < d or c > d, for a number d: VVVU; [d compares][format][with -b]
  Kernel merge_where[2][kFormats][2];
  // Two roundings in one pass: (a * b) + c and (a * b) - c, c - (a * b); kVVV and, with b or a
  // uniform, kVUV.
  Kernel multiply_add[3][kFormats][2];
  // Nothing to round.
  Kernel move1[kMove1Count][kCarrierCount];
  Kernel move2[kInteger2Count][kCarrierCount][3];
  Kernel compare[kComparisons][kCarrierCount][3];
  Kernel logical_and[3], logical_or[3], logical_not;
  Kernel relu[2], relu_of_negative[2];  // max(x, 0), max(-x, 0); f32, f64
  Kernel select[2][4];                  // by carrier size 4, 8; condition varying
  Kernel copy_rows;
  Kernel widen[2];  // uniform to varying; by carrier size
  // [from carrier f32, f64][format][saturate]; the operand is a value of any format.
  Kernel cast[2][kFormats][2];
  Kernel int_to_real[3][kFormats];  // from i32, i64, bool
  Kernel real_to_int[2][3];         // from f32, f64 to i32, i64, bool
  Kernel int_to_int[3][3];
  // [order][accumulator][carrier of the operand]; the result is in the accumulator's carrier. The
  // operand's format must be contained in the accumulator's.
  Kernel sum[4][kFormats][2];
  Kernel cumsum[kFormats][2];
  Kernel reduce_max[2], reduce_min[2], argmax[2], argmin[2];  // f32, f64
  Kernel any;
  // to = mask of the lanes at which any row of mask a holds.

  // Plain functions over n lanes (a multiple of kLaneGroup).
  bool (*any_nonfinite[2])(const void* x, int64_t n);  // f32, f64
  // Mask of the lanes of a row that are not finite.
  void (*nonfinite_mask[2])(const void* x, int32_t* mask, int64_t n);
  // Whether a non-zero magnitude below `normal`, or a non-finite value, is among them.
  bool (*any_unusual[2])(const void* x, double normal, int64_t n);
  // Whether a cast of x to r may have left the normal range [normal, largest].
  bool (*cast_unusual[2][2])(const void* x, const void* r, double normal, double largest,
                             int64_t n);
  // sum = round(sum + x) where the mask holds (null: everywhere); with -x; with round(x * y), where
  // y is a row or one number for all lanes.
  void (*accumulate[kFormats])(void* sum, const void* x, const int32_t* mask, int64_t n);
  void (*accumulate_negative[kFormats])(void* sum, const void* x, const int32_t* mask, int64_t n);
  void (*accumulate_product[kFormats])(void* sum, const void* x, const void* y, const int32_t* mask,
                                       int64_t n);
  void (*accumulate_scaled[kFormats])(const ScaledRow& row, const int32_t* mask, int64_t n);
  // to = round(x * y), near zero not by the processor; not written where every product is zero.
  // `magnitudes` of x, where they are known.
  ProductsMet (*products[kFormats][2])(void* to, const void* x, const void* y, uint64_t magnitudes,
                                       int64_t n);
  void (*blend[2])(void* to, const void* from, const int32_t* mask, int64_t n);
  void (*gather[2])(void* to, const void* from, const int32_t* index, int64_t n);
  // Lanes as bits: bit i of words[i / 64]. Bits of a last word beyond n are zero.
  void (*mask_bits)(const int32_t* mask, uint64_t* words, int64_t n);
  void (*expand_bits)(const uint64_t* words, int32_t* mask, int64_t n);
  void (*equal_bits[2])(const void* x, const void* first, uint64_t* words, int64_t n);
  void (*greater_bits)(const int32_t* x, int32_t y, uint64_t* words, int64_t n);
  // x[i] comparison y, for reals; f32, f64.
  void (*compare_bits[kComparisons][2])(const void* x, const void* y, uint64_t* words, int64_t n);
  // The same of the lanes `within`, as a whole set; returns how they lie in it: 0 none of it, 1
  // some, 2 all.
  int (*mask_share)(const int32_t* mask, const uint64_t* within, uint64_t* words, int64_t n);
  int (*compare_share[kComparisons][2])(const void* x, const void* y, const uint64_t* within,
                                        uint64_t* words, int64_t n);
  // compare_share of floats that watches on the way.
  int (*compare_watched[kComparisons])(const float* x, const float* y, const uint64_t* within,
                                       uint64_t* words, int64_t n, TestWatch& watch);
  // x has kMaxBlockWidth numbers. False, and nothing is counted, where a lane of `words` has no
  // 0 <= x < y, or there is none.
  bool (*count_below)(const float* x, const float* y, const uint64_t* words, int64_t n,
                      TestsBelow& tests);
  // row[i] = value for the lanes of `words`; then sums[i] += tables[r][rows[r][i]] over `count`
  // rows. Rows have kMaxBlockWidth numbers.
  void (*fill_bytes)(uint8_t* row, uint8_t value, const uint64_t* words, int64_t n);
  void (*add_outcomes)(uint64_t* sums, const uint8_t* rows, const uint64_t* tables, int64_t count,
                       int64_t n);
  // sums[i] += value for the lanes of `words`.
  void (*add_where)(uint64_t* sums, uint64_t value, const uint64_t* words, int64_t n);
  // Whether |a - b| >= max(factor * 2^e, absolute) in every executed lane, 2^e <= m < 2^(e+1) for m
  // the largest magnitude of a, b and the extras (2^e = 0 where it is subnormal); in floats.
  bool (*margins_beyond)(const MarginScan& scan, float factor, float absolute);
  // The smallest keys; the lanes whose keys are at most one above these.
  void (*margins[kFormats])(MarginScan& scan);
  void (*margin_candidates[kFormats])(const MarginScan& scan, uint64_t* absolute, uint64_t* ulps);
  // MarginBucket of |a - b| / ulp for a uniform b and no extras; formats in a float carrier.
  void (*margin_buckets[kFormats])(const void* a, const void* b, int32_t* bucket, int64_t n);
  // Over the lanes of `words` that are no NaN; lowest > highest where there are none.
  KeyRange (*key_range[2])(const void* x, const uint64_t* words, int64_t n);
  TestNeighbours (*neighbours[2])(const void* a, const void* b, const uint64_t* words, int64_t n);
  double (*smallest_magnitude[2])(const void* x, int64_t n);                        // but zero
  double (*largest_magnitude[2])(const void* x, const uint64_t* words, int64_t n);  // finite
  // exponent buckets of |x| (ExponentBucket), -1 where not finite.
  void (*exponent_buckets[2])(const void* x, int32_t* bucket, int64_t n);
};

// The tables that this build holds; null where the processor cannot run one.
const KernelTable* BaselineKernels();
const KernelTable* Avx2Kernels();
const KernelTable* Avx512Kernels();

}  // namespace simgrad::sim::cpu
