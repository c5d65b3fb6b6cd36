#include "tests/gpu/issue_limit.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace simgrad::gpu_check {
namespace {

struct PipeRow {
  std::string_view name;
  double cycles;  // 32 lanes over results per clock and scheduler
};

// Results per clock and multiprocessor: 128 for FP32 add, multiply, fma; 64 for integers, logic,
// comparisons, selections, min and max, and for integer multiplication on half of the FMA pipe; 64
// for f64; 16 for conversions and special functions. Memory, branches and the uniform path are
// counted as one issue each: the table does not give them.
constexpr PipeRow kPipes[kPipeCount] = {{"fma", 1.0},     {"alu", 2.0},    {"imad", 2.0},
                                        {"special", 8.0}, {"f64", 2.0},    {"memory", 1.0},
                                        {"control", 1.0}, {"uniform", 1.0}};

struct OpcodeRow {
  std::string_view prefix;
  Pipe pipe;
};

// The first that fits.
constexpr OpcodeRow kOpcodes[] = {
    {"FADD", Pipe::kFma},     {"FMUL", Pipe::kFma},         {"FFMA", Pipe::kFma},
    {"IMAD.MOV", Pipe::kFma}, {"IMAD.SHL", Pipe::kFma},     {"IMAD", Pipe::kHalfFma},
    {"MUFU", Pipe::kSpecial}, {"F2F", Pipe::kSpecial},      {"F2I", Pipe::kSpecial},
    {"I2F", Pipe::kSpecial},  {"FRND", Pipe::kSpecial},     {"DADD", Pipe::kDouble},
    {"DMUL", Pipe::kDouble},  {"DFMA", Pipe::kDouble},      {"DSETP", Pipe::kDouble},
    {"LD", Pipe::kMemory},    {"ST", Pipe::kMemory},        {"ATOM", Pipe::kMemory},
    {"RED", Pipe::kMemory},   {"BRA", Pipe::kControl},      {"BRX", Pipe::kControl},
    {"BSSY", Pipe::kControl}, {"BSYNC", Pipe::kControl},    {"BREAK", Pipe::kControl},
    {"BAR", Pipe::kControl},  {"EXIT", Pipe::kControl},     {"CALL", Pipe::kControl},
    {"RET", Pipe::kControl},  {"WARPSYNC", Pipe::kControl}, {"NOP", Pipe::kControl},
    {"UL", Pipe::kUniform},   {"UI", Pipe::kUniform},       {"UM", Pipe::kUniform},
    {"US", Pipe::kUniform},   {"UP", Pipe::kUniform},       {"R2UR", Pipe::kUniform},
};

struct Loop {
  int64_t first, last;  // addresses of its first instruction and of its branch back
  bool Holds(const Loop& other) const {
    return first <= other.first && other.last <= last &&
           (first != other.first || last != other.last);
  }
};

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

bool ReadHex(std::string_view text, int64_t& number) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

std::string Word(std::string_view& rest) {
  rest = Stripped(rest);
  const size_t end = std::min(rest.find_first_of(" \t;"), rest.size());
  std::string word(rest.substr(0, end));
  rest.remove_prefix(end);
  return word;
}

// "`(.L_x_4)" or "0x440", the last operand of a branch.
std::string TargetText(std::string_view operands) {
  const size_t tick = operands.find("`(");
  if (tick != std::string_view::npos) {
    const size_t end = operands.find(')', tick);
    return std::string(operands.substr(tick + 2, end - tick - 2));
  }
  const size_t hex = operands.rfind("0x");
  if (hex == std::string_view::npos) return "";
  const size_t end = std::min(operands.find_first_of(" ;", hex), operands.size());
  return std::string(operands.substr(hex, end - hex));
}

}  // namespace

std::string_view PipeName(Pipe pipe) { return kPipes[static_cast<size_t>(pipe)].name; }
double CyclesOf(Pipe pipe) { return kPipes[static_cast<size_t>(pipe)].cycles; }

Pipe PipeOf(std::string_view opcode) {
  for (const OpcodeRow& row : kOpcodes) {
    if (opcode.starts_with(row.prefix)) return row.pipe;
  }
  return Pipe::kAlu;
}

