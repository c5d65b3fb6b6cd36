#include "sim/backend/cuda/text/instance_text.h"

#include <algorithm>
#include <utility>

#include "sim/backend/cuda/text/field_text.h"
#include "sim/backend/cuda/text/words.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

bool IsReal(const Value& value) { return value.type.element == ElementType::kReal; }

class InstanceWriter {
 public:
  InstanceWriter(const ProgramLayout& layout, int64_t workspace)
      : layout_(layout),
        program_(layout.program()),
        plan_(layout.plan),
        fields_(layout),
        workspace_(workspace) {}

  std::string Write() const {
    TextWriter text;
    for (const Site& site : layout_.numerical.sites) {
      text.Line(Cat("// ", site.kind == SiteKind::kEvent ? "event " : "loop ", site.number, ": ",
                    site.name));
    }
    const auto flag = [](bool x) { return x ? "true" : "false"; };
    text.Open(Cat("struct Instance : InstanceBase<", flag(layout_.IsBlock()), ", ",
                  flag(layout_.numerical.policy.nonfinite == precision::NonFinite::kStop), ", ",
                  flag(layout_.text.tells_instances), ", ", plan_.terminations.size(), ", ",
                  plan_.events.size(), ", ", RealStates(program_), ", ", plan_.additions.size(),
                  ", ", layout_.window, ">"));
    text.Line("using InstanceBase::InstanceBase;");
    text.Line(Cat("static constexpr bool kHasLast = ", flag(layout_.HasLast()), ";"));
    Members(text);
    LoadText(text);
    StoreText(text);
    ClearText(text);
    SentText(text);
    CheckText(text);
    SampleText(text);
    if (layout_.Records()) PlacesText(text);
    TrajectoryText(text);
    LastEvents(text);
    if (layout_.numerical.adjoint) ReversedText(text);
    text.Close("};");
    text.Line(Cat("static_assert(sizeof(Instance::Shared) == ", layout_.shared_bytes, ");"));
    text.Open("template <class T> __device__ T* At(Instance& self, int64_t offset)");
    text.Line("return reinterpret_cast<T*>(self.work + offset);");
    text.Close();
    return text.text() + "\n";
  }

 private:
  std::string LastText(size_t event) const {
    return TypeText(layout_.fields[static_cast<size_t>(layout_.last[event])].memory_type);
  }

  void Members(TextWriter& text) const {
    for (size_t k = 0; k < layout_.fields.size(); ++k) {
      if (!fields_.Travels(k)) continue;
      const Field& f = layout_.fields[k];
      const std::string type = TypeText(f.memory_type);
      const std::string comment = Cat("  // ", fields_.NameOf(f));
      if (fields_.InMemory(f)) {
        text.Line(Cat(type, "* f", k, ";", comment));
      } else {
        text.Line(Cat(type, " f", k,
                      f.elements == 1 ? "" : Cat("[", std::max<int64_t>(f.elements, 1), "]"), ";",
                      comment));
      }
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (!layout_.text.reads_once[i]) continue;
      text.Line(Cat(TypeText(plan::CarrierOf(layout_.ValueOf(i))), " in", i, ";  // ",
                    program_.inputs[i].name));
    }
    for (size_t k = 0; k < layout_.last.size(); ++k) {
      if (plan_.events[k].elements == 1) text.Line(Cat(LastText(k), " last", k, ";"));
    }
    for (int64_t k = 0; k < Kept(layout_.numbers.size()); ++k) text.Line(Cat("double n", k, ";"));
    for (int64_t k = 0; k < Kept(plan_.integers.size()); ++k) text.Line(Cat("int64_t i", k, ";"));
  }
  static int64_t Kept(size_t count) { return std::min(static_cast<int64_t>(count), kKeptNumbers); }

