#include "sim/backend/cpu/slot_references.h"

#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

class ReadCollector {
 public:
  explicit ReadCollector(std::set<int32_t>& slots) : slots_(slots) {}

  void Visit(const RegionPlan& region) {
    for (const Instruction& i : region.code) Visit(i);
  }

 private:
  void Add(int32_t slot) {
    if (slot >= 0) slots_.insert(slot);
  }
  void Add(const SlotPair& pair) {
    Add(pair.cotangent);
    Add(pair.mask);
  }
  void Add(const TestedPair& pair) {
    Add(pair.a);
    Add(pair.b);
    for (const TestedPair::Extra& extra : pair.extras) {
      Add(extra.slot);
      Add(extra.factor);
    }
  }

  void Visit(const Instruction& i) {
    for (int32_t slot : {i.a, i.b, i.c, i.d}) Add(slot);
    if (i.run == RunWhile) {
      const auto& plan = *static_cast<const WhilePlan*>(i.plan);
      for (const CarriedPlan& carried : plan.carried) Add(carried.operand);
      for (const CapturePlan& capture : plan.captures) {
        Add(capture.mapped_operand >= 0 ? capture.mapped_operand : capture.slot);
      }
      Add(plan.tested);
      Add(plan.entry_tested);
      for (int32_t slot : {plan.stop.a, plan.stop.b, plan.entry.a, plan.entry.b}) Add(slot);
      Visit(plan.test);
      Visit(plan.body);
    } else if (i.run == RunFor) {
      const auto& plan = *static_cast<const ForPlan*>(i.plan);
      for (const CarriedPlan& carried : plan.carried) Add(carried.operand);
      Visit(plan.body);
    } else if (i.run == RunEvent) {
      const auto& plan = *static_cast<const EventPlan*>(i.plan);
      Add(plan.tested);
      Add(plan.guard);
      Add(plan.result);
    } else if (i.run == RunRange) {
      const auto& plan = *static_cast<const RangePlan*>(i.plan);
      for (int32_t slot : {plan.source, plan.result, plan.where}) Add(slot);
    } else if (i.run == RunAccumulate) {
      const auto& plan = *static_cast<const AccumulatePlan*>(i.plan);
      for (int32_t slot : {plan.value, plan.by, plan.factor, plan.second_factor}) Add(slot);
      for (int32_t slot : {plan.mask, plan.where}) Add(slot);
    } else if (i.run == RunWhileVjp) {
      const auto& plan = *static_cast<const WhileVjpPlan*>(i.plan);
      for (const TravellingSlot& slot : plan.slots) Add(slot.operand);
      for (const SlotPair& pair : plan.outside) Add(pair);
      for (const VjpRegion* region :
           {&plan.body, &plan.test_inner, &plan.test_last, &plan.test_both}) {
        Visit(*region);
      }
    } else if (i.run == RunForVjp) {
      const auto& plan = *static_cast<const ForVjpPlan*>(i.plan);
      for (const TravellingSlot& slot : plan.slots) Add(slot.operand);
      Visit(plan.body);
    } else if (i.plan != nullptr && i.rows) {
      const auto& plan = *static_cast<const RowPlan*>(i.plan);
      for (int64_t row = 0; row < plan.rows; ++row) {
        if (plan.from[row] >= 0) Add(plan.slots[plan.operand[row]]);
      }
    }
  }

  void Visit(const VjpRegion& region) {
    Visit(region.region);
    for (const SlotPair& pair : region.yields) Add(pair);
  }

  std::set<int32_t>& slots_;
};

}  // namespace

void CollectReads(const RegionPlan& region, std::set<int32_t>& slots) {
  ReadCollector(slots).Visit(region);
}

}  // namespace simgrad::sim::cpu
