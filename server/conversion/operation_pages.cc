#include "server/conversion/operation_pages.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "sim/op/op_info.h"

namespace simgrad::server::conversion {
namespace {

using sim::Attribute;
using sim::OpClass;
using sim::OpInfo;

// ---- The table of docs/programs.md ----

std::string OperandCell(const OpInfo& info) {
  return absl::StrReplaceAll(std::string(info.operands.names), {{"?", " (may be left out)"}});
}

// ---- Methods of the Python builder ----

constexpr const char* kHead =
    R"(# Printed from sim/op by simgrad-operations --python; a test holds it to the table.
"""One method per operation that a world may use; `simgrad.program` adds inputs and control flow."""

from __future__ import annotations

from typing import Any, Sequence

from .operation_writer import BOOL, I32, Expression, OperationWriter


class Operations(OperationWriter):
    """The operations of docs/programs.md, by name.

    Operands are expressions or numbers; a scalar is widened to the shape of the others. A method
    returns the result and raises ValueError for shapes that do not meet; all else is verified by
    the server.
    """
)";

std::string MethodName(const OpInfo& info) {
  const std::string name(info.name);
  const bool keyword = name == "and" || name == "or" || name == "not";
  return keyword ? name + "_" : name;
}

std::vector<std::string> OperandNames(const OpInfo& info) {
  std::vector<std::string> names =
      absl::StrSplit(std::string(info.operands.names), ", ", absl::SkipEmpty());
  if (!names.empty() && names.back() == "...") return {"*operands"};
  return names;
}

bool MayBeLeftOut(const std::string& operand) { return absl::EndsWith(operand, "?"); }
std::string Bare(const std::string& operand) { return operand.substr(0, operand.find('?')); }

// How an attribute is given, and how it is handed on.
struct Parameter {
  Attribute attribute;
  const char* declared;
  const char* passed;
};
constexpr Parameter kParameters[] = {
    {Attribute::kStart, "start: Sequence[int]", "start=start"},
    {Attribute::kShape, "shape: Sequence[int]", "shape=shape"},
    {Attribute::kDims, "dims: Sequence[int]", "dims=dims"},
    {Attribute::kTarget, "format: str = \"e4m3\"", "format=format"},
    {Attribute::kAxes, "axes: int | Sequence[int] | None = None", "axes=axes"},
    {Attribute::kFormat, "format: str = \"\"", "format=format"},
    {Attribute::kOverflow, "overflow: str = \"\"", "overflow=overflow"},
    {Attribute::kRounding, "rounding: str = \"\"", "rounding=rounding"},
    {Attribute::kReverse, "reverse: bool = False", "reverse=reverse"},
    {Attribute::kStride, "stride: Sequence[int] = ()", "stride=stride"},
    {Attribute::kInterior, "interior: Sequence[int] = ()", "interior=interior"},
    {Attribute::kIndices, "indices: Sequence[int]", "indices=indices"},
    {Attribute::kFill, "fill: float = 0.0", "fill=fill"},
    {Attribute::kBounds, "bounds: str = \"clip\"", "bounds=bounds"},
    {Attribute::kCombine, "combine: str = \"add\"", "combine=combine"},
    {Attribute::kUpper, "upper: bool = False", "upper=upper"},
    {Attribute::kTransposed, "transposed: bool = False", "transposed=transposed"},
    {Attribute::kUnit, "unit: bool = False", "unit=unit"},
};

// The method of OperationWriter that knows the type of the result.
std::string WriterOf(const OpInfo& info) {
  const bool of_one = info.operands.IsFixed() && info.operands.most == 1;
  const bool computes = info.op_class == OpClass::kIndexing || info.op_class == OpClass::kLinear;
  if (computes || (info.op_class == OpClass::kShape && !info.attributes.Has(Attribute::kShape) &&
                   info.operands.IsFixed())) {
    return "_array";
  }
  if (info.attributes.Has(Attribute::kTarget)) return "_quantized";
  if (info.attributes.Has(Attribute::kShape)) return of_one ? "_reshaped" : "_array";
  if (info.operands.most < 0) return "_joined";
  if (info.op_class == OpClass::kReduction) {
    return info.attributes.Has(Attribute::kReverse) ? "_scanned" : "_reduced";
  }
  return info.result == sim::Result::kDeclared ? "_converted" : "_elementwise";
}

std::string Element(const OpInfo& info) {
  switch (info.result) {
    case sim::Result::kOperand:
      return "None";
    case sim::Result::kBool:
      return "BOOL";
    case sim::Result::kI32:
      return "I32";
    case sim::Result::kDeclared:
      return "element";
  }
  return "";
}

// Lines of at most 88 characters behind `indent`.
std::string Wrapped(const std::string& text, const std::string& indent) {
  std::string out;
  size_t column = 0;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column > 0 && column + 1 + word.size() > 80) {
      absl::StrAppend(&out, "\n", indent);
      column = 0;
    }
    absl::StrAppend(&out, column > 0 ? " " : "", word);
    column += word.size() + 1;
  }
  return out;
}

std::string Method(const OpInfo& info) {
  const std::vector<std::string> operands = OperandNames(info);
  std::vector<std::string> parameters = {"self"};
  for (const std::string& operand : operands) {
    if (!MayBeLeftOut(operand)) parameters.push_back(operand + ": Any");
  }
  std::vector<std::string> arguments = {absl::StrCat("\"", std::string(info.name), "\""),
                                        Element(info)};
  for (const std::string& operand : operands) arguments.push_back(Bare(operand));
  if (info.result == sim::Result::kDeclared) parameters.push_back("element: int");
  for (const Parameter& parameter : kParameters) {
    if (!info.attributes.Has(parameter.attribute)) continue;
    parameters.push_back(parameter.declared);
    arguments.push_back(parameter.passed);
  }
  for (const std::string& operand : operands) {
    if (MayBeLeftOut(operand)) parameters.push_back(Bare(operand) + ": Any = None");
  }
  std::string head = absl::StrCat("    def ", MethodName(info), "(",
                                  absl::StrJoin(parameters, ", "), ") -> Expression:\n");
  if (head.size() > 101) {
    head = absl::StrCat("    def ", MethodName(info), "(\n        ",
                        absl::StrJoin(parameters, ", "), "\n    ) -> Expression:\n");
  }
  return absl::StrCat("\n", head, "        \"\"\"", Wrapped(std::string(info.doc), "        "),
                      "\"\"\"\n        return self.", WriterOf(info), "(",
                      absl::StrJoin(arguments, ", "), ")\n");
}

}  // namespace

std::string OperationsMarkdown() {
  std::string text = "| code | operands | meaning, and attributes |\n|---|---|---|\n";
  sim::EachOp([&](sim::OpCode, const OpInfo& info) {
    if (!info.in_worlds) return;
    absl::StrAppend(&text, "| `", std::string(info.name), "` | ", OperandCell(info), " | ",
                    std::string(info.doc), " |\n");
  });
  return text;
}

std::string OperationsPython() {
  std::string text = kHead;
  sim::EachOp([&](sim::OpCode, const OpInfo& info) {
    const bool by_hand = info.op_class == OpClass::kControl || info.op_class == OpClass::kConstant;
    if (info.in_worlds && !by_hand) text += Method(info);
  });
  return text;
}

}  // namespace simgrad::server::conversion
