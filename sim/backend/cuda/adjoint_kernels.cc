// simgrad_start_adjoint, simgrad_adjoint, simgrad_finish_adjoint.
#include "sim/backend/cuda/kernel_writer.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

constexpr int64_t kLargestPrivateGradient = 16;

}  // namespace

void KernelWriter::OpenTape() {
  const int bytes = source_.tape().unit_bytes();
  const std::string unit = Cat("uint", 8 * bytes, "_t");
  if (source_.block()) {
    Line(Cat("Tape<", unit,
             "> tape(args.tape, 0, 1, static_cast<int64_t>(blockIdx.x) * "
             "args.tape_capacity);"));
    kernel_.Line("[[maybe_unused]] unsigned long long* const tape_top = &shared.tape_top;");
  } else {
    Line(Cat("Tape<", unit, "> tape(args.tape, first + threadIdx.x, lanes, 0);"));
  }
}

// What all three kernels begin with.
void KernelWriter::OpenAdjoint() {
  OpenShared(true);
  kernel_.Line("[[maybe_unused]] const bool counts = args.ranges != nullptr;");
  Line(Cat("int64_t health = ", FieldAt(source_.FieldOf(kAdjointHealth), "0"), ";"));
  Line(Cat("const bool runs = ", source_.block() ? "" : "live && ",
           "(health < 0 || (health & 1) == 0);"));
  OpenTape();
}

std::vector<SlotPlace> KernelWriter::LoadCotangents() {
  std::vector<SlotPlace> slots(source_.state_inputs().size());
  for (size_t k = 0; k < slots.size(); ++k) {
    const int32_t index = static_cast<int32_t>(k);
    const int field = source_.FieldOf(kCotangent, index);
    if (field < 0) continue;
    slots[k].cotangent = LoadField(field, Cat("ct_", source_.StateName(k)));
    slots[k].mask = {PlaceKind::kOne, "true", slots[k].cotangent.count};
    const int mask = source_.FieldOf(kCotangentMask, index);
    if (mask >= 0) slots[k].mask = LoadField(mask, Cat("ct_", source_.StateName(k), "_mask"));
  }
  return slots;
}

std::vector<SlotPlace> KernelWriter::LoadExportCotangents() {
  std::vector<SlotPlace> slots(source_.program().exports.size());
  for (size_t k = 0; k < slots.size(); ++k) {
    const int32_t index = static_cast<int32_t>(k);
    const int field = source_.FieldOf(kExportCotangent, index);
    if (field < 0) continue;
    slots[k].cotangent = LoadField(field, Cat("ct_out_", source_.ExportName(k)));
    slots[k].mask = LoadField(source_.FieldOf(kExportCotangentMask, index),
                              Cat("ct_out_", source_.ExportName(k), "_mask"));
  }
  return slots;
}

void KernelWriter::StoreSlots(FieldKind cotangent, FieldKind mask,
                              const std::vector<SlotPlace>& slots) {
  for (size_t k = 0; k < slots.size(); ++k) {
    if (!slots[k].cotangent.set()) continue;
    StoreField(source_.FieldOf(cotangent, static_cast<int32_t>(k)), slots[k].cotangent);
    const int field = source_.FieldOf(mask, static_cast<int32_t>(k));
    if (field >= 0) StoreField(field, slots[k].mask);
  }
}

void KernelWriter::LoadGradients() {
  const Program& p = source_.program();
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const int field = source_.FieldOf(kGradient, static_cast<int32_t>(i));
    if (field < 0) continue;
    const Field& f = source_.fields()[static_cast<size_t>(field)];
    const std::string type = CTypeOf(f.carrier);
    const std::string memory = Cat("static_cast<", type, "*>(args.field[", field, "])");
    const std::string step = f.per_step ? mode_.read_time : "0";
    SlotPlace& slot = gradients_[i];
    const bool small =
        f.elements == 1 || (!source_.block() && f.elements <= kLargestPrivateGradient);
    if (!f.per_step && small) {
      slot.cotangent = LoadField(field, Cat("grad_", source_.Name(p.inputs[i].value)));
    } else if (source_.block() && f.elements > 1) {
      slot.cotangent = {
          PlaceKind::kSpread,
          Cat("(", memory, " + (", step, " * args.instances + instance) * ", f.elements, ")"),
          f.elements};
    } else {
      const std::string element = Cat("(", step, " * ", f.elements, " + #) * args.instances");
      slot.cotangent = {PlaceKind::kFormula, Cat(memory, "[", element, " + instance]"), f.elements};
    }
    slot.mask = LoadField(source_.FieldOf(kConnected, static_cast<int32_t>(i)),
                          Cat("connected_", source_.Name(p.inputs[i].value)));
  }
}

