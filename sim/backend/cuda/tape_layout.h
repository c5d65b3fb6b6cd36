// What a replayed region leaves on the tape, and where: decided once per text.
//
// A frame is one execution of a region of the primal. It holds, in this order:
// - the position of the previous frame of its loop, only for a step and where frames of that loop
//   differ in size;
// - a record for each loop in it that is reversed: its iterations, and where its frames are;
// - the values that tape operations read from it.
// Sizes are in units (device/tape.h).
#pragma once

#include <map>
#include <vector>

#include "sim/program/numerical_program.h"

namespace simgrad::sim::cuda {

struct TapeEntry {
  ValueId primal = ValueId::kNone;
  bool real = false;
  Format to = Format::kF64;  // of the tape operations
  Overflow overflow = Overflow::kIeee;
  bool narrows = false;          // `to` lacks a value of the primal's format: stored as a note
  Format stored = Format::kF64;  // what is stored: the narrower of both
  int bits = 32;
  int64_t count = 1;
  int64_t offset = 0;
};

struct TapeLoop {
  const Op* loop = nullptr;
  int64_t offset = 0;
  int64_t units_per_run = 0;  // the record: iterations, position
  bool chained = false;       // frames are linked; else they stand at equal distances
};

struct TapeFrame {
  bool linked = false;
  std::vector<TapeLoop> loops;
  std::vector<TapeEntry> entries;
  int64_t units = 0;
  const TapeLoop* LoopOf(const Op& loop) const;
};

// How a tape operation's primal would be stored; without a place.
TapeEntry EntryFor(const NumericalProgram& program, const Op& tape);

class TapeLayout {
 public:
  // Values that are `constant` (Source::IsConstant) are not taped.
  TapeLayout(const NumericalProgram& program, bool block, const std::vector<bool>& constant);
  TapeLayout(const TapeLayout&) = delete;  // frames are known by the address of their region
  TapeLayout& operator=(const TapeLayout&) = delete;

  int unit_bytes() const { return unit_bytes_; }
  const TapeFrame& Of(const Region& region) const;
  // The region whose frame holds a primal value, read by the adjoint of `top`.
  const Region* HomeOf(ValueId primal, const Region* top) const;
  // The forward loop whose first result this is, and the region it stands in.
  const Op& LoopOf(ValueId first_result) const { return *loops_.at(first_result).op; }
  const Region& RegionOfLoop(ValueId first_result) const { return *loops_.at(first_result).region; }
  const TapeEntry& EntryOf(const Region& home, ValueId primal, Format to, Overflow overflow) const;
  // The most that one execution of a region and what is in it can take.
  int64_t LargestUnits(const Region& region) const;
  // What stands for the terminal cost where there is none.
  const Region& no_region() const { return no_region_; }
  int64_t UnitsOfBits(int bits) const;

 private:
  struct LoopPlace {
    const Op* op;
    const Region* region;
  };
  void Index(const Region& region);
  void Scan(const NumericalProgram& program, const Region& adjoint, const Region* top,
            const std::vector<bool>& constant);
  void AddEntry(const NumericalProgram& program, const Op& tape, const Region* top);
  bool Settle(const Region& region, bool mapped, bool block);

  int unit_bytes_ = 4;
  Region no_region_;
  std::map<ValueId, const Region*> home_;
  std::map<ValueId, LoopPlace> loops_;
  std::map<const Region*, TapeFrame> frames_;
};

}  // namespace simgrad::sim::cuda
