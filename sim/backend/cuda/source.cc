#include "sim/backend/cuda/source.h"

#include <algorithm>
#include <cctype>

#include "precision/hash.h"
#include "precision/rounding.h"
#include "sim/op/op_info.h"
#include "sim/program/detect.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

std::string Hexadecimal(uint64_t x) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(x >> shift) & 15];
  return text + "u";
}

// Letters, digits and underscores of a name, and of several in one list no two alike.
std::string Identifier(const std::string& name) {
  std::string identifier;
  for (char c : name) {
    identifier += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return identifier;
}

std::string AddIdentifier(const std::string& name, std::vector<std::string>& to) {
  std::string identifier = Identifier(name);
  while (std::find(to.begin(), to.end(), identifier) != to.end()) identifier += '_';
  to.push_back(identifier);
  return identifier;
}

// A field for every cotangent that some region may leave absent.
bool AlwaysPresent(const Region& region, size_t slot, size_t slots) {
  if (region.yields.size() < 2 * slots) return false;
  const size_t half = region.yields.size() / 2;
  return region.yields[slot] != ValueId::kNone && region.yields[half + slot] == ValueId::kNone;
}

}  // namespace

std::string LaneText(Format format) {
  constexpr std::string_view kNames[] = {"F64", "F32", "Bf16", "F16", "E4m3", "E5m2"};
  return std::string(kNames[static_cast<size_t>(format)]);
}

std::string OverflowText(Overflow overflow) {
  return overflow == Overflow::kIeee ? "Overflow::kIeee" : "Overflow::kSaturate";
}

std::string ComparedText(Comparison comparison, const std::string& a, const std::string& b) {
  // A comparison with NaN is false, `ne` too.
  if (comparison == Comparison::kNe) return Cat(a, " < ", b, " || ", a, " > ", b);
  constexpr std::string_view kSigns[] = {"<", "<=", ">", ">=", "=="};
  return Cat(a, " ", kSigns[static_cast<size_t>(comparison)], " ", b);
}

Carrier CarrierOf(const Value& value) {
  switch (value.type.element) {
    case ElementType::kI32:
      return Carrier::kI32;
    case ElementType::kI64:
      return Carrier::kI64;
    case ElementType::kBool:
      return Carrier::kBool;
    default:
      return value.format.value_or(Format::kF64) == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  }
}

std::string CTypeOf(Carrier carrier) {
  constexpr std::string_view kNames[] = {"float", "double", "int32_t", "int64_t", "bool"};
  return std::string(kNames[static_cast<size_t>(carrier)]);
}

Source::Source(const NumericalProgram& numerical, const GenerateOptions& options)
    : numerical_(numerical),
      mapping_(options.mapping),
      options_(options),
      state_inputs_(numerical.program.InputsOf(InputKind::kState)),
      used_(ReadInputs(numerical)),
      look_(LooksOf(numerical, numerical.adjoint ? LooksIn::kAll : LooksIn::kForward)) {
  for (const Site& site : numerical.sites) {
    const bool event = site.kind == SiteKind::kEvent;
    std::string tally = AddIdentifier(site.name, event ? event_names_ : termination_names_);
    sites_[site.name] = {site.number, std::move(tally), Hexadecimal(precision::Fnv1a64(site.name)),
                         site.elements};
  }
  for (int32_t input : state_inputs_) {
    const Input& state = program().inputs[static_cast<size_t>(input)];
    AddIdentifier(state.name, state_names_);
  }
  for (const Export& output : program().exports) AddIdentifier(output.name, export_names_);
  constant_.assign(program().values.size(), false);
  FindConstants(program().step);
  tape_.emplace(numerical, block(), constant_);
  AddFields();
  if (numerical.adjoint) AddAdjointFields();
}

void Source::FindConstants(const Region& region) {
  const auto constant = [&](ValueId id) {
    const Input* const input = InputOf(id);
    if (input == nullptr) return IsConstant(id);
    const bool varies = input->kind == InputKind::kState || input->kind == InputKind::kStep;
    return !varies && !per_step(IndexOf(*input)) && Count(id) == 1;
  };
  for (const Op& op : region.ops) {
    const OpClass op_class = InfoOf(op.code).op_class;
    const bool renames = op.code == OpCode::kBroadcast || op.code == OpCode::kReshape ||
                         op.code == OpCode::kStopGradient;
    const bool pure = op_class == OpClass::kElementwise || op_class == OpClass::kConstant ||
                      op.code == OpCode::kCast || renames;
    if (pure && op.attributes.where == ValueId::kNone && Count(op.results[0]) == 1) {
      constant_[Index(op.results[0])] =
          std::all_of(op.operands.begin(), op.operands.end(), constant);
    }
    for (const Region& nested : op.regions) FindConstants(nested);
  }
}

