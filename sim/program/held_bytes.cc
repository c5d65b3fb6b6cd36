#include "sim/program/held_bytes.h"

#include <algorithm>
#include <string>
#include <vector>

namespace simgrad::sim {
namespace {

// A block of the heap: a header of 8 bytes, rounded up to 16, at least 32 (glibc).
int64_t Block(size_t bytes) {
  if (bytes == 0) return 0;
  return std::max<int64_t>(32, static_cast<int64_t>((bytes + 8 + 15) / 16 * 16));
}

// Characters inside the object itself need no block.
int64_t Outside(const std::string& text) {
  const char* object = reinterpret_cast<const char*>(&text);
  const bool inside = text.data() >= object && text.data() < object + sizeof text;
  return inside ? 0 : Block(text.capacity() + 1);
}

template <typename T>
int64_t Outside(const std::vector<T>& plain) {
  return Block(plain.capacity() * sizeof(T));
}

int64_t Outside(const std::vector<bool>& bits) { return Block(bits.capacity() / 8); }

int64_t Outside(const Op& op) {
  const Attributes& a = op.attributes;
  return Outside(op.site) + Outside(op.operands) + Outside(op.results) + Outside(op.regions) +
         Outside(op.label) + Outside(a.literal) + Outside(a.axes) + Outside(a.start) +
         Outside(a.shape) + Outside(a.dims) + Outside(a.site);
}

int64_t Outside(const Region& region) {
  int64_t bytes = Outside(region.args) + Outside(region.yields) + Outside(region.ops);
  for (const Op& op : region.ops) {
    bytes += Outside(op);
    for (const Region& nested : op.regions) bytes += Outside(nested);
  }
  return bytes;
}

int64_t Outside(const Value& value) { return Outside(value.type.shape) + Outside(value.name); }

int64_t Outside(const Program& program) {
  int64_t bytes = Outside(program.name) + Outside(program.values) + Outside(program.inputs) +
                  Outside(program.exports) + Outside(program.objectives) +
                  Outside(program.initial) + Outside(program.step);
  for (const Value& value : program.values) bytes += Outside(value);
  for (const Input& input : program.inputs) {
    bytes += Outside(input.name) + Outside(input.description);
  }
  for (const Export& exported : program.exports) bytes += Outside(exported.name);
  for (const Objective& objective : program.objectives) {
    bytes += Outside(objective.name) + Outside(objective.stage) + Outside(objective.terminal);
  }
  return bytes;
}

int64_t Outside(const precision::Policy& policy) {
  int64_t bytes = Outside(policy.preset) + Outside(policy.sites);
  for (const auto& [site, settings] : policy.sites) bytes += Outside(site);
  return bytes;
}

int64_t Outside(const PathLayout& path) {
  int64_t bytes = Outside(path.structure) + Outside(path.columns);
  for (const PathColumn& column : path.columns) {
    bytes += Outside(column.site) + Outside(column.shape) + Outside(column.loops);
  }
  return bytes;
}

}  // namespace

int64_t OwnBytes(const Op& op) { return static_cast<int64_t>(sizeof(Op)) + Outside(op); }

int64_t OwnBytes(const Value& value) {
  return static_cast<int64_t>(sizeof(Value)) + Outside(value);
}

int64_t HeldBytes(const Program& program) {
  return static_cast<int64_t>(sizeof(Program)) + Outside(program);
}

int64_t HeldBytes(const NumericalProgram& numerical) {
  int64_t bytes = static_cast<int64_t>(sizeof numerical) + Outside(numerical.program) +
                  Outside(numerical.policy) + Outside(numerical.objective) +
                  Outside(numerical.text) + Outside(numerical.fingerprint) +
                  Outside(numerical.forward_fingerprint) + Outside(numerical.sites) +
                  Outside(numerical.deciding_tests) + Outside(numerical.halts) +
                  Outside(numerical.infinite);
  for (const std::string& name : numerical.halts) bytes += Outside(name);
  for (const Site& site : numerical.sites) bytes += Outside(site.name);
  for (const std::string& name : numerical.deciding_tests) bytes += Outside(name);
  if (numerical.adjoint_spec) {
    const AdjointSpec& spec = *numerical.adjoint_spec;
    bytes += Outside(spec.objective) + Outside(spec.final_state) + Outside(spec.trajectory_state) +
             Outside(spec.trajectory_export) + Outside(spec.wanted) + Outside(spec.loops);
    for (const LoopChoice& loop : spec.loops) bytes += Outside(loop.site);
  }
  if (numerical.path) bytes += Outside(*numerical.path);
  if (numerical.adjoint) {
    for (const Region* region : RegionsOf(*numerical.adjoint)) bytes += Outside(*region);
    bytes += Outside(numerical.adjoint->told);
    for (const std::string& site : numerical.adjoint->told) bytes += Outside(site);
  }
  return bytes;
}

}  // namespace simgrad::sim
