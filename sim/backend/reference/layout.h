// The places of a program's values while it runs: one frame per execution of a region.
//
// A value belongs to the region that defines it; program inputs have a frame of their own. A
// look-up walks from the innermost frame outward. An adjoint frame that does not hold a value asks
// the taped frame of the primal.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/backend/reference/decision_radius.h"
#include "sim/diagnostics/diagnostics.h"
#include "sim/op/array.h"
#include "sim/program/additions.h"
#include "sim/program/decision_margin.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::reference {

// The values that one region defines.
struct RegionLayout {
  // -1: not of this region.
  int32_t PlaceOf(ValueId id) const {
    const size_t at = Index(id) - first;  // wraps below the first
    return at < place.size() ? place[at] : -1;
  }
  size_t first = 0;                 // the ids of a region lie close together
  std::vector<int32_t> place;       // by value id, from the first on
  std::vector<const Op*> producer;  // by place; null: argument or input
};

class Layouts {
 public:
  explicit Layouts(const NumericalProgram& program);
  const RegionLayout& Of(const Region& region) const { return regions_.at(&region); }
  const RegionLayout& inputs() const { return inputs_; }
  // The layout of a frame without values, which only says where it stands.
  const RegionLayout& empty() const { return empty_; }
  // By input (ReadInputs).
  const std::vector<bool>& used_inputs() const { return used_inputs_; }
  // The operation that produces a result anywhere in the program; used for loops.
  const Op& ProducerOf(ValueId id) const { return *producers_.at(id); }
  // Whether it is looked at where it is read (PrimalReadsOf).
  bool IsPrimalRead(ValueId id) const {
    return id != ValueId::kNone && !primal_reads_.empty() && primal_reads_[Index(id)];
  }
  const DecidingTests& tests() const { return tests_; }
  // Null: it is none of AdditionsOf.
  const Addition* AdditionOf(ValueId id) const { return additions_.Of(id); }
  // Whether a predicate of a loop hangs on it (BehindPredicates).
  bool IsBehindPredicate(ValueId id) const {
    return id != ValueId::kNone && !behind_predicates_.empty() && behind_predicates_[Index(id)];
  }

 private:
  void Add(const Region& region);
  std::unordered_map<const Region*, RegionLayout> regions_;
  RegionLayout inputs_;
  RegionLayout empty_;
  std::vector<bool> used_inputs_;
  std::vector<bool> behind_predicates_;
  std::vector<bool> primal_reads_;
  DecidingTests tests_;
  Additions additions_;
  std::unordered_map<ValueId, const Op*> producers_;
};

struct LoopTape;

// The values of one execution of one region.
struct Frame {
  Frame(const RegionLayout& of, const Frame* around);
  ~Frame();
  Frame(Frame&&) noexcept;

  const RegionLayout* layout;
  const Frame* parent;                // of the enclosing region
  const Frame* primal = nullptr;      // adjoint frames: the taped frame of what is reversed
  std::vector<Array> values;          // by place
  std::map<ValueId, LoopTape> loops;  // executed in this region, by their first result
  // Radii of the values behind predicates: one for each element, or one for all.
  std::map<ValueId, std::vector<Radius>> radii;
  // Its place: flattened iteration of the loops around, flattened element of the mapped axes.
  int64_t iteration = 0;
  int64_t element = 0;
  std::string_view loop_site;  // of the innermost named loop around

  const Array& At(ValueId id) const;
  // The frame of the region that defines it, of those around.
  const Frame& HomeOf(ValueId id) const;
  void Set(ValueId id, Array value);
  const Radius& RadiusAt(ValueId id, size_t at) const;
  const LoopTape& LoopAt(ValueId first_result) const;
};

// One run of a loop: of the instance, or of one element of a mapped loop.
struct LoopRun {
  int64_t iterations = 0;
  int64_t last_test = 0;  // number of the last test evaluated; while only
  StopReason reason = StopReason::kConverged;
  std::unique_ptr<Frame> base;  // while only: the frame around, seen from this element
  Radius of_tests;              // while only: the least of its tests
  std::vector<Radius> radii;    // of the carried values, then of the mapped
  // By iteration; without recording only the latest.
  std::vector<std::unique_ptr<Frame>> tests;
  std::vector<std::unique_ptr<Frame>> bodies;
};

struct LoopTape {
  std::vector<LoopRun> runs;
};

}  // namespace simgrad::sim::reference