void Source::AddField(FieldKind kind, size_t index, Carrier carrier, int64_t elements,
                      bool per_step) {
  fields_.push_back({kind, static_cast<int32_t>(index), carrier, elements, per_step});
}

void Source::AddFields() {
  const Program& p = program();
  for (size_t k = 0; k < state_inputs_.size(); ++k) {
    const ValueId id = p.inputs[static_cast<size_t>(state_inputs_[k])].value;
    AddField(kState, k, CarrierOf(At(id)), Count(id));
  }
  for (size_t k = 0; k < p.exports.size(); ++k) {
    AddField(kExport, k, CarrierOf(At(p.exports[k].value)), Count(p.exports[k].value));
  }
  const bool wide = numerical_.policy[Role::kObjective].format == Format::kF64;
  if (!numerical_.objective.empty()) AddField(kCost, 0, wide ? Carrier::kF64 : Carrier::kF32, 1);
  AddField(kHealth, 0, Carrier::kI64, 1);
  AddField(kSignature, 0, Carrier::kI64, 1);
  for (const Site& site : numerical_.sites) {
    if (site.kind != SiteKind::kEvent) continue;
    const size_t index = static_cast<size_t>(site.number);
    AddField(kLastEvent, index, Carrier::kBool, site.elements);
    AddField(kFirstEvent, index, Carrier::kI64, 1);
  }
}

void Source::AddAdjointFields() {
  const Program& p = program();
  const Adjoint& adjoint = *numerical_.adjoint;
  const bool wide = numerical_.policy[Role::kAdjoint].format == Format::kF64;
  const Carrier cotangent = wide ? Carrier::kF64 : Carrier::kF32;
  const size_t n = state_inputs_.size();
  for (size_t k = 0; k < n; ++k) {
    const ValueId id = p.inputs[static_cast<size_t>(state_inputs_[k])].value;
    if (!IsReal(id)) continue;
    AddField(kCotangent, k, cotangent, Count(id));
    bool always = AlwaysPresent(adjoint.terminal, k, n);
    always = always && AlwaysPresent(adjoint.Last(), k, n) && AlwaysPresent(adjoint.inner, k, n);
    if (!always) AddField(kCotangentMask, k, Carrier::kBool, Count(id));
  }
  for (size_t k = 0; k < p.exports.size(); ++k) {
    const ValueId id = p.exports[k].value;
    if (!IsReal(id)) continue;
    AddField(kExportCotangent, k, cotangent, Count(id));
    AddField(kExportCotangentMask, k, Carrier::kBool, Count(id));
  }
  const bool wide_gradient = numerical_.policy[Role::kGradient].format == Format::kF64;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    if (!wanted(i)) continue;
    AddField(kGradient, i, wide_gradient ? Carrier::kF64 : Carrier::kF32, Count(p.inputs[i].value),
             per_step(i));
    AddField(kConnected, i, Carrier::kBool, 1);
  }
  AddField(kAdjointHealth, 0, Carrier::kI64, 1);
}

bool Source::wanted(size_t input) const {
  const std::vector<bool>& wanted = numerical_.adjoint_spec->wanted;
  return input < wanted.size() && wanted[input];
}

int Source::FieldOf(FieldKind kind, int32_t index) const {
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].kind == kind && fields_[i].index == index) return static_cast<int>(i);
  }
  return -1;
}

std::string Source::CType(ValueId id) const { return CTypeOf(CarrierOf(At(id))); }

std::string Source::Name(ValueId id) const {
  const std::string number = Cat("v", static_cast<int32_t>(id));
  return At(id).name.empty() ? number : Cat(number, "_", Identifier(At(id).name));
}

const Input* Source::InputOf(ValueId id) const {
  for (const Input& input : program().inputs) {
    if (input.value == id) return &input;
  }
  return nullptr;
}

size_t Source::Number(const void* owner, const std::vector<double>& values) {
  const auto [found, is_new] = number_of_.try_emplace(owner, numbers_.size());
  if (is_new) numbers_.insert(numbers_.end(), values.begin(), values.end());
  return found->second;
}

size_t Source::Integer(const void* owner, const std::vector<int64_t>& values) {
  const auto [found, is_new] = integer_of_.try_emplace(owner, integers_.size());
  if (is_new) integers_.insert(integers_.end(), values.begin(), values.end());
  return found->second;
}

int64_t Source::TakeWorkspace(int64_t bytes) {
  const int64_t at = workspace_;
  workspace_ += (bytes + 15) / 16 * 16;
  return at;
}

}  // namespace simgrad::sim::cuda
