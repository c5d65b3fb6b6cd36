// The paths of presence through a region: which cotangents are contributed to which others.
//
// A shape is read from the primal once, before differentiation adds kinks to it. It does not say
// where a cotangent is present; PresencePlan decides that for each time the region is reversed. A
// value of a region has one slot, and another behind each loop that captures it, because the slot
// that leaves a loop replaces the one that entered. An operation with several results has one too.
// Cost: linear in the operations and operands of the region. Threads: immutable once read.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/program/loop_captures.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim::presence {

inline constexpr int32_t kNoSlot = -1;

template <class List>
auto& At(List& list, int32_t index) {
  return list[static_cast<size_t>(index)];
}

// The destination of a slot's presence.
struct Out {
  enum class To : uint8_t { kSlot, kLoopSlot, kLoopExport, kOwnerSlot, kOwnerExport };
  To to = To::kSlot;
  bool masks = false;
  int32_t loop = 0;  // ordinal
  int32_t slot = 0;
};

struct LoopShape;

struct RegionShape {
  // One step of a visit, in order: hands on a slot, or enters a loop.
  struct Item {
    bool is_loop;
    int32_t index;
  };
  int32_t slots = 0;
  std::vector<Item> items;
  std::vector<int32_t> item_of;  // by slot: what hands it on, or -1
  // Results of the operations that are reversed, with their slots, from the last up.
  std::vector<std::pair<ValueId, int32_t>> reversed;
  std::vector<size_t> begin;  // by slot: its first out, and one more at the end
  std::vector<Out> outs;
  std::vector<LoopShape> loops;  // from the last up
  // Slots by loop slot (carried, then captures) and by export: where the region takes and leaves
  // presence. kNoSlot: nothing can be there.
  std::vector<int32_t> in;
  std::vector<int32_t> in_exports;
  std::vector<int32_t> out;
  std::vector<int32_t> out_exports;
  std::vector<int32_t> entered;  // of a top-level region

  template <class Each>
  void EachOut(int32_t slot, const Each& each) const {
    for (size_t i = At(begin, slot); i < At(begin, slot + 1); ++i) each(outs[i]);
  }
};

struct LoopShape {
  bool written = false;  // whether a cotangent can ever come into it
  bool both_tests = false;
  bool masks_carried = false;  // what leaves through carried values is behind a mask
  int32_t slots = 0;           // carried and captures
  int32_t carried = 0;
  std::vector<int32_t> enter;          // by slot, in the region around it
  std::vector<int32_t> enter_exports;  // by export
  std::vector<int32_t> leave;          // by slot
  std::unique_ptr<RegionShape> body;
  std::unique_ptr<RegionShape> test;  // null: a for
};

class ShapeReader {
 public:
  // `takes`, by value: whether a cotangent is kept for it. All outlive the reader.
  ShapeReader(const Program& program, const std::vector<bool>& takes, const LoopCaptures& captures,
              PassBudget& budget);

  // Reads a top-level region. `entered`: values that get cotangents, in this order; `left`: values
  // whose presence is asked for at the end.
  RegionShape Read(const Region& region, const std::vector<ValueId>& entered,
                   const std::vector<ValueId>& left);

 private:
  // Until Finish, a slot and where it goes.
  using Made = std::vector<std::pair<int32_t, Out>>;
  // A region being read.
  struct Reading {
    RegionShape& shape;
    Made made;
  };

  int32_t SlotOf(RegionShape& shape, ValueId id);
  int32_t KnownSlot(ValueId id) const { return slot_of_[Index(id)]; }
  void ReadOps(Reading& reading, const Region& region);
  void ReadOp(Reading& reading, const Op& op);
  // The slots of its operands, from one slot.
  void ReadPassages(Reading& reading, const Op& op, int32_t from);
  void ReadLoop(Reading& reading, const Op& op);
  void SkipLoop(Reading& reading, const Op& op, const LoopShape& loop);
  std::unique_ptr<RegionShape> ReadNested(const Op& op, const Region& region, bool test);
  void Finish(Reading& reading) const;

  const Program& program_;
  const std::vector<bool>& takes_;
  const LoopCaptures& captures_;
  PassBudget& budget_;
  std::vector<int32_t> slot_of_;  // by value, in the region being read
};

}  // namespace simgrad::sim::presence
