// Writes what is recorded of margins: the smallest ones, near tests, histograms, tested extremes.
//
// Maths: docs/semantics.md, "Margins". A margin is compared with what its site has seen in this
//   step, in the width of its carrier, and evaluated in full where it may matter (exact_margins.h,
//   ADR 35).
// Cost: some 12 vector instructions for each part of a comparison. Threads: one per module.
#pragma once

#include "sim/backend/compiled/group/exact_margins.h"
#include "sim/backend/compiled/writer/lane_builder.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// The operands of a comparison: integers in 64 bits.
struct Compared {
  MarginKind kind;
  plan::Carrier carrier = plan::Carrier::kF64;
  Vectors lhs, rhs, extra;
  Vectors tests;  // numbers of deciding tests; empty: none
};

// The types in which the operands of a real comparison lie.
struct MarginCarriers {
  precision::Format format = precision::Format::kF64;
  plan::Carrier carrier = plan::Carrier::kF64;
  plan::Carrier extra_carrier = plan::Carrier::kF64;
  bool has_extra = false;
};

class MarginWriter : protected LaneBuilder {
 protected:
  explicit MarginWriter(const LaneBuilder& lanes) : LaneBuilder(lanes) {}

  // Loads the ranks of the lanes, before the first margin.
  void BeginMargins();
  // Takes the margins of the lanes of `mask` into a column and its watch. `stopped`: lanes whose
  // test held; empty for an event.
  void Margins(const Compared& compared, bool is_event, llvm::Value* column, llvm::Value* watch,
               const Vectors& mask, const Vectors& stopped);
  // Counts margins in a histogram: column + offset.
  void CountMargins(const MarginCarriers& of, const Compared& compared, const Vectors& mask,
                    llvm::Value* column, uint64_t offset);
  // Takes last tested values into the extremes of a column.
  void TestedExtremes(const Vectors& tested, const Vectors& mask, llvm::Value* column,
                      llvm::Value* watch);

 private:
  void NoteMargins(const Compared& compared, bool is_event, llvm::Value* column, llvm::Value* watch,
                   const Vectors& lanes, const Vectors& stopped);
  llvm::Value* MayMatter(const Compared& compared, llvm::Value* watch, size_t part);
  llvm::Value* IsKnownZero(const Compared& compared, llvm::Value* watch, size_t part);
  llvm::Value* PowerOf(const Compared& compared, size_t part);
  llvm::Value* FromWatch(llvm::Value* watch, uint64_t offset, llvm::Type* type);
  llvm::Value* BitsIn(llvm::Value* x);
  Vectors Buckets(const MarginCarriers& of, const Compared& compared);
  Vectors NarrowBuckets(const MarginCarriers& of, const Compared& compared, const Vectors& counts);

  Vectors ranks_;
};

}  // namespace simgrad::sim::compiled