void Counts::Add(const Counts& more, double times) {
  all += times * more.all;
  for (int p = 0; p < kPipeCount; ++p) by_pipe[p] += times * more.by_pipe[p];
}

double Counts::Cycles(std::string* bound) const {
  double cycles = all;
  std::string by = "issue";
  for (int p = 0; p < kPipeCount; ++p) {
    const double taken = by_pipe[p] * kPipes[static_cast<size_t>(p)].cycles;
    if (taken <= cycles) continue;
    cycles = taken;
    by = kPipes[static_cast<size_t>(p)].name;
  }
  if (bound != nullptr) *bound = by;
  return cycles;
}

absl::StatusOr<std::vector<Instruction>> ReadListing(const std::string& listing,
                                                     const std::string& function) {
  std::vector<Instruction> instructions;
  std::vector<std::string> targets;
  std::map<std::string, int64_t> labels;
  std::vector<std::string> waiting;  // labels of the next instruction
  bool inside = false;
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = Stripped(line);
    if (rest.find("Function : ") != std::string_view::npos) {
      inside = rest.ends_with(function);
      continue;
    }
    if (!rest.empty() && rest.ends_with(":")) {
      const std::string label(rest.substr(0, rest.size() - 1));
      const bool entry = !label.starts_with(".");
      if (entry) inside = label == function;
      if (inside) waiting.push_back(label);
      continue;
    }
    if (!inside || !rest.starts_with("/*")) continue;
    const size_t end = rest.find("*/");
    Instruction instruction;
    if (end == std::string_view::npos || !ReadHex(rest.substr(2, end - 2), instruction.address)) {
      continue;
    }
    rest.remove_prefix(end + 2);
    std::string word = Word(rest);
    if (word.starts_with("@")) word = Word(rest);
    if (word.empty() || word.starts_with("/*")) continue;  // the second half of an encoding
    instruction.opcode = word;
    for (const std::string& label : waiting) labels[label] = instruction.address;
    waiting.clear();
    instructions.push_back(instruction);
    targets.push_back(word.starts_with("BRA") ? TargetText(rest.substr(0, rest.find(';'))) : "");
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].empty()) continue;
    const auto label = labels.find(targets[i]);
    if (label != labels.end()) {
      instructions[i].target = label->second;
    } else if (!ReadHex(targets[i], instructions[i].target)) {
      instructions[i].target = -1;
    }
  }
  if (instructions.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the listing has no function ", function));
  }
  return instructions;
}

absl::StatusOr<std::vector<Counts>> NestedLoops(const std::vector<Instruction>& instructions) {
  std::map<int64_t, Loop> by_start;  // several branches back to one start are one loop
  for (const Instruction& instruction : instructions) {
    // A branch to itself pads the end of a function.
    if (instruction.target < 0 || instruction.target >= instruction.address) continue;
    Loop& loop =
        by_start.try_emplace(instruction.target, Loop{instruction.target, 0}).first->second;
    loop.last = std::max(loop.last, instruction.address);
  }
  std::vector<Loop> chain;
  while (true) {
    const Loop* longest = nullptr;
    for (const auto& [start, loop] : by_start) {
      if (!chain.empty() && !chain.back().Holds(loop)) continue;
      if (longest == nullptr || loop.last - loop.first > longest->last - longest->first) {
        longest = &loop;
      }
    }
    if (longest == nullptr) break;
    chain.push_back(*longest);
  }
  if (chain.empty()) return absl::InvalidArgumentError("the listing has no loop");
  std::vector<Counts> bodies(chain.size());
  for (const Instruction& instruction : instructions) {
    size_t depth = 0;
    while (depth < chain.size() && instruction.address >= chain[depth].first &&
           instruction.address <= chain[depth].last) {
      ++depth;
    }
    if (depth == 0) continue;
    bodies[depth - 1].all += 1;
    bodies[depth - 1].by_pipe[static_cast<int>(PipeOf(instruction.opcode))] += 1;
  }
  return bodies;
}

}  // namespace simgrad::gpu_check
