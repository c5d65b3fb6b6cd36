// Writes the statements of regions into the body of one kernel.
//
// Values: one variable per value, under its number and name. A value of one element is a variable
//   of the thread. A value of several elements is an array of the thread or, in the block mapping
//   outside of mapped loops, spread over the threads of the block: element e lies in the workspace,
//   and thread e % blockDim.x computes and keeps it. A thread may read an element of another thread
//   only behind a barrier (CrossRead).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sim/backend/cuda/source.h"
#include "sim/program/loop.h"

namespace simgrad::sim::cuda {

enum class PlaceKind : uint8_t {
  kNone,
  kOne,      // an expression, the same for every element
  kPrivate,  // an array of the thread
  kSpread,   // a pointer into memory of the block, element by element a thread's own
  kFormula,  // an expression with # for the element
};

struct Place {
  PlaceKind kind = PlaceKind::kNone;
  std::string text;
  int64_t count = 1;
  std::string operator[](const std::string& index) const;
  bool set() const { return kind != PlaceKind::kNone; }
};

// What a region is run for.
struct RunMode {
  bool decides = false;  // records decisions
  bool looks = false;    // looks for non-finite results
  bool counts_ranges = false;
  enum class TapeUse : uint8_t { kNone, kMeter, kStore } tape = TapeUse::kNone;
  std::string time = "0";       // of the step input
  std::string read_time = "0";  // of inputs per step
};

// A cotangent and its mask while they travel. Without a place the cotangent is never present;
// without a place of its mask it is present everywhere.
struct SlotPlace {
  Place cotangent;
  Place mask;
};

class RegionWriter {
 public:
  explicit RegionWriter(Source& source)
      : source_(source), places_(source.program().values.size()) {}
  virtual ~RegionWriter() = default;

 protected:
  using Indexed = std::function<std::string(const std::string& index)>;

  // ---- statements (region_writer.cc) ----
  void RunRegion(const Region& region);  // operations only; arguments have places
  void Line(std::string_view line) { body_.Line(line); }
  void Barrier();
  // Before elements of others are read (of any of the places).
  void CrossRead(const std::vector<Place>& places);
  // Before spread memory that may have been read across is written again.
  void Rewrite(const Place& place);
  Place NewVariable(const std::string& name, Carrier carrier, int64_t count);
  // Runs `statement` for every element that the place's thread owns.
  void EachElement(const Place& place, const Indexed& statement);
  void Copy(const Place& to, const Place& from);
  // to[k] = from[k] at once, though one may be another's source.
  void CopyAtOnce(const std::vector<Place>& to, const std::vector<Place>& from,
                  const std::vector<Carrier>& carriers);
  bool Spreads(int64_t count) const { return source_.block() && !in_element_ && count > 1; }
  // The one thread that speaks for the instance, or the thread of an element.
  std::string Speaks() const { return source_.block() && !in_element_ ? "speaks" : ""; }
  std::string Speaking(const std::string& condition) const;

  // ---- what stays with an instance (group_text.cc) ----
  // A variable of the instance, to be assigned in instance_: "T name", or, where a thread has
  // several instances, "name", a member of each. An array: with `count` elements.
  std::string Opening(const std::string& type, const std::string& name);
  void KeepArray(TextWriter& text, const std::string& type, const std::string& name, int64_t count);
  // Casts of a step that give the same at every step, because their operand does. What they count
  // is kept where only the end shows for how many steps.
  void FindConstantCasts(const Region& step, bool keep_ranges);
  void ConstantCast(const Op& op);
  // Whether what is constant is computed once, before the steps of an instance.
  bool hoists_ = false;
  void Hoist(const Op& op);

  // ---- values ----
  const Place& PlaceOf(ValueId id);
  void SetPlace(ValueId id, Place place) { places_[Index(id)] = std::move(place); }
  Place InputPlace(const Input& input);
  Place InstanceInput(const Input& input);
  void Define(ValueId id, const std::string& comment, const Indexed& value);
  void Look(ValueId id, ValueId where);
  void LookAt(const Place& place, ValueId where);
  std::string Executed(ValueId where, int64_t count, const std::string& index);
  std::string CommentOf(const Op& op) const;

  // ---- operations (operation_text.cc, shape_text.cc) ----
  void Operation(const Op& op);
  void Elementwise(const Op& op);
  void Literal(const Op& op);
  void Cast(const Op& op);
  std::string RoundText(const Op& cast, const std::string& x) const;
  void Convert(const Op& op);
  void Merge(const Op& op);
  void CountRanges(const Op& op, Format from, Format to, const Indexed& x, const Indexed& r,
                   ValueId result);
  void Alias(const Op& op);
  void Broadcast(const Op& op);
  void Slice(const Op& op);
  void Pad(const Op& op);
  void Concat(const Op& op);
  void Reduction(const Op& op);
  void ReduceToOne(const Op& op, const std::string& call, const std::string& pairwise);
  void Cumsum(const Op& op);

  // ---- sites (site_text.cc) ----
  void Event(const Op& op);
  std::string DistanceText(ValueId lhs, ValueId rhs, const Region& region,
                           const std::string& index);
  std::string ExtraMagnitude(ValueId id, const Region& region, const std::string& index);
  void EntryRecord(const Op& op, const std::string& id, const Region& test);
  void RecordTest(const Op& op, const std::string& id, const std::string& distance,
                  const std::string& ends);
  void TestRecord(const Op& op, const std::string& id, const Region& test);
  void EndRecord(const Op& op, const std::string& id);

