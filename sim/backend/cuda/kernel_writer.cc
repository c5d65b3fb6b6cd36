#include "sim/backend/cuda/kernel_writer.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim::cuda {

int64_t SharedBytes(const Source& source) {
  const auto least = [](int count) { return static_cast<int64_t>(std::max(count, 1)); };
  const int64_t slot =
      least(source.terminations()) * static_cast<int64_t>(sizeof(TerminationColumn)) +
      least(source.events()) * static_cast<int64_t>(sizeof(EventColumn)) +
      least(source.real_states()) * static_cast<int64_t>(sizeof(StateColumn));
  constexpr int64_t kInstanceTally = 24;
  return 2 * slot + 2 * static_cast<int64_t>(sizeof(BackwardColumn)) +
         least(source.terminations()) * kInstanceTally + 8;
}

std::string KernelWriter::FieldAt(int field, const std::string& index) const {
  const Field& f = source_.fields()[static_cast<size_t>(field)];
  const std::string memory = Cat("static_cast<", CTypeOf(f.carrier), "*>(args.field[", field, "])");
  if (f.elements == 1) return Cat(memory, "[instance]");
  if (source_.block()) return Cat(memory, "[instance * ", f.elements, " + ", index, "]");
  const bool simple = index.find(' ') == std::string::npos;
  return Cat(memory, "[", simple ? index : Cat("(", index, ")"), " * args.instances + instance]");
}

std::string KernelWriter::TakeBody(int next_depth) {
  return std::exchange(body_, TextWriter(next_depth)).text();
}

// The variable that stands for a field of this instance; a spread one is the field's own memory.
Place KernelWriter::LoadField(int field, const std::string& name) {
  const Field& f = source_.fields()[static_cast<size_t>(field)];
  if (f.elements == 1) {
    Line(Cat(Opening(CTypeOf(f.carrier), name), " = ", FieldAt(field, "0"), ";"));
    return {PlaceKind::kOne, name, 1};
  }
  if (!Spreads(f.elements)) {
    const Place place = {PlaceKind::kPrivate, name, f.elements};
    KeepArray(body_, CTypeOf(f.carrier), name, std::max<int64_t>(f.elements, 1));
    EachElement(place,
                [&](const std::string& i) { return Cat(place[i], " = ", FieldAt(field, i), ";"); });
    return place;
  }
  const std::string type = CTypeOf(f.carrier);
  Line(Cat(type, "* const ", name, " = static_cast<", type, "*>(args.field[", field,
           "]) + instance * ", f.elements, ";"));
  return {PlaceKind::kSpread, name, f.elements};
}

void KernelWriter::StoreField(int field, const Place& place) {
  const Field& f = source_.fields()[static_cast<size_t>(field)];
  if (place.kind == PlaceKind::kSpread || f.elements == 0) return;
  body_.Open(Cat("if (", Live(), ")"));
  EachElement(place,
              [&](const std::string& i) { return Cat(FieldAt(field, i), " = ", place[i], ";"); });
  body_.Close();
}

void KernelWriter::FillField(int field, const std::string& value) {
  const Field& f = source_.fields()[static_cast<size_t>(field)];
  const PlaceKind kind = Spreads(f.elements) ? PlaceKind::kSpread : PlaceKind::kPrivate;
  EachElement({kind, "", f.elements}, [&](const std::string& i) {
    return Cat(source_.block() && kind != PlaceKind::kSpread ? "if (speaks) "
               : source_.block()                             ? ""
                                                             : "if (live) ",
               FieldAt(field, i), " = ", value, ";");
  });
}

Place KernelWriter::LoadScalar(FieldKind kind, const std::string& name) {
  return LoadField(source_.FieldOf(kind), name);
}

std::vector<Place> KernelWriter::LoadStates() {
  std::vector<Place> states;
  for (size_t k = 0; k < source_.state_inputs().size(); ++k) {
    states.push_back(LoadField(source_.FieldOf(FieldKind::kState, static_cast<int32_t>(k)),
                               Cat("z_", source_.StateName(k))));
  }
  return states;
}

std::vector<Place> KernelWriter::LoadExports() {
  std::vector<Place> exports;
  for (size_t k = 0; k < source_.program().exports.size(); ++k) {
    exports.push_back(LoadField(source_.FieldOf(FieldKind::kExport, static_cast<int32_t>(k)),
                                Cat("out_", source_.ExportName(k))));
  }
  return exports;
}

void KernelWriter::BindStates(const std::vector<Place>& states) {
  for (size_t k = 0; k < states.size(); ++k) SetPlace(StateInput(k).value, states[k]);
}

