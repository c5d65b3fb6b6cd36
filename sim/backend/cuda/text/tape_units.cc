#include "sim/backend/cuda/text/tape_units.h"

#include <algorithm>
#include <limits>

#include "sim/backend/cuda/kernel_abi.h"
#include "sim/program/loop.h"

namespace simgrad::sim::cuda {
namespace {

// Sums and products of sizes, which are at least 0. A size beyond every tape stays at this bound.
constexpr int64_t kBeyondTapes = std::numeric_limits<int64_t>::max() / 4;
int64_t Sum(int64_t a, int64_t b) { return std::min(a + b, kBeyondTapes); }
int64_t Product(int64_t a, int64_t b) {
  return a != 0 && b > kBeyondTapes / a ? kBeyondTapes : a * b;
}

int64_t FrameBytes(const plan::TapePlan& tape, const Region& region) {
  const plan::FrameLayout* const frame = tape.Of(region);
  return frame == nullptr ? 0 : frame->bytes;
}

// Bytes of the frames of a region's loops at their caps.
int64_t LoopBytes(const plan::TapePlan& tape, const Region& region) {
  int64_t bytes = 0;
  for (const Op& op : region.ops) {
    if (op.code != OpCode::kWhile && op.code != OpCode::kFor) continue;
    int64_t turn = FrameBytes(tape, op.regions[0]);
    for (const Region& nested : op.regions) turn = Sum(turn, LoopBytes(tape, nested));
    const int64_t runs = Product(RunsAtCap(op), std::max<int64_t>(op.attributes.elements, 1));
    bytes = Sum(bytes, Product(turn, runs));
  }
  return bytes;
}

}  // namespace

int64_t TapeUnits(const plan::TapePlan& tape, const Region& region) {
  return Sum(FrameBytes(tape, region), LoopBytes(tape, region)) / kTapeUnitBytes;
}

}  // namespace simgrad::sim::cuda
