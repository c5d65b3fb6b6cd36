// The state that travels with a group of instances from step to step: fields of the plan, and what
// was found of each lane.
//
// Layout: field after field, each [element][lane]; a bool is -1 or 0 in 32 bits. Threads: data;
//   groups are written side by side.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/backend/compiled/group/lane_memory.h"
#include "sim/backend/executor.h"
#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::compiled {

// The places of a group's fields.
class FieldLayout {
 public:
  FieldLayout(const std::vector<plan::Field>& fields, int lanes);
  int64_t bytes() const { return bytes_; }
  int64_t offset(size_t field) const { return offsets_[field]; }
  int lanes() const { return lanes_; }

 private:
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
  int lanes_;
};

// Fields of a plan that travel; those behind them are cotangents.
size_t TravellingFields(const plan::Plan& plan);

// Offsets of the parts of a group's state, in bytes. The fields come first.
struct GroupLayout {
  GroupLayout(const plan::Plan& plan, int lanes);
  int64_t health = 0;  // the end of the fields, too
  int64_t signatures = 0;
  int64_t first_events = 0;
  int64_t last_events = 0;
  int64_t bytes = 0;  // of whole cache lines
};

// The states of all groups, in one piece of memory. It is empty until it is cleared or restored.
class GroupStates {
 public:
  GroupStates(const plan::Plan& plan, int lanes, int64_t groups);

  std::byte* fields(int64_t group) { return At(group); }
  const std::byte* fields(int64_t group) const { return At(group); }
  int64_t field_bytes() const { return layout_.health; }
  // As GroupArgs.
  std::span<int64_t> health(int64_t group) { return PartOf<int64_t>(At(group), layout_.health); }
  std::span<const int64_t> health(int64_t group) const {
    return PartOf<const int64_t>(At(group), layout_.health);
  }
  std::span<uint64_t> signatures(int64_t group) {
    return PartOf<uint64_t>(At(group), layout_.signatures);
  }
  std::span<const uint64_t> signatures(int64_t group) const {
    return PartOf<const uint64_t>(At(group), layout_.signatures);
  }
  int64_t* first_events(int64_t group) {
    return reinterpret_cast<int64_t*>(At(group) + layout_.first_events);
  }
  const int64_t* first_events(int64_t group) const {
    return reinterpret_cast<const int64_t*>(At(group) + layout_.first_events);
  }
  std::byte* last_events(int64_t group) { return At(group) + layout_.last_events; }

  // Nothing was found, and fields are zero. These throw StopRequested.
  void Clear(WorkMeter& meter);
  LaneMemory Save(WorkMeter& meter) const;
  void Restore(const LaneMemory& saved, WorkMeter& meter);

 private:
  int64_t bytes() const { return groups_ * layout_.bytes; }
  template <class T, class Byte>
  std::span<T> PartOf(Byte* group, int64_t offset) const {
    return {reinterpret_cast<T*>(group + offset), static_cast<size_t>(lanes_)};
  }
  std::byte* At(int64_t group) { return memory_.data() + group * layout_.bytes; }
  const std::byte* At(int64_t group) const { return memory_.data() + group * layout_.bytes; }

  const GroupLayout layout_;
  const int lanes_;
  const int64_t groups_;
  const int64_t events_;
  LaneMemory memory_;
};

// One number of a field, read and written as the plan carries it.
double ReadReal(const std::byte* field, plan::Carrier carrier, int64_t i);
void WriteReal(std::byte* field, plan::Carrier carrier, int64_t i, double x);
int64_t ReadInteger(const std::byte* field, plan::Carrier carrier, int64_t i);
void WriteInteger(std::byte* field, plan::Carrier carrier, int64_t i, int64_t n);

}  // namespace simgrad::sim::compiled
