#include "sim/backend/cuda/text/operand_text.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "sim/backend/cuda/text/words.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

using plan::Buffer;
using plan::BufferId;
using plan::BufferKind;
using plan::Register;
using PlanCarrier = plan::Carrier;

// "_speed" of a value's name, or nothing.
std::string Suffix(const std::string& name) {
  constexpr size_t kLongest = 40;
  std::string suffix = name.empty() ? "" : "_";
  for (char c : name.substr(0, kLongest)) {
    suffix += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return suffix;
}

// The first of the tables are in registers; most programs have no more.
bool IsKept(const std::string& at) {
  int64_t place = 0;
  return absl::SimpleAtoi(at, &place) && place < kKeptNumbers;
}
std::string RealText(const std::string& at) {
  return IsKept(at) ? Cat("self.n", at) : Cat("self.args.number[", at, "]");
}
std::string IntegerText(const std::string& at) {
  return IsKept(at) ? Cat("self.i", at) : Cat("self.args.integer[", at, "]");
}

}  // namespace

OperandText::OperandText(const plan::Plan& plan, const plan::Function& function,
                         const TextOptions& options, const FunctionCuts& cuts,
                         const SharedArrays& arrays)
    : plan_(plan),
      function_(function),
      options_(options),
      cuts_(cuts),
      arrays_(arrays),
      names_(function.registers.size()) {}

void OperandText::Name(Register r, const std::string& name) {
  names_[static_cast<size_t>(r)] = Suffix(name);
}

std::string OperandText::Reg(Register r) const {
  return Cat(cuts_.IsShared(r) ? "f." : "", "r", r, names_[static_cast<size_t>(r)]);
}

std::string OperandText::RegOr(Register r, const char* otherwise) const {
  return r == plan::kNoRegister ? otherwise : Reg(r);
}

std::string OperandText::BufferName(BufferId id) const {
  return Cat("b", id, Suffix(function_.buffers[static_cast<size_t>(id)].name));
}

std::string OperandText::DeclarationOf(BufferId id) const {
  const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
  const std::string extent =
      buffer.count == 1 ? "" : Cat("[", std::max<int64_t>(buffer.count, 1), "]");
  return Cat(TypeText(buffer.carrier), " ", BufferName(id), extent, ";");
}

std::string OperandText::ElementText(const plan::Index& index) const {
  std::string text = index.base != 0 || (index.terms.empty() && index.moved == plan::kNoRegister)
                         ? std::to_string(index.base)
                         : "";
  for (const auto& [r, stride] : index.terms) {
    if (!text.empty()) text += " + ";
    text += stride == 1 ? Reg(r) : Cat(stride, " * ", Reg(r));
  }
  if (index.moved != plan::kNoRegister) text += Cat(text.empty() ? "" : " + ", Reg(index.moved));
  return text;
}

std::string OperandText::ElementOf(BufferId id, const std::string& at) const {
  const Buffer& buffer = function_.buffers[static_cast<size_t>(id)];
  const size_t number = static_cast<size_t>(buffer.number);
  const std::string subscript = buffer.count == 1 ? "" : Cat("[", at, "]");
  switch (buffer.kind) {
    case BufferKind::kLocal:
      if (arrays_.IsPlaced(id)) {
        return Cat("At<", TypeText(buffer.carrier), ">(self, ", arrays_.OffsetOf(id), ")[", at,
                   "]");
      }
      return Cat(cuts_.IsSharedBuffer(id) ? "f." : "", BufferName(id), subscript);
    case BufferKind::kField:
      return Cat("self.f", number, subscript);
    case BufferKind::kInput:
      return InputText(buffer, at);
    case BufferKind::kTable:
      return NumberText(buffer.carrier, Cat(buffer.number, " + ", at));
    case BufferKind::kSent:
      return SentText(buffer, at);
    case BufferKind::kGradient: {
      const int field = options_.gradient[number];
      if (!options_.gradient_kept[number]) return Cat("self.At", field, "(", at, ")");
      return Cat("self.f", field, subscript);
    }
    case BufferKind::kFactors:  // plans for this backend have cells
    case BufferKind::kConnected:
      break;
  }
  return Cat("self.f", options_.connected[number]);
}

std::string OperandText::InputText(const Buffer& buffer, const std::string& at) const {
  const std::string type = TypeText(buffer.carrier);
  const int64_t config = options_.config[static_cast<size_t>(buffer.number)];
  if (config >= 0) return NumberText(buffer.carrier, std::to_string(config));
  if (options_.reads_once[static_cast<size_t>(buffer.number)]) return Cat("self.in", buffer.number);
  const std::string place =
      Cat("(self.args.input[", buffer.number, "], self.instance, self.read_time, ", at, ")");
  if (buffer.carrier == PlanCarrier::kU8) return Cat("ReadInteger<uint8_t>", place);
  if (!IsReal(buffer.carrier)) return Cat("ReadInteger<", type, ">", place);
  return buffer.carrier == PlanCarrier::kF64 ? Cat("ReadReal", place)
                                             : Cat("static_cast<float>(ReadReal", place, ")");
}

std::string OperandText::NumberText(PlanCarrier carrier, const std::string& at) {
  switch (carrier) {
    case PlanCarrier::kF64:
      return RealText(at);
    case PlanCarrier::kF32:
      return Cat("static_cast<float>(", RealText(at), ")");
    case PlanCarrier::kBool:
      return Cat("(", IntegerText(at), " != 0)");
    default:
      return Cat("WrapTo<", TypeText(carrier), ">(", IntegerText(at), ")");
  }
}

std::string OperandText::SentText(const Buffer& buffer, const std::string& at) const {
  const plan::Sent& sent = plan_.sent[static_cast<size_t>(buffer.number)];
  std::string list = "sent_final_state";
  std::string entry = "self.instance";
  if (sent.kind == plan::SentKind::kTrajectoryState) {
    list = "sent_trajectory_state";
    entry = "(self.instance * (self.args.steps + 1) + self.t)";
  } else if (sent.kind == plan::SentKind::kTrajectoryExport) {
    list = "sent_trajectory_export";
    entry = "(self.instance * self.args.steps + self.t)";
  }
  return Cat("ReadCotangent<", FormatText(options_.adjoint_format), ">(self.args.", list, "[",
             sent.index, "], ", entry, " * ", buffer.count, " + ", at, ", self.args.seed)");
}

std::string OperandText::FrameText(const std::string& type) const {
  if (cuts_.pieces() == 1) return "";
  TextWriter text;
  text.Open(Cat("struct ", type));
  for (size_t k = 0; k < function_.registers.size(); ++k) {
    if (!cuts_.IsShared(static_cast<Register>(k))) continue;
    text.Line(Cat(TypeText(function_.registers[k]), " r", k, names_[k], ";"));
  }
  for (size_t k = 0; k < function_.buffers.size(); ++k) {
    const BufferId id = static_cast<BufferId>(k);
    const bool is_local = function_.buffers[k].kind == BufferKind::kLocal;
    if (!is_local || !cuts_.IsSharedBuffer(id) || arrays_.IsPlaced(id)) continue;
    text.Line(DeclarationOf(id));
  }
  text.Close("};");
  return text.text();
}

}  // namespace simgrad::sim::cuda
