#include "sim/program/print.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "sim/op/op_info.h"
#include "sim/program/told.h"

namespace simgrad::sim {
namespace {

std::string Number(double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a", x);
  return buffer;
}

// Functions of which some results changed with the second edition (ADR 0030), and in which format.
struct Function {
  OpCode code;
  Format format;
};
constexpr std::array<Function, 7> kSecondEdition = {{{OpCode::kLog, Format::kF32},
                                                     {OpCode::kLog1p, Format::kF32},
                                                     {OpCode::kSin, Format::kF32},
                                                     {OpCode::kCos, Format::kF32},
                                                     {OpCode::kSigmoid, Format::kF32},
                                                     {OpCode::kSoftplus, Format::kF32},
                                                     {OpCode::kAtan2, Format::kBf16}}};

// A name or label of the caller's as it stands in a line: it neither ends the line nor looks like a site.
std::string Shown(std::string_view text) {
  std::string shown = text.starts_with('@') ? "\\" : "";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      shown += c;
      continue;
    }
    char buffer[8];
    std::snprintf(buffer, sizeof buffer, "\\x%02x", byte);
    shown += buffer;
  }
  return shown;
}

class Printer {
 public:
  Printer(const Program& program, PassBudget* budget)
      : program_(program), budget_(budget ? *budget : unlimited_) {}

  std::string Take() {
    text_.shrink_to_fit();
    return std::move(text_);
  }

  size_t size() const { return text_.size(); }

  // Ends the head of the text, behind which SayFunctions writes.
  void EndHead() { head_size_ = text_.size(); }

  // Says which edition of the functions the program means, if it has one that changed.
  void SayFunctions() {
    if (has_second_edition_) text_.insert(head_size_, "functions 2\n");
  }

  void Line(int indent, const std::string& line) {
    text_.append(static_cast<size_t>(indent) * 2, ' ');
    text_ += line;
    text_ += '\n';
    budget_.WroteText(static_cast<int64_t>(text_.size()));
  }

  // Writes which comparisons are tests, if the program says so.
  void Level(const Program& program) {
    if (program.level == TestLevel::kDeclared) return;
    Line(0, "tests " + std::string(TestLevelName(program.level)));
  }