// The states as they were sent, rounded to role state.
std::vector<Place> KernelWriter::ReadSentStates() {
  const Overflow overflow = source_.numerical().policy[Role::kState].overflow;
  const std::string mode = overflow == Overflow::kIeee ? "" : Cat(", ", OverflowText(overflow));
  std::vector<Place> states;
  for (size_t k = 0; k < source_.state_inputs().size(); ++k) {
    const Input& input = StateInput(k);
    const size_t index = source_.IndexOf(input);
    const Place place = NewVariable(Cat("sent_", source_.StateName(k)),
                                    CarrierOf(source_.At(input.value)), source_.Count(input.value));
    EachElement(place, [&](const std::string& e) {
      const std::string view = Cat("(args.input[", index, "], instance, 0, ", e, ")");
      if (!source_.IsReal(input.value)) {
        return Cat(place[e], " = ReadInteger<", source_.CType(input.value), ">", view, ";");
      }
      return Cat(place[e], " = ", LaneText(source_.FormatOf(input.value)), "::Round(ReadReal", view,
                 mode, ");");
    });
    states.push_back(place);
  }
  return states;
}

void KernelWriter::Combine(const std::string& flag) {
  if (!source_.block()) return;
  Line(Cat(flag, " = __syncthreads_or(", flag, ");"));
  dirty_ = crossed_ = false;
}

void KernelWriter::OpenShared(bool uses) {
  const bool in_workspace = SharedBytes(source_) > kLargestShared;
  if (source_.block()) kernel_.Line("const bool speaks = threadIdx.x == 0;");
  if (uses) {
    kernel_.Line(in_workspace ? "Shared& shared = *reinterpret_cast<Shared*>(args.workspace + "
                                "static_cast<int64_t>(blockIdx.x) * args.workspace_stride);"
                              : "Shared& shared = *reinterpret_cast<Shared*>(simgrad_shared);");
  }
  if (!source_.block()) return;
  kernel_.Line(
      Cat("[[maybe_unused]] unsigned char* const work = args.workspace + "
          "static_cast<int64_t>(blockIdx.x) * args.workspace_stride + ",
          in_workspace ? SharedBytes(source_) : 0, ";"));
}

std::string KernelWriter::FlushRanges() {
  TextWriter tail(1);
  for (int role : range_roles_) {
    tail.Line(Cat("if (args.ranges != nullptr) Join(*args.ranges, ", role, ", ",
                  RangesName(static_cast<Role>(role)), ");"));
  }
  return tail.text();
}

std::string KernelWriter::FlushHealth() {
  TextWriter tail(1);
  tail.Line(
      "if (counts && health_changes != 0) atomicAdd(&args.ranges->health_changes, "
      "health_changes);");
  return tail.text();
}

std::string KernelWriter::Assemble(const std::string& comment, const std::string& name,
                                   const std::string& tail) {
  TextWriter text;
  text.Raw(MemberText());
  text.Line(Cat("// ", comment));
  text.Open(
      Cat("extern \"C\" __global__ void ", name, "(const __grid_constant__ KernelArgs args)"));
  text.Raw(kernel_.text());
  if (source_.block()) {
    text.Open(
        "for (int64_t instance = blockIdx.x; instance < args.instances; instance += gridDim.x)");
    text.Line("[[maybe_unused]] const bool first_pass = instance == blockIdx.x;");
  } else {
    text.Line("const int64_t lanes = static_cast<int64_t>(gridDim.x) * blockDim.x;");
    text.Line("const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x;");
    const int64_t group = groups_ ? GroupSize() : 1;
    text.Open(Cat("for (int64_t pass = first; pass < args.instances; pass += ",
                  groups_ ? Cat(group, " * ") : "", "lanes)"));
    text.Line("[[maybe_unused]] const bool first_pass = pass == first;");
    if (groups_) {
      text.Line(Cat("Member group[", group, "];"));
      text.Line(Cat("const int members = MembersOf(args.instances - pass, lanes, ", group, ");"));
    } else {
      text.Line("const bool live = pass + threadIdx.x < args.instances;");
      text.Line("const int64_t instance = live ? pass + threadIdx.x : args.instances - 1;");
    }
  }
  if (!groups_) text.Raw(instance_.text());
  text.Raw(body_.text());
  // The slots of steps take turns, and begin anew with the next instances.
  if (source_.block() || joins_) text.Line("__syncthreads();");
  text.Close();
  text.Raw(tail);
  text.Close();
  return text.text() + "\n";
}

}  // namespace simgrad::sim::cuda