  // ---- loops (loop_text.cc) ----
  void While(const Op& op);
  void WhileRun(const Op& op, const std::vector<Place>& carried, const std::vector<Place>& mapped,
                const std::vector<Place>& exports, const std::string& id, const std::string& run);
  Place NewJoined(const std::string& name, Carrier carrier, int64_t count);
  Place TakeJoined(const Place& joined, Carrier carrier);
  void MappedWhile(const Op& op, const std::string& id);
  void For(const Op& op);
  void RunTest(const Op& op, const std::vector<Place>& carried, const std::vector<Place>& mapped,
               const std::vector<Place>& exports, const std::string& id);
  void RunBody(const Op& op, const std::vector<Place>& carried, const std::vector<Place>& mapped,
               const std::vector<Place>& exports);
  void BindArgs(const Region& region, std::initializer_list<const std::vector<Place>*> lists);
  void StopAtCap(const Op& op, const std::string& id);
  void OpenIteration(const std::string& head);
  void CloseIteration();
  std::string CapOf(const Op& op);
  // One element of a value over a leading axis of n.
  Place ElementOf(const Place& whole, int64_t n, const std::string& element) const;
  // The loop over the elements of a mapped while; `inside` writes what one element does.
  void EachMapped(int64_t n, const std::string& element, bool in_order,
                  const std::function<void()>& inside);

  void StopTests(const Op& op, const std::string& id, const Region& test);

  // ---- the tape (tape_text.cc) ----
  bool UsesTape() const { return mode_.tape != RunMode::TapeUse::kNone; }
  // The frames of one run of a loop, while it is recorded.
  struct Chain {
    const TapeLoop* record = nullptr;  // null: it is not
    std::string position;              // variable: the first frame's, or (chained) the last's
  };
  Chain OpenChain(const Op& op, const std::string& id);
  void CloseChain(const Op& op, const Chain& chain, const std::string& run,
                  const std::string& iterations);
  void OpenFrame(const Region& region, const Chain& chain);
  void OpenTopFrame(const Region& region, const std::string& link);
  void StoreTaped(ValueId id);
  void StoreTapedIn(const Region& region, ValueId id);
  void StoreTapedArgs(const Region& region);
  std::string TakeUnits(int64_t units) const;

  // ---- adjoint (adjoint_text.cc) ----
  void Tape(const Op& op);
  void Accumulate(const Op& op);
  void WhileVjp(const Op& op);
  void ForVjp(const Op& op);
  void ReverseRegion(const Region& region, const Region& primal, const std::string& position,
                     size_t leading, const std::vector<SlotPlace>& args,
                     const std::vector<SlotPlace>& yields);
  SlotPlace NewSlot(const std::string& name, std::initializer_list<ValueId> types);
  SlotPlace ReadSlot(const SlotList& list, size_t k);
  void InitSlot(const SlotPlace& to, const SlotPlace& from);
  void BindSlots(std::span<const ValueId> args, const std::vector<SlotPlace>& slots);
  void YieldSlots(const Region& region, const std::vector<SlotPlace>& to);
  std::vector<SlotPlace> ReverseWhile(const Op& op, const Op& loop, const TapeLoop& record,
                                      const std::string& frame, const std::vector<SlotPlace>& given,
                                      const std::string& id, const std::string& run);
  struct ReverseLoop;
  void InitMoving(ReverseLoop& reverse, const std::vector<SlotPlace>& given);
  void StepBack(const ReverseLoop& reverse);
  void ReverseIteration(const ReverseLoop& reverse, const std::string& i);
  void EndIteration();
  void JoinResults(const Op& op, const std::vector<SlotPlace>& slots);
  std::string RangesOf(Role role);
  static std::string RangesName(Role role) { return Cat("ranges_", precision::RoleName(role)); }

  Source& source_;
  TextWriter kernel_{1};    // before all instances
  TextWriter instance_{2};  // before all steps of an instance
  TextWriter body_{2};
  RunMode mode_;
  std::vector<Place> places_;
  std::map<const Op*, std::string> caps_;
  std::map<const Region*, std::string> frames_;  // variable with the frame's position
  std::vector<const Region*> regions_;           // being written, outermost first
  const Region* adjoint_of_ = nullptr;           // top region of the primal that is reversed
  static constexpr std::string_view kFirst = "int64_t{0}";
  std::string iteration_{kFirst};  // flattened, of the loops around
  std::string element_{kFirst};
  bool in_element_ = false;    // inside a mapped loop: everything is the thread's own
  bool dirty_ = true;          // spread memory was written since the last barrier
  bool crossed_ = true;        // elements of others were read since
  std::set<int> range_roles_;  // with a tally in this kernel
  // Whether a thread takes several instances through a step before the next, and what it keeps of
  // each meanwhile; `count` 0: no array.
  struct Kept {
    std::string type, name;
    int64_t count = 0;
  };
  bool groups_ = false;
  bool keep_constant_ranges_ = false;
  std::vector<Kept> kept_;
  std::set<const Op*> constant_casts_;
  std::set<ValueId> only_cast_;            // inputs that nothing but constant casts reads
  std::set<int> constant_roles_;           // whose ranges they count
  std::map<size_t, SlotPlace> gradients_;  // by input: sum, connected
};

}  // namespace simgrad::sim::cuda