  // `count`: how many.
  void Inputs(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const Input& input = program_.inputs[i];
      const std::string_view kind = input.weights ? "weights" : InputKindName(input.kind);
      std::string line = std::string(kind) + " " + Defined(input.value) + " " + input.name;
      if (input.default_value) line += " = " + Number(*input.default_value);
      Line(0, line);
    }
  }

  void PrintRegion(int indent, const std::string& head, const Region& region) {
    std::string line = head;
    if (!region.args.empty()) {
      line += " (";
      for (size_t i = 0; i < region.args.size(); ++i) {
        line += (i ? ", " : "") + Defined(region.args[i]);
      }
      line += ")";
    }
    Line(indent, line + ":");
    for (const Op& op : region.ops) PrintOp(indent + 1, op);
    Line(indent + 1, "yield" + Uses(region.yields));
  }

  std::string Used(ValueId id) const {
    if (id == ValueId::kNone) return "_";
    const auto found = numbers_.find(Index(id));
    return found == numbers_.end() ? "%?" : "%" + std::to_string(found->second);
  }

 private:
  std::string TypeText(ValueId id) const {
    const Value& value = program_[id];
    std::string text = value.format ? std::string(precision::Traits(*value.format).name)
                                    : std::string(ElementTypeName(value.type.element));
    text += "[";
    for (size_t i = 0; i < value.type.shape.size(); ++i) {
      text += (i ? "," : "") + std::to_string(value.type.shape[i]);
    }
    return text + "]";
  }

  std::string Defined(ValueId id) {
    if (id == ValueId::kNone) return "_";
    numbers_[Index(id)] = defined_++;
    return Used(id) + ":" + TypeText(id);
  }

  std::string Uses(const std::vector<ValueId>& ids) const {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) text += (i ? ", " : " ") + Used(ids[i]);
    return text;
  }

  std::string AttributeText(const Op& op) const {
    budget_.Visit(static_cast<int64_t>(op.attributes.literal.size()));
    std::string text;
    EachAttribute(InfoOf(op.code).attributes, [&](Attribute attribute) {
      text += InfoOf(attribute).text(program_, op, [this](ValueId id) { return Used(id); });
    });
    const ValueId where = op.attributes.where;
    return where == ValueId::kNone ? text : text + " where " + Used(where);
  }

  void PrintOp(int indent, const Op& op) {
    const std::string operands = Uses(op.operands);
    const std::string attributes = AttributeText(op);
    std::vector<std::pair<std::string, const Region*>> nested;
    // Regions come before the results in the text, but the head line names the results: number the
    // results first, so that the head can be written at once.
    std::string head;
    for (size_t i = 0; i < op.results.size(); ++i) head += (i ? ", " : "") + Defined(op.results[i]);
    if (!head.empty()) head += " = ";
    head += std::string(InfoOf(op.code).name) + operands + attributes + "  # " +
            std::string(precision::RoleName(op.role));
    if (!op.site.empty()) head += " @" + op.site;
    if (op.results.size() == 1 && op.results[0] != ValueId::kNone &&
        !program_[op.results[0]].name.empty()) {
      head += " " + Shown(program_[op.results[0]].name);
    }
    // A program with a level is its author's: lines of a file, which a comment above would move.
    const bool says_label = program_.level == TestLevel::kDeclared && !op.label.empty();
    if (says_label) head += " | " + Shown(op.label);
    Line(indent, head);
    has_second_edition_ |= !op.results.empty() && IsOfSecondEdition(op, op.results[0]);
    for (size_t i = 0; i < op.regions.size(); ++i) {
      PrintRegion(indent + 1, RegionName(op.code, i), op.regions[i]);
    }
  }

  bool IsOfSecondEdition(const Op& op, ValueId result) const {
    return result != ValueId::kNone &&
           std::any_of(kSecondEdition.begin(), kSecondEdition.end(), [&](const Function& function) {
             return function.code == op.code && function.format == program_[result].format;
           });
  }

  static std::string RegionName(OpCode code, size_t index) {
    constexpr std::array<std::string_view, 4> kReverse = {"body", "test", "test_last", "test_both"};
    if (code == OpCode::kWhile) return index == 0 ? "test" : "body";
    if (code == OpCode::kWhileVjp) return std::string(kReverse[index]);
    return "body";
  }

  const Program& program_;
  PassBudget unlimited_;
  PassBudget& budget_;
  std::string text_;
  size_t head_size_ = 0;
  bool has_second_edition_ = false;
  std::unordered_map<size_t, size_t> numbers_;
  size_t defined_ = 0;
};

void PrintWorld(Printer& printer, const Program& program) {
  if (program.HasInitial()) printer.PrintRegion(0, "initial", program.initial);
  printer.PrintRegion(0, "step", program.step);
  for (const Export& exported : program.exports) {
    printer.Line(0, (exported.observable ? "observe " : "export ") + printer.Used(exported.value) +
                        " " + exported.name);
  }
}

void PrintAdjoint(Printer& printer, const Adjoint& adjoint) {
  if (!adjoint.terminal.yields.empty()) {
    printer.PrintRegion(0, "adjoint terminal", adjoint.terminal);
  }
  printer.PrintRegion(0, "adjoint last", adjoint.Last());  // a shared region stands here too
  printer.PrintRegion(0, "adjoint step", adjoint.inner);
  if (!adjoint.initial.yields.empty()) printer.PrintRegion(0, "adjoint initial", adjoint.initial);
}

// The format of gradients, and of sums over instances, where a policy does not say otherwise.
Format UsualFormat(const precision::Policy& policy) {
  return policy[Role::kState].format == Format::kF64 ? Format::kF64 : Format::kF32;
}

std::string AccumulatorText(const precision::RoleSetting& setting) {
  return " accumulator=" + std::string(precision::Traits(setting.accumulator).name);
}