  void ReadOnce(TextWriter& text) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (!layout_.text.reads_once[i]) continue;
      const plan::Carrier carrier = plan::CarrierOf(layout_.ValueOf(i));
      const std::string place = Cat("(args.input[", i, "], instance, 0, 0)");
      text.Line(Cat("in", i, " = ",
                    IsReal(layout_.ValueOf(i))
                        ? Cat("static_cast<", TypeText(carrier), ">(ReadReal", place, ")")
                        : Cat("ReadInteger<", TypeText(carrier), ">", place),
                    ";"));
    }
  }

  void LoadText(TextWriter& text) const {
    text.Open("__device__ void Open()");
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      if (FieldText::IsReversed(layout_.fields[k]) || !fields_.InMemory(layout_.fields[k]))
        continue;
      fields_.Point(text, static_cast<int>(k));
    }
    ReadOnce(text);
    for (int64_t k = 0; k < Kept(layout_.numbers.size()); ++k) {
      text.Line(Cat("n", k, " = args.number[", k, "];"));
    }
    for (int64_t k = 0; k < Kept(plan_.integers.size()); ++k) {
      text.Line(Cat("i", k, " = args.integer[", k, "];"));
    }
    text.Line("signature = 0;");
    text.Close();
    text.Open("__device__ void Load()");
    text.Line("Open();");
    fields_.Load(text, false);
    text.Line(Cat("health = ", fields_.Place(layout_.health, "0"), ";"));
    for (size_t k = 0; k < layout_.last.size(); ++k) {
      if (plan_.events[k].elements == 1)
        text.Line(Cat("last", k, " = ", fields_.Place(layout_.last[k], "0"), ";"));
      text.Line(Cat("first_event[", k, "] = ", fields_.Place(layout_.first[k], "0"), ";"));
    }
    text.Close();
  }

  void StoreText(TextWriter& text) const {
    text.Open("__device__ void Store()");
    if (layout_.IsBlock()) {
      text.Line(Cat("atomicAdd(reinterpret_cast<unsigned long long*>(&",
                    fields_.Place(layout_.signature, "0"),
                    "), static_cast<unsigned long long>(signature));"));
      for (size_t k = 0; k < layout_.first.size(); ++k) {
        text.Line(Cat("if (first_event[", k,
                      "] >= 0) atomicMin(reinterpret_cast<unsigned long long*>(&",
                      fields_.Place(layout_.first[k], "0"),
                      "), static_cast<unsigned long long>(first_event[", k, "]));"));
      }
      text.Line("if (!speaks) return;");
    } else {
      text.Line(Cat(fields_.Place(layout_.signature, "0"), " += static_cast<int64_t>(signature);"));
      for (size_t k = 0; k < layout_.first.size(); ++k) {
        text.Line(Cat(fields_.Place(layout_.first[k], "0"), " = first_event[", k, "];"));
      }
    }
    fields_.Store(text, false);
    text.Line(Cat(fields_.Place(layout_.health, "0"), " = health;"));
    for (size_t k = 0; k < layout_.last.size(); ++k) {
      if (plan_.events[k].elements == 1)
        text.Line(Cat(fields_.Place(layout_.last[k], "0"), " = last", k, ";"));
    }
    text.Close();
  }

  void ClearText(TextWriter& text) const {
    text.Open("__device__ void Clear()");
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      const Field& f = layout_.fields[k];
      if (f.kind != kExport && f.kind != kCost) continue;
      FieldText::EachOf(text, f.elements,
                        Cat(FieldText::OfField(static_cast<int>(k), f.elements, "e"), " = 0;"));
    }
    const std::string mine = layout_.IsBlock() ? "if (speaks) " : "if (live) ";
    text.Line(Cat(mine, fields_.Place(layout_.signature, "0"), " = 0;"));
    for (size_t k = 0; k < layout_.last.size(); ++k) {
      text.Line(Cat(mine, fields_.Place(layout_.first[k], "0"), " = -1;"));
      text.Line(Cat("first_event[", k, "] = -1;"));
      const int64_t elements = plan_.events[k].elements;
      if (elements == 1) {
        text.Line(Cat("last", k, " = ", LastText(k), "{};"));
      } else {
        text.Open("if (live)");
        FieldText::EachOf(text, elements,
                          Cat(fields_.Place(layout_.last[k], "e"), " = ", LastText(k), "{};"));
        text.Close();
      }
    }
    text.Close();
  }

  // The states as they were sent, rounded to role state.
  void SentText(TextWriter& text) const {
    const bool saturates =
        layout_.numerical.policy[Role::kState].overflow == precision::Overflow::kSaturate;
    text.Open("__device__ void SetSent()");
    for (size_t k = 0; k < layout_.states.size(); ++k) {
      const size_t input = static_cast<size_t>(layout_.states[k]);
      const Value& value = layout_.ValueOf(input);
      const int64_t count = ElementCount(value.type.shape);
      const std::string view =
          Cat("(args.input[", input, "], instance, 0, ", count == 1 ? "0" : "e", ")");
      const std::string own = FieldText::OfField(static_cast<int>(k), count, "e");
      const std::string read =
          !IsReal(value)
              ? Cat("ReadInteger<", TypeText(plan::CarrierOf(value)), ">", view)
              : Cat("Lane<", FormatText(value.format.value_or(Format::kF64)), ">::Round(ReadReal",
                    view, saturates ? ", Overflow::kSaturate" : "", ")");
      FieldText::EachOf(text, count, Cat(own, " = ", read, ";"));
    }
    text.Close();
  }

  void CheckText(TextWriter& text) const {
    text.Open("__device__ void CheckSent()");
    for (size_t k = 0; k < layout_.states.size(); ++k) {
      const size_t input = static_cast<size_t>(layout_.states[k]);
      if (!layout_.reads[input] || !IsReal(layout_.ValueOf(input))) continue;
      const int64_t count = ElementCount(layout_.ValueOf(input).type.shape);
      FieldText::EachOf(text, count,
                        Cat("bad_input |= !simgrad::precision::IsFinite(",
                            FieldText::OfField(static_cast<int>(k), count, "e"), ");"));
    }
    CheckInputs(text, false);
    text.Close();
    text.Open("__device__ void CheckStep()");
    CheckInputs(text, true);
    text.Close();
  }
  void CheckInputs(TextWriter& text, bool of_steps) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const InputKind kind = program_.inputs[i].kind;
      if (kind == InputKind::kState || kind == InputKind::kStep) continue;
      if (!layout_.reads[i] || !IsReal(layout_.ValueOf(i)) || (of_steps && !layout_.PerStep(i)))
        continue;
      if (layout_.text.config[i] >= 0) {
        text.Line(Cat("bad_input |= !simgrad::precision::IsFinite(args.number[",
                      layout_.text.config[i], "]);"));
        continue;
      }
      text.Line(Cat("CheckInput(", i, ", ", ElementCount(layout_.ValueOf(i).type.shape), ");"));
    }
  }

  // Writes the function that samples states into the slot of the step.
  void SampleText(TextWriter& text) const {
    text.Open("__device__ void Sample()");
    int real = 0;
    for (size_t k = 0; k < layout_.states.size(); ++k) {
      const Value& value = layout_.ValueOf(static_cast<size_t>(layout_.states[k]));
      if (!IsReal(value)) continue;
      const int64_t count = ElementCount(value.type.shape);
      text.Open("");
      text.Line("StateTally seen;");
      text.Open(Cat("if (live", count == 1 ? " && speaks" : "", ")"));
      FieldText::EachOf(text, count,
                        Cat("seen.See<", FormatText(value.format.value_or(Format::kF64)), ">(",
                            FieldText::OfField(static_cast<int>(k), count, "e"), ");"));
      text.Close();
      text.Line(Cat("Join(slot->state[", real++, "], seen);"));
      text.Close();
    }
    text.Close();
  }

  void PlacesText(TextWriter& text) const {
    text.Open(
        "__device__ static void Places([[maybe_unused]] uint64_t* to, [[maybe_unused]] uint64_t "
        "t)");
    size_t place = 0;
    for (const auto* sites : {&plan_.terminations, &plan_.events}) {
      for (const plan::RecordedSite& site : *sites) {
        text.Line(
            Cat("to[", place++, "] = simgrad::precision::PlaceHash(", site.hash, "u, t, 0, 0);"));
      }
    }
    text.Close();
  }

  void TrajectoryText(TextWriter& text) const {
    text.Open("__device__ void WriteTrajectories([[maybe_unused]] int64_t column)");
    text.Line("if (!live || !writes_trajectories) return;");
    for (const auto& [kind, list] : {std::pair{kState, "state"}, std::pair{kExport, "export"}}) {
      TextWriter inside(3);
      bool any = false;
      for (size_t k = 0; k < plan_.fields.size(); ++k) {
        const Field& f = layout_.fields[k];
        if (f.kind != kind || f.elements == 0) continue;
        any = true;
        inside.Open(Cat("if (args.", list, "_trajectory[", f.index, "] != nullptr",
                        f.elements == 1 ? " && speaks" : "", ")"));
        FieldText::EachOf(inside, f.elements,
                          Cat("static_cast<", TypeText(f.memory_type), "*>(args.", list,
                              "_trajectory[", f.index, "])[(column * args.instances + instance) * ",
                              f.elements, " + ", f.elements == 1 ? "0" : "e", "] = ",
                              FieldText::OfField(static_cast<int>(k), f.elements, "e"), ";"));
        inside.Close();
      }
      if (!any) continue;
      text.Open(Cat("if (args.", list, "_trajectory != nullptr)"));
      text.Raw(inside.text());
      text.Close();
    }
    text.Close();
  }

  void LastEvents(TextWriter& text) const {
    for (size_t k = 0; k < layout_.last.size(); ++k) {
      if (plan_.events[k].elements == 1) continue;
      text.Line(Cat("__device__ ", LastText(k), "& Last", k, "(int64_t e) { return ",
                    fields_.Place(layout_.last[k], "e"), "; }"));
    }
  }

  void ReversedText(TextWriter& text) const {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const int k = layout_.text.gradient[i];
      if (k < 0) continue;
      const Field& f = layout_.fields[static_cast<size_t>(k)];
      if (layout_.text.gradient_kept[i] && !f.is_window) continue;
      const std::string step = f.is_window  ? "(read_time - args.window_first)"
                               : f.per_step ? "read_time"
                                            : "int64_t{0}";
      text.Line(Cat("__device__ ", TypeText(f.memory_type), "& At", k,
                    "([[maybe_unused]] int64_t e) { return ", fields_.Memory(k), "[",
                    layout_.IsBlock()
                        ? Cat("(", step, " * args.instances + instance) * ", f.elements, " + e")
                        : Cat("(", step, " * ", f.elements, " + e) * args.instances + instance"),
                    "]; }"));
    }
    EntryText(text);
    text.Open("__device__ void LoadReversed()");
    fields_.Load(text, true);
    text.Close();
    text.Open("__device__ void LoadReversedHealth()");
    text.Line(Cat("health = ", fields_.Place(layout_.adjoint_health, "0"), ";"));
    text.Close();
    text.Open("__device__ void StoreReversed()");
    if (layout_.IsBlock()) text.Line("if (!speaks) return;");
    fields_.Store(text, true);
    text.Line(Cat(fields_.Place(layout_.adjoint_health, "0"), " = health;"));
    text.Close();
    CopyText(text);
  }

  // Writes the function after which steps change copies of the states alone (device/kernels.h).
  void CopyText(TextWriter& text) const {
    text.Open("__device__ void CopyStates()");
    int64_t offset = AlignedBytes(workspace_);
    for (size_t k = 0; k < plan_.fields.size(); ++k) {
      const plan::Field& f = plan_.fields[k];
      if (!layout_.IsCopied(f)) continue;
      text.Open("");
      text.Line(Cat("auto* const copy = reinterpret_cast<", TypeText(f.carrier), "*>(work + ",
                    offset, ");"));
      FieldText::EachOf(text, f.count, Cat("copy[e] = f", k, "[e];"));
      text.Line(Cat("f", k, " = copy;"));
      text.Close();
      offset += ProgramLayout::CopyBytes(f);
    }
    text.Close();
  }

  // Around an entry: what a thread keeps of a window begins at 0, and is written there.
  void EntryText(TextWriter& text) const {
    TextWriter opens(2), closes(2);
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const int k = layout_.text.gradient[i];
      if (k < 0 || !layout_.text.gradient_kept[i] ||
          !layout_.fields[static_cast<size_t>(k)].is_window)
        continue;
      const int64_t elements = layout_.fields[static_cast<size_t>(k)].elements;
      const std::string own = FieldText::OfField(k, elements, "e");
      FieldText::EachOf(opens, elements, Cat(own, " = 0;"));
      FieldText::EachOf(closes, elements,
                        Cat("At", k, "(", elements == 1 ? "0" : "e", ") = ", own, ";"));
    }
    text.Open("__device__ void OpenEntry()");
    text.Raw(opens.text());
    text.Close();
    text.Open("__device__ void CloseEntry()");
    if (layout_.IsBlock() && !closes.text().empty()) text.Line("if (!speaks) return;");
    text.Raw(closes.text());
    text.Close();
  }

  const ProgramLayout& layout_;
  const Program& program_;
  const plan::Plan& plan_;
  const FieldText fields_;
  const int64_t workspace_;
};

}  // namespace

std::string InstanceText(const ProgramLayout& layout, int64_t workspace) {
  return InstanceWriter(layout, workspace).Write();
}

}  // namespace simgrad::sim::cuda
