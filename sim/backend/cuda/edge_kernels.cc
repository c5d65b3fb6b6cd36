// simgrad_start, simgrad_finish: what comes before the first step and after the last.
#include "sim/backend/cuda/kernel_writer.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

}  // namespace

// Non-finite numbers that are read without a step, or at the first.
void KernelWriter::CheckSentInputs() {
  for (const Input& input : source_.program().inputs) {
    const size_t index = source_.IndexOf(input);
    const bool skips = input.kind == InputKind::kState || input.kind == InputKind::kStep;
    if (skips || !source_.used(index) || !source_.IsReal(input.value)) continue;
    const Place place = PlaceOf(input.value);
    const bool spread = Spreads(place.count);
    EachElement(
        {spread ? PlaceKind::kSpread : PlaceKind::kPrivate, "", place.count},
        [&](const std::string& e) { return Cat("bad_input |= !IsFinite(", place[e], ");"); });
  }
}

std::string KernelWriter::Start() {
  OpenShared(false);
  mode_ = {.looks = true};
  Line("bool bad = false;");
  Line("bool bad_input = false;");
  const std::vector<Place> sent = ReadSentStates();
  for (size_t k = 0; k < sent.size(); ++k) {
    const size_t index = source_.IndexOf(StateInput(k));
    if (!source_.used(index) || !source_.IsReal(StateInput(k).value)) continue;
    EachElement(sent[k], [&](const std::string& e) {
      return Cat("bad_input |= !IsFinite(", sent[k][e], ");");
    });
  }
  CheckSentInputs();
  std::vector<Place> states = sent;
  if (source_.program().HasInitial()) {
    const Region& initial = source_.program().initial;
    BindStates(sent);
    RunRegion(initial);
    for (size_t k = 0; k < states.size(); ++k) {
      states[k] = PlaceOf(initial.yields[k]);
      if (source_.IsReal(initial.yields[k])) LookAt(states[k], ValueId::kNone);
    }
  }
  Combine("bad");
  Combine("bad_input");
  for (size_t k = 0; k < states.size(); ++k) {
    const int field = source_.FieldOf(kState, static_cast<int32_t>(k));
    const Field& f = source_.fields()[static_cast<size_t>(field)];
    const bool spread = Spreads(f.elements);
    EachElement({spread ? PlaceKind::kSpread : PlaceKind::kPrivate, "", f.elements},
                [&](const std::string& e) {
                  const std::string one = spread ? "" : Cat("if (", Live(), ") ");
                  return Cat(one, FieldAt(field, e), " = ", states[k][e], ";");
                });
  }
  for (size_t i = 0; i < source_.fields().size(); ++i) {
    const int field = static_cast<int>(i);
    switch (source_.fields()[i].kind) {
      case kExport:
      case kCost:
      case kSignature:
        FillField(field, "0");
        break;
      case kLastEvent:
        FillField(field, "false");
        break;
      case kFirstEvent:
        FillField(field, "-1");
        break;
      case kHealth:
        FillField(field, "bad_input ? 0 : (bad ? 2 : -1)");
        break;
      default:
        break;
    }
  }
  return Assemble("z[0]: what was sent, rounded; then the region `initial`.", "simgrad_start", "");
}

void KernelWriter::BindTerminal(const Region& terminal, const std::vector<Place>& states,
                                const std::vector<Place>& exports) {
  BindStates(states);
  for (size_t k = 0; k < terminal.args.size(); ++k) {
    if (terminal.args[k] == ValueId::kNone) continue;
    SetPlace(terminal.args[k], k < states.size() ? states[k] : exports[k - states.size()]);
  }
}

std::string KernelWriter::Finish() {
  OpenShared(false);
  const Region* terminal = TerminalOf(source_.numerical());
  const Place health = LoadScalar(kHealth, "health");
  if (Stops()) Line("if (health >= 0) health |= 1;  // of a run without steps, too");
  if (terminal != nullptr) {
    const Place cost = LoadScalar(kCost, "cost");
    const std::vector<Place> states = LoadStates();
    const std::vector<Place> exports = LoadExports();
    body_.Open(
        Cat("if (", source_.block() ? "" : "live && ", "(health < 0 || (health & 1) == 0))"));
    Line("bool bad = false;");
    mode_ = {.looks = true, .time = "args.steps", .read_time = std::string(kTerminalReadTime)};
    BindTerminal(*terminal, states, exports);
    RunRegion(*terminal);
    LookAt(PlaceOf(terminal->yields[0]), ValueId::kNone);
    AddCost(terminal->yields[0]);
    Combine("bad");
    Line(Cat("if (health < 0 && bad) health = (args.steps << 8) | ", Stops() ? "3" : "2", ";"));
    Line(Stops() ? "if (health < 0) cost = next_cost;" : "cost = next_cost;");
    body_.Close();
    StoreField(source_.FieldOf(kCost), cost);
  }
  StoreField(source_.FieldOf(kHealth), health);
  return Assemble("The terminal cost, on z[steps].", "simgrad_finish", "");
}

}  // namespace simgrad::sim::cuda