// No operation bears role gradient, so it stands by itself.
void PrintGradientRole(Printer& printer, const precision::Policy& policy) {
  const precision::RoleSetting& setting = policy[Role::kGradient];
  const Format usual = UsualFormat(policy);
  const bool saturates = setting.overflow == precision::Overflow::kSaturate;
  if (setting.format == usual && setting.accumulator == usual && !saturates) return;
  printer.Line(0, "gradient " + std::string(precision::Traits(setting.format).name) +
                      (saturates ? " saturate" : "") + AccumulatorText(setting));
}

// The operations of a cost bear the format of role objective, but not what adds up instances.
void PrintObjectiveRole(Printer& printer, const precision::Policy& policy) {
  const precision::RoleSetting& setting = policy[Role::kObjective];
  if (setting.accumulator == UsualFormat(policy)) return;
  printer.Line(0, "sum of costs" + AccumulatorText(setting));
}

}  // namespace

std::string Print(const Program& program) {
  Printer printer(program, nullptr);
  printer.Line(0, "world " + program.name);
  printer.Level(program);
  printer.Inputs(program.inputs.size());
  PrintWorld(printer, program);
  for (const Objective& objective : program.objectives) {
    if (objective.HasStage()) printer.PrintRegion(0, "stage " + objective.name, objective.stage);
    if (objective.HasTerminal()) {
      printer.PrintRegion(0, "terminal " + objective.name, objective.terminal);
    }
  }
  return printer.Take();
}

std::string Print(const NumericalProgram& numerical, PassBudget* budget) {
  return PrintParts(numerical, budget).text;
}

ProgramText PrintParts(const NumericalProgram& numerical, PassBudget* budget) {
  ProgramText parts;
  const Program& program = numerical.program;
  Printer printer(program, budget);
  printer.Line(0, "world " + program.name);
  printer.Level(program);
  const bool stop = numerical.policy.nonfinite == precision::NonFinite::kStop;
  printer.Line(0, std::string("nonfinite ") + (stop ? "stop" : "report"));
  parts.head_end = printer.size();
  if (numerical.adjoint) {
    printer.Line(0, "loss_scale " + Number(numerical.policy.loss_scale));
    PrintGradientRole(printer, numerical.policy);
  }
  printer.EndHead();
  parts.body_begin = printer.size();
  printer.Inputs(UntoldInputs(numerical));
  PrintWorld(printer, program);
  if (!numerical.objective.empty()) PrintObjectiveRole(printer, numerical.policy);
  if (numerical.stage_cost != ValueId::kNone) {
    printer.Line(0,
                 "stage cost " + printer.Used(numerical.stage_cost) + " of " + numerical.objective);
  }
  for (const Objective& objective : program.objectives) {
    if (objective.name == numerical.objective && objective.HasTerminal()) {
      printer.PrintRegion(0, "terminal cost of " + objective.name, objective.terminal);
    }
  }
  parts.body_end = printer.size();
  if (numerical.adjoint) PrintAdjoint(printer, *numerical.adjoint);
  const size_t before = printer.size();
  printer.SayFunctions();
  parts.body_begin += printer.size() - before;
  parts.body_end += printer.size() - before;
  parts.text = printer.Take();
  return parts;
}

namespace {

// SHA-256 of `texts` one after the other.
std::string HexDigest(std::initializer_list<std::string_view> texts, PassBudget* budget) {
  // A piece takes about a millisecond.
  constexpr size_t kPiece = size_t{1} << 18;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string_view text : texts) {
    for (size_t at = 0; at < text.size(); at += kPiece) {
      if (budget != nullptr) budget->Visit(kPiece / 64);
      EVP_DigestUpdate(context.get(), text.data() + at, std::min(kPiece, text.size() - at));
    }
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &length);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) {
    char buffer[3];
    std::snprintf(buffer, sizeof buffer, "%02x", digest[i]);
    hex += buffer;
  }
  return hex;
}

}  // namespace

std::string Fingerprint(std::string_view text, PassBudget* budget) {
  return HexDigest({text}, budget);
}

std::string ForwardFingerprint(const ProgramText& text, PassBudget* budget) {
  const std::string_view all = text.text;
  return HexDigest(
      {all.substr(0, text.head_end), all.substr(text.body_begin, text.body_end - text.body_begin)},
      budget);
}

}  // namespace simgrad::sim
