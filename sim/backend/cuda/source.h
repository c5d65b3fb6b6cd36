// What the kernels of one text share: the program, its tables of numbers, its fields, its tape.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/backend/cuda/generate.h"
#include "sim/backend/cuda/tape_layout.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {

struct SiteText {
  int32_t index = 0;  // among the sites of its kind
  std::string name;   // as part of an identifier
  std::string hash;   // FNV-1a of the name, as a literal
  int64_t elements = 1;
};

class Source {
 public:
  Source(const NumericalProgram& numerical, const GenerateOptions& options);

  const NumericalProgram& numerical() const { return numerical_; }
  const Program& program() const { return numerical_.program; }
  bool block() const { return mapping_ == Mapping::kBlockPerInstance; }
  Recording recording() const { return options_.recording; }
  const TapeLayout& tape() const { return *tape_; }
  const std::vector<int32_t>& state_inputs() const { return state_inputs_; }
  // Parts of identifiers.
  const std::string& StateName(size_t state) const { return state_names_[state]; }
  const std::string& ExportName(size_t index) const { return export_names_[index]; }
  const std::string& TerminationName(int site) const {
    return termination_names_[static_cast<size_t>(site)];
  }
  const std::string& EventName(int site) const { return event_names_[static_cast<size_t>(site)]; }

  // Of a value.
  const Value& At(ValueId id) const { return numerical_.program[id]; }
  int64_t Count(ValueId id) const { return ElementCount(At(id).type.shape); }
  bool IsReal(ValueId id) const { return At(id).type.element == ElementType::kReal; }
  Format FormatOf(ValueId id) const { return At(id).format.value_or(Format::kF64); }
  std::string CType(ValueId id) const;
  std::string Name(ValueId id) const;  // "v12_x", or "v12"
  bool look(ValueId id) const { return look_[Index(id)]; }

  // Of an input.
  bool used(size_t input) const { return used_[input]; }
  bool per_step(size_t input) const {
    return input < options_.per_step.size() && options_.per_step[input];
  }
  bool wanted(size_t input) const;
  // One number, the same at every step of an instance, and found again from its inputs.
  bool IsConstant(ValueId id) const { return constant_[Index(id)]; }
  const Input* InputOf(ValueId id) const;
  size_t IndexOf(const Input& input) const {
    return static_cast<size_t>(&input - numerical_.program.inputs.data());
  }

  // The places of numbers in the tables; asked again for the same owner, the same place.
  size_t Number(const void* owner, const std::vector<double>& values);
  size_t Integer(const void* owner, const std::vector<int64_t>& values);
  const std::vector<double>& numbers() const { return numbers_; }
  const std::vector<int64_t>& integers() const { return integers_; }

  // Fields.
  const std::vector<Field>& fields() const { return fields_; }
  int FieldOf(FieldKind kind, int32_t index = 0) const;  // -1: there is none
  bool HasCotangentMask(size_t state) const {
    return FieldOf(FieldKind::kCotangentMask, static_cast<int32_t>(state)) >= 0;
  }

  const SiteText& SiteOf(const std::string& name) const { return sites_.at(name); }
  int terminations() const { return static_cast<int>(termination_names_.size()); }
  int events() const { return static_cast<int>(event_names_.size()); }
  int real_states() const { return static_cast<int>(RealStates(numerical_.program)); }

  // Bytes of the workspace of a block, 16-byte aligned; the offset of what was taken.
  int64_t TakeWorkspace(int64_t bytes);
  int64_t workspace_bytes() const { return workspace_; }
  int NextId() { return next_id_++; }

 private:
  void FindConstants(const Region& region);
  void AddFields();
  void AddAdjointFields();
  void AddField(FieldKind kind, size_t index, Carrier carrier, int64_t elements,
                bool per_step = false);

  const NumericalProgram& numerical_;
  Mapping mapping_;
  GenerateOptions options_;
  std::vector<int32_t> state_inputs_;
  std::vector<bool> used_;
  std::vector<bool> look_;
  std::vector<bool> constant_;
  std::vector<Field> fields_;
  std::map<std::string, SiteText> sites_;
  std::vector<std::string> state_names_, export_names_, termination_names_, event_names_;
  std::vector<double> numbers_;
  std::vector<int64_t> integers_;
  std::unordered_map<const void*, size_t> number_of_, integer_of_;
  std::optional<TapeLayout> tape_;  // set once the constants are known
  int64_t workspace_ = 0;
  int next_id_ = 0;
};

Carrier CarrierOf(const Value& value);
std::string CTypeOf(Carrier carrier);
std::string FormatText(Format format);  // "Format::kF32"
std::string LaneText(Format format);    // "F32", an alias of Lane<Format::kF32>
std::string OverflowText(Overflow overflow);
std::string ComparedText(Comparison comparison, const std::string& a, const std::string& b);

}  // namespace simgrad::sim::cuda