void KernelWriter::StoreGradients() {
  for (const auto& [i, slot] : gradients_) {
    const int field = source_.FieldOf(kGradient, static_cast<int32_t>(i));
    if (slot.cotangent.kind == PlaceKind::kOne || slot.cotangent.kind == PlaceKind::kPrivate) {
      StoreField(field, slot.cotangent);
    }
    const int connected = source_.FieldOf(kConnected, static_cast<int32_t>(i));
    const std::string flag = slot.mask["0"];
    if (source_.block()) {
      Line(Cat("if (", flag, ") ", FieldAt(connected, "0"), " = true;"));
    } else {
      Line(Cat("if (live) ", FieldAt(connected, "0"), " = ", flag, ";"));
    }
  }
}

// A cotangent that the caller sent for entry `entry`, scaled; only where some region reads it.
SlotPlace KernelWriter::SentSlot(const std::string& name, const std::string& sent,
                                 const std::string& entry, ValueId type,
                                 const std::vector<ValueId>& readers) {
  bool reads = false;
  for (ValueId id : readers) reads |= id != ValueId::kNone;
  if (!reads || !source_.IsReal(type)) return {};
  const Format format = source_.numerical().policy[Role::kAdjoint].format;
  const int64_t count = source_.Count(type);
  SlotPlace slot;
  slot.cotangent = NewVariable(name, format == Format::kF64 ? Carrier::kF64 : Carrier::kF32, count);
  Rewrite(slot.cotangent);
  EachElement(slot.cotangent, [&](const std::string& e) {
    return Cat(slot.cotangent[e], " = ReadCotangent<", FormatText(format), ">(", sent, ", (", entry,
               ") * ", count, " + ", e, ", args.seed);");
  });
  slot.mask = {PlaceKind::kOne, Cat("(", sent, " != nullptr)"), count};
  return slot;
}

void KernelWriter::NoteHealth(const std::string& step) {
  Combine("bad");
  Line(Cat("if (health < 0 && bad) health = (", step, " << 8) | 4;"));
}

namespace {

// The argument that takes slot `slot`, behind `leading`.
ValueId ArgOf(const Region& region, size_t leading, size_t slot) {
  const size_t half = (region.args.size() - leading) / 2;
  return slot < half ? region.args[leading + slot] : ValueId::kNone;
}

}  // namespace

std::string KernelWriter::StartAdjoint() {
  const std::string read_time(kTerminalReadTime);
  const auto& adjoint = *source_.numerical().adjoint;
  const Region* const terminal = TerminalOf(source_.numerical());
  const Region& primal = terminal != nullptr ? *terminal : source_.tape().no_region();
  const size_t n = source_.state_inputs().size();
  const size_t leading = terminal != nullptr ? 1 : 0;
  Line(Cat("if (", Live(), ") ", FieldAt(source_.FieldOf(kAdjointHealth), "0"), " = ",
           FieldAt(source_.FieldOf(kHealth), "0"), ";"));
  if (source_.block()) Line("__syncthreads();");
  OpenAdjoint();
  const std::vector<Place> states = LoadStates();
  const std::vector<Place> exports = LoadExports();
  mode_ = {.tape = RunMode::TapeUse::kStore, .time = "args.steps", .read_time = read_time};
  const std::vector<SlotPlace> cotangents = LoadCotangents();
  const std::vector<SlotPlace> export_cotangents = LoadExportCotangents();
  LoadGradients();
  body_.Open("if (runs)");
  Line("bool bad = false;");
  OpenTopFrame(primal, "");
  BindTerminal(primal, states, exports);
  for (size_t k = 0; k < n; ++k) StoreTapedIn(primal, StateInput(k).value);
  StoreTapedArgs(primal);
  RunRegion(primal);
  if (source_.block()) Barrier();
  mode_ = {.looks = true, .time = "args.steps", .read_time = read_time};
  adjoint_of_ = &primal;
  std::vector<SlotPlace> sent;
  for (const bool final_state : {true, false}) {
    for (size_t k = 0; k < n; ++k) {
      sent.push_back(SentSlot(
          Cat("sent", sent.size()),
          Cat(final_state ? "args.sent_final_state[" : "args.sent_trajectory_state[", k, "]"),
          final_state ? "instance" : "instance * (args.steps + 1) + args.steps",
          StateInput(k).value, {ArgOf(adjoint.terminal, leading, sent.size())}));
    }
  }
  BindSeed(adjoint.terminal, leading);
  std::vector<SlotPlace> yields = cotangents;
  yields.insert(yields.end(), export_cotangents.begin(), export_cotangents.end());
  ReverseRegion(adjoint.terminal, primal, frames_.at(&primal), leading, sent, yields);
  NoteHealth("args.steps");
  body_.Close();
  StoreSlots(kCotangent, kCotangentMask, cotangents);
  StoreSlots(kExportCotangent, kExportCotangentMask, export_cotangents);
  StoreGradients();
  Line(Cat("if (", Live(), ") ", FieldAt(source_.FieldOf(kAdjointHealth), "0"), " = health;"));
  return Assemble("The adjoint of the terminal cost, and the cotangents sent for z[steps].",
                  "simgrad_start_adjoint", "");
}

