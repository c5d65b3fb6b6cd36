// One operation of a region while its entry lowers it.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "sim/op/lowering.h"
#include "sim/plan/region_maker.h"

namespace simgrad::sim::plan {

class OperationLowering final : public Lowering {
 public:
  OperationLowering(RegionMaker& maker, const Op& op);

  void Rearrange(const std::vector<Along>& axes) override;
  void Reshape() override;
  Memory Operand(size_t operand) override;
  Memory Result() override;
  Memory Local(Carrier carrier, Shape shape, const std::string& name) override;
  Memory Table(const std::vector<int64_t>& numbers) override;
  Memory Window(const Memory& memory, const Shape& shape, const std::vector<Along>& axes) override;
  Memory Split(const Memory& memory, const Shape& shape) override;
  void Copy(const Memory& to, const Memory& from) override;
  void Fill(const Memory& to, Number number) override;
  Number Load(const Memory& from, const Places& at) override;
  void Store(const Memory& to, const Places& at, Number number) override;
  using Lowering::Load;
  using Lowering::Store;
  Number Call(const std::string& function, Carrier carrier, std::vector<Number> operands) override;
  Number Integer(Carrier carrier, int64_t number) override;
  Number Real(double number, const Value& like) override;
  Number Iteration() override;
  Number MappedElement() override;
  void Each(int64_t extent, bool parallel, const std::function<void(Number)>& body) override;
  void EachTo(Number extent, const std::function<void(Number)>& body) override;
  Number Sum(const Memory& line, Format of) override;
  bool Recall(const std::string& name, Memory* memory) override;
  void Keep(const std::string& name, const Memory& memory) override;
  void GiveMemory(const Memory& memory) override;

  // Behind the rule: the result is that of the operation.
  void Finish();

 private:
  Memory Add(View view);
  const View& ViewOf(const Memory& memory) const { return views_[static_cast<size_t>(memory.id)]; }
  Index IndexOf(const View& view, const Places& at);

  RegionMaker& maker_;
  std::vector<View> views_;
  int32_t result_ = -1;
  bool is_bound_ = false;
};

}  // namespace simgrad::sim::plan
