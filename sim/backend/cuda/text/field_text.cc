#include "sim/backend/cuda/text/field_text.h"

#include "sim/backend/cuda/text/words.h"

namespace simgrad::sim::cuda {

using enum FieldKind;

bool FieldText::Travels(size_t field) const {
  const Field& f = layout_.fields[field];
  if (f.kind == kGradient) return layout_.text.gradient_kept[static_cast<size_t>(f.index)];
  return field < layout_.plan.fields.size() || f.kind == kConnected;
}

std::string FieldText::Memory(int field) const {
  return Cat("static_cast<", TypeText(Of(field).memory_type), "*>(args.field[", field, "])");
}

std::string FieldText::Place(int field, const std::string& at) const {
  const Field& f = Of(field);
  if (f.elements == 1) return Cat(Memory(field), "[instance]");
  if (layout_.IsBlock()) return Cat(Memory(field), "[instance * ", f.elements, " + ", at, "]");
  return Cat(Memory(field), "[(", at, ") * args.instances + instance]");
}

std::string FieldText::OfField(int field, int64_t elements, const std::string& at) {
  return elements == 1 ? Cat("f", field) : Cat("f", field, "[", at, "]");
}

std::string FieldText::NameOf(const Field& f) const {
  const Program& program = layout_.program();
  const size_t index = static_cast<size_t>(f.index);
  const auto state = [&] {
    return program.inputs[static_cast<size_t>(layout_.states[index])].name;
  };
  switch (f.kind) {
    case kState:
      return Cat("state ", state());
    case kExport:
      return Cat("observable ", program.exports[index].name);
    case kCost:
      return "cost";
    case kCotangent:
      return Cat("cotangent of ", state());
    case kCotangentMask:
      return Cat("mask of the cotangent of ", state());
    case kExportCotangent:
      return Cat("cotangent of ", program.exports[index].name);
    case kExportCotangentMask:
      return Cat("mask of the cotangent of ", program.exports[index].name);
    case kGradient:
      return Cat("gradient for ", program.inputs[index].name);
    default:
      return Cat("connected to ", program.inputs[index].name);
  }
}

void FieldText::EachOf(TextWriter& text, int64_t elements, const std::string& statement) {
  if (elements == 1) return text.Line(statement);
  text.Line(Cat("for (int64_t e = First(); e < ", elements, "; e += Stride()) ", statement));
}

void FieldText::Point(TextWriter& text, int field) const {
  text.Line(Cat("f", field, " = ", Memory(field), " + instance * ", Of(field).elements, ";"));
}

void FieldText::Move(TextWriter& text, bool reversed, bool loads) const {
  for (size_t k = 0; k < layout_.fields.size(); ++k) {
    const Field& f = layout_.fields[k];
    const int field = static_cast<int>(k);
    if (!Travels(k) || IsReversed(f) != reversed || f.is_window) continue;
    if (InMemory(f)) {
      if (loads) Point(text, field);
      continue;
    }
    const std::string own = OfField(field, f.elements, "e");
    EachOf(
        text, f.elements,
        loads ? Cat(own, " = ", Place(field, "e"), ";") : Cat(Place(field, "e"), " = ", own, ";"));
  }
}

}  // namespace simgrad::sim::cuda