void KernelWriter::BindSeed(const Region& region, size_t leading) {
  if (leading == 0 || region.args[0] == ValueId::kNone) return;
  SetPlace(region.args[0], {PlaceKind::kOne,
                            Cat("static_cast<", source_.CType(region.args[0]), ">(args.seed)"), 1});
}

// Runs the steps of the range once more, with a tape.
void KernelWriter::Replay(const std::vector<Place>& states) {
  const Region& step = source_.program().step;
  mode_ = {.tape = RunMode::TapeUse::kStore, .time = "t", .read_time = "t"};
  hoists_ = true;
  body_.Open("for (int64_t t = args.first_step; t < args.first_step + args.count; ++t)");
  dirty_ = crossed_ = true;
  OpenTopFrame(step, "steps_chain");
  BindStates(states);
  for (size_t k = 0; k < states.size(); ++k) StoreTapedIn(step, StateInput(k).value);
  RunRegion(step);
  std::vector<Place> next;
  std::vector<Carrier> carriers;
  for (ValueId id : step.yields) {
    next.push_back(PlaceOf(id));
    carriers.push_back(CarrierOf(source_.At(id)));
  }
  CopyAtOnce(states, next, carriers);
  if (source_.block()) Barrier();
  body_.Close();
  hoists_ = false;
}

void KernelWriter::ReverseStep(const Region& region, const std::vector<SlotPlace>& cotangents,
                               const std::vector<SlotPlace>& exports) {
  const size_t n = cotangents.size();
  const size_t e = exports.size();
  const size_t leading = source_.numerical().stage_cost == ValueId::kNone ? 0 : 1;
  std::vector<SlotPlace> args = cotangents;
  args.insert(args.end(), exports.begin(), exports.end());
  for (size_t k = 0; k < e; ++k) {
    args.push_back(SentSlot(Cat("sent", source_.NextId(), "_", source_.ExportName(k)),
                            Cat("args.sent_trajectory_export[", k, "]"),
                            "instance * args.steps + t", source_.program().exports[k].value,
                            {ArgOf(region, leading, n + e + k)}));
  }
  for (size_t k = 0; k < n; ++k) {
    args.push_back(SentSlot(Cat("sent", source_.NextId(), "_", source_.StateName(k)),
                            Cat("args.sent_trajectory_state[", k, "]"),
                            "instance * (args.steps + 1) + t", StateInput(k).value,
                            {ArgOf(region, leading, n + 2 * e + k)}));
  }
  BindSeed(region, leading);
  ReverseRegion(region, source_.program().step, "steps_chain", leading, args, cotangents);
}

void KernelWriter::JoinCotangents(const std::vector<SlotPlace>& cotangents) {
  for (const SlotPlace& slot : cotangents) {
    if (!slot.cotangent.set()) continue;
    const bool alone = slot.cotangent.kind != PlaceKind::kSpread && !Speaks().empty();
    EachElement(slot.cotangent, [&](const std::string& e) {
      return Cat("if (", alone ? "speaks && " : "", slot.mask[e], ") Join(backward, ",
                 slot.cotangent[e], ");");
    });
  }
}

