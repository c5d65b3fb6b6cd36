// What a thread keeps of each of its instances, where it takes several of them through a step.
//
// Why: what a block records of a step is joined over its threads once for all of them.
#include <algorithm>
#include <utility>

#include "sim/backend/cuda/kernel_writer.h"

namespace simgrad::sim::cuda {
namespace {

// Of one thread, in memory that its multiprocessor caches. The driver reserves it for all threads
// that can be resident: on the largest devices a GiB for 4 KiB.
constexpr int64_t kGroupBytes = 640;
constexpr int64_t kLargestGroup = 8;  // more makes little less of what is done once a step

int64_t BytesOf(const std::string& type) {
  if (type == "bool") return 1;
  if (type == "float" || type == "int32_t" || type == "uint32_t") return 4;
  if (type == "RangeTally") return 16;
  return type == "InstanceTally" ? 24 : 8;
}

void MarkUsesBut(const Region& region, const std::set<const Op*>& but, std::set<ValueId>& used) {
  for (const Op& op : region.ops) {
    if (but.contains(&op)) continue;
    used.insert(op.operands.begin(), op.operands.end());
    for (const Region& nested : op.regions) MarkUsesBut(nested, but, used);
  }
  used.insert(region.yields.begin(), region.yields.end());
}

}  // namespace

std::string RegionWriter::Opening(const std::string& type, const std::string& name) {
  if (!groups_) return Cat(type, " ", name);
  kept_.push_back({type, name});
  return name;
}

void RegionWriter::KeepArray(TextWriter& text, const std::string& type, const std::string& name,
                             int64_t count) {
  if (groups_) {
    kept_.push_back({type, name, count});
  } else {
    text.Line(Cat(type, " ", name, "[", count, "];"));
  }
}

void RegionWriter::FindConstantCasts(const Region& step, bool keep_ranges) {
  keep_constant_ranges_ = keep_ranges;
  std::set<ValueId> inputs;
  for (const Op& op : step.ops) {
    if (op.code != OpCode::kCast || !source_.IsConstant(op.results[0])) continue;
    // The same for all instances: the compiler sees that.
    const Input* const input = source_.InputOf(op.operands[0]);
    if (input == nullptr || input->kind == InputKind::kConfig) continue;
    constant_casts_.insert(&op);
    inputs.insert(input->value);
  }
  std::set<ValueId> otherwise;
  MarkUsesBut(step, constant_casts_, otherwise);
  for (ValueId id : inputs) {
    if (!otherwise.contains(id)) only_cast_.insert(id);
  }
}

void RegionWriter::ConstantCast(const Op& op) {
  const ValueId id = op.results[0];
  const std::string from = PlaceOf(op.operands[0])["0"];
  const std::string name = source_.Name(id);
  instance_.Line(
      Cat(Opening(source_.CType(id), name), " = ", RoundText(op, from), ";", CommentOf(op)));
  SetPlace(id, {PlaceKind::kOne, name, 1});
  const Format to = source_.FormatOf(id);
  if (!mode_.counts_ranges || !precision::Narrows(source_.FormatOf(op.operands[0]), to)) return;
  const std::string ranges = Cat("constant_", RangesOf(op.role));
  if (constant_roles_.insert(static_cast<int>(op.role)).second) {
    if (keep_constant_ranges_) {
      kept_.push_back({"RangeTally", ranges});
    } else {
      instance_.Line(Cat("RangeTally ", ranges, ";"));
    }
  }
  instance_.Line(
      Cat("if (counts) CountRange<", FormatText(to), ">(", ranges, ", ", from, ", ", name, ");"));
}

void RegionWriter::Hoist(const Op& op) {
  for (ValueId operand : op.operands) PlaceOf(operand);  // inputs are read before
  std::swap(body_, instance_);
  Operation(op);
  std::swap(body_, instance_);
}

int64_t KernelWriter::GroupSize() const {
  int64_t bytes = 0;
  for (const Kept& kept : kept_) bytes += std::max<int64_t>(kept.count, 1) * BytesOf(kept.type);
  return std::clamp<int64_t>(kGroupBytes / std::max<int64_t>(bytes, 1), 1, kLargestGroup);
}

std::string KernelWriter::MemberText() const {
  if (!groups_) return "";
  TextWriter text;
  text.Line("// What a thread keeps of an instance while it takes others through a step.");
  text.Open("struct Member");
  for (const Kept& kept : kept_) {
    text.Line(Cat(kept.type, " ", kept.name, kept.count > 0 ? Cat("[", kept.count, "]") : "", ";"));
  }
  text.Close("};");
  return text.text() + "\n";
}

std::string KernelWriter::OverGroup(const std::string& inside, int depth) const {
  if (!groups_) return inside;
  TextWriter text(depth);
  text.Line("#pragma unroll 1");
  text.Open("for (int m = 0; m < members; ++m)");
  text.Line("const int64_t place = pass + m * lanes + threadIdx.x;");
  text.Line("[[maybe_unused]] const bool live = place < args.instances;");
  text.Line("[[maybe_unused]] const int64_t instance = live ? place : args.instances - 1;");
  for (const Kept& kept : kept_) {
    const std::string name =
        kept.count > 0 ? Cat("(&", kept.name, ")[", kept.count, "]") : Cat("& ", kept.name);
    text.Line(Cat("[[maybe_unused]] ", kept.type, kept.count > 0 ? " " : "", name, " = group[m].",
                  kept.name, ";"));
  }
  text.Raw(inside);
  text.Close();
  return text.text();
}

}  // namespace simgrad::sim::cuda