std::string KernelWriter::Adjoint() {
  const auto& adjoint = *source_.numerical().adjoint;
  OpenAdjoint();
  joins_ = true;
  kernel_.Line("OnColumns(shared.backward, shared.backward, 2, ClearWord{});");
  kernel_.Line("__syncthreads();");
  const std::vector<Place> fields = LoadStates();
  std::vector<Place> states = fields;
  for (size_t k = 0; k < states.size(); ++k) {
    if (states[k].kind != PlaceKind::kSpread) continue;
    states[k] = NewVariable(Cat("replayed_", source_.StateName(k)),
                            CarrierOf(source_.At(StateInput(k).value)), states[k].count);
    Copy(states[k], fields[k]);
  }
  const std::vector<SlotPlace> cotangents = LoadCotangents();
  const std::vector<SlotPlace> exports = LoadExportCotangents();
  Line("uint32_t steps_chain = 0;");
  body_.Open("if (runs)");
  Replay(states);
  body_.Close();
  mode_ = {.looks = true, .counts_ranges = true, .time = "t", .read_time = "t"};
  adjoint_of_ = &source_.program().step;
  LoadGradients();
  if (source_.block()) Barrier();
  body_.Open("for (int64_t column = args.count - 1; column >= 0; --column)");
  Line("const int64_t t = args.first_step + column;");
  Line("[[maybe_unused]] BackwardColumn& backward = shared.backward[column & 1];");
  body_.Open("if (runs)");
  Line("bool bad = false;");
  if (adjoint.last) {
    body_.Open("if (t == args.steps - 1)");
    dirty_ = crossed_ = true;
    ReverseStep(*adjoint.last, cotangents, exports);
    body_.Close();
  }
  body_.Open(adjoint.last ? "else" : "");
  dirty_ = crossed_ = true;
  ReverseStep(adjoint.inner, cotangents, std::vector<SlotPlace>(exports.size()));
  body_.Close();
  Line("steps_chain = tape.template Load<uint32_t>(steps_chain, 0);");
  NoteHealth("t");
  JoinCotangents(cotangents);
  body_.Close();
  Line("__syncthreads();");
  body_.Open("if (args.backward_partial != nullptr)");
  Line(
      "BackwardColumn* const partial = args.backward_partial + static_cast<int64_t>(blockIdx.x) * "
      "args.count + column;");
  Line("if (first_pass) {");
  Line("  OnColumns(partial, &backward, 1, CopyWord{});");
  Line("} else {");
  Line("  OnColumns(partial, &backward, 1, MergeWord{});");
  Line("}");
  body_.Close();
  Line("OnColumns(&backward, &backward, 1, ClearWord{});");
  body_.Close();
  StoreSlots(kCotangent, kCotangentMask, cotangents);
  StoreGradients();
  Line(Cat("if (", Live(), ") ", FieldAt(source_.FieldOf(kAdjointHealth), "0"), " = health;"));
  return Assemble("Steps [first_step, first_step + count): once more with a tape, then in reverse.",
                  "simgrad_adjoint", FlushRanges());
}

// The cotangents of the states sent become their gradients.
void KernelWriter::CastGradients(const std::vector<SlotPlace>& cotangents) {
  const precision::RoleSetting& setting = source_.numerical().policy[Role::kGradient];
  for (size_t k = 0; k < cotangents.size(); ++k) {
    const SlotPlace& from = cotangents[k];
    const auto found = gradients_.find(static_cast<size_t>(source_.state_inputs()[k]));
    if (found == gradients_.end() || !from.cotangent.set()) continue;
    const Place& sum = found->second.cotangent;
    EachElement(sum, [&](const std::string& e) {
      return Cat("if (", from.mask[e], ") Accumulate(", sum[e], ", ", LaneText(setting.format),
                 "::Round(", from.cotangent[e], ", ", OverflowText(setting.overflow), "), ",
                 found->second.mask["0"], ", bad);");
    });
  }
}

std::string KernelWriter::FinishAdjoint() {
  const Region& initial = source_.program().initial;
  OpenAdjoint();
  std::vector<SlotPlace> cotangents = LoadCotangents();
  mode_ = {.tape = RunMode::TapeUse::kStore};
  LoadGradients();
  body_.Open("if (runs)");
  Line("bool bad = false;");
  if (source_.program().HasInitial()) {
    const std::vector<Place> sent = ReadSentStates();
    OpenTopFrame(initial, "");
    BindStates(sent);
    for (size_t k = 0; k < sent.size(); ++k) StoreTapedIn(initial, StateInput(k).value);
    RunRegion(initial);
    if (source_.block()) Barrier();
    mode_ = {.looks = true};
    adjoint_of_ = &initial;
    const Region& reversed = source_.numerical().adjoint->initial;
    std::vector<SlotPlace> yields;
    for (size_t k = 0; k < sent.size(); ++k) {
      const ValueId id = StateInput(k).value;
      const size_t half = reversed.yields.size() / 2;
      const ValueId type = k < half ? reversed.yields[k] : ValueId::kNone;
      yields.push_back(source_.IsReal(id) ? NewSlot(Cat("out", k), {type}) : SlotPlace{});
    }
    ReverseRegion(reversed, initial, frames_.at(&initial), 0, cotangents, yields);
    cotangents = yields;
  }
  CastGradients(cotangents);
  NoteHealth("int64_t{0}");
  body_.Close();
  StoreGradients();
  Line(Cat("if (", Live(), ") ", FieldAt(source_.FieldOf(kAdjointHealth), "0"), " = health;"));
  return Assemble("The adjoint of z[0]: gradients of what was sent.", "simgrad_finish_adjoint", "");
}

}  // namespace simgrad::sim::cuda
