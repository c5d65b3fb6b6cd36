// simgrad_forward.
#include "sim/backend/cuda/kernel_writer.h"

namespace simgrad::sim::cuda {
namespace {

using enum FieldKind;

}  // namespace

void KernelWriter::CheckStepInputs() {
  for (const Input& input : source_.program().inputs) {
    const size_t index = source_.IndexOf(input);
    if (!source_.per_step(index) || !source_.used(index) || !source_.IsReal(input.value)) continue;
    const Place place = PlaceOf(input.value);
    const bool spread = Spreads(place.count);
    EachElement({spread ? PlaceKind::kSpread : PlaceKind::kPrivate, "", place.count},
                [&](const std::string& e) {
                  return Cat("bad_input |= t > 0 && !IsFinite(", place[e], ");");
                });
  }
}

void KernelWriter::AddCost(ValueId cost) {
  const Format format = source_.numerical().policy[Role::kObjective].format;
  const std::string value = PlaceOf(cost)["0"];
  const bool same = source_.FormatOf(cost) == format;
  const std::string type = format == Format::kF64 ? "double" : "float";
  Line(Cat("const ", type, " next_cost = ",
           same ? Cat(LaneText(format), "::Add(cost, ", value, ")")
                : Cat("static_cast<", type, ">(precision::Add(", FormatText(format), ", cost, ",
                      value, "))"),
           ";"));
  Line("bad |= !IsFinite(next_cost);");
}

// What travels with the decisions of an instance, and its cells of level `instances`.
void KernelWriter::DeclareSites() {
  Line(Cat(Opening("uint64_t", "signature"), " = 0;"));
  for (const Site& site : source_.numerical().sites) {
    if (site.kind != SiteKind::kEvent) continue;
    const SiteText& text = source_.SiteOf(site.name);
    const int last = source_.FieldOf(kLastEvent, text.index);
    const std::string name = Cat("last_event_", text.name);
    if (site.elements == 1) {
      KeepArray(body_, "bool", name, 1);
      Line(Cat(name, "[0] = ", FieldAt(last, "0"), ";"));
    } else if (source_.block()) {
      Line(Cat("bool* const ", name, " = static_cast<bool*>(args.field[", last, "]) + instance * ",
               site.elements, ";"));
    } else {
      kernel_.Line(Cat("bool* const ", name, " = static_cast<bool*>(args.field[", last, "]);"));
    }
    Line(Cat(Opening("int64_t", Cat("first_event_", text.name)), " = ",
             FieldAt(source_.FieldOf(kFirstEvent, text.index), "0"), ";"));
  }
  if (source_.terminations() == 0) return;
  const std::string tells = source_.block() ? "if (tells && speaks)" : "if (tells)";
  if (source_.block()) {
    Line("InstanceTally* const ran = shared.ran;");
  } else if (source_.recording() == Recording::kInstances) {
    KeepArray(body_, "InstanceTally", "ran", source_.terminations());
  } else {
    kernel_.Line(Cat("InstanceTally ran[", source_.terminations(), "];"));
  }
  body_.Open(tells);
  Line(Cat("for (int k = 0; k < ", source_.terminations(),
           "; ++k) StartTelling(args, k, instance, ran[k]);"));
  body_.Close();
}

void KernelWriter::DeclareTallies() {
  for (int k = 0; k < source_.terminations(); ++k) {
    Line(Cat("TerminationTally loop_", source_.TerminationName(k), ";"));
  }
  for (int k = 0; k < source_.events(); ++k) {
    Line(Cat("EventTally event_", source_.EventName(k), ";"));
  }
  if (source_.numerical().adjoint) Line("unsigned long long units = 0;");
}

void KernelWriter::Commit(const std::vector<Place>& states, const std::vector<Place>& exports) {
  const Region& step = source_.program().step;
  // Exports first: they may be states of z[t].
  for (size_t k = 0; k < exports.size(); ++k) {
    Copy(exports[k], PlaceOf(source_.program().exports[k].value));
  }
  std::vector<Place> next;
  std::vector<Carrier> carriers;
  for (ValueId id : step.yields) {
    next.push_back(PlaceOf(id));
    carriers.push_back(CarrierOf(source_.At(id)));
  }
  CopyAtOnce(states, next, carriers);
  if (source_.numerical().stage_cost != ValueId::kNone) Line("cost = next_cost;");
  for (size_t k = 0; k < states.size(); ++k) {
    const ValueId id = StateInput(k).value;
    if (!source_.IsReal(id)) continue;
    const bool alone = states[k].kind != PlaceKind::kSpread && !Speaks().empty();
    EachElement(states[k], [&](const std::string& e) {
      return Cat("if (counts", alone ? " && speaks" : "", ") CountStore<",
                 FormatText(source_.FormatOf(id)), ">(", RangesOf(Role::kState), ", ", states[k][e],
                 ");");
    });
  }
}

// One step of an instance that runs.
void KernelWriter::Step(const std::vector<Place>& states, const std::vector<Place>& exports) {
  const Region& step = source_.program().step;
  const bool metered = source_.numerical().adjoint.has_value();
  mode_ = {.decides = true, .looks = true, .counts_ranges = true, .time = "t", .read_time = "t"};
  if (metered) {
    mode_.tape = RunMode::TapeUse::kMeter;
    Line("TapeMeter tape;");
    Line("[[maybe_unused]] uint32_t steps_chain = 0;");
    OpenTopFrame(step, "steps_chain");
  }
  Line("// z[t + 1] of z[t].");
  CheckStepInputs();
  BindStates(states);
  RunRegion(step);
  for (ValueId id : step.yields) {
    if (source_.IsReal(id)) LookAt(PlaceOf(id), ValueId::kNone);
  }
  if (source_.numerical().stage_cost != ValueId::kNone) AddCost(source_.numerical().stage_cost);
  Combine("bad");
  Combine("bad_input");
  body_.Open("if (health < 0 && (bad || bad_input))");
  Line("health = (t << 8) | (bad_input ? 0 : 2);");
  Line(Cat("if (", Speaking("counts"), ") ++health_changes;"));
  body_.Close();
  if (Stops()) {
    body_.Open("if (health >= 0)");
    Line("health |= 1;");
    Line(Cat("if (", Speaking("counts"), ") ++health_changes;"));
    body_.Close();
    body_.Open("if (health < 0)");
    Commit(states, exports);
    body_.Close();
  } else {
    Commit(states, exports);
  }
  if (groups_ && Stops()) Line("++ran_steps;");
  if (!metered) return;
  Line(Cat("if (", Speaking("tape.top > units"), ") units = tape.top;"));
}

void KernelWriter::WriteTrajectories(const std::vector<Place>& states,
                                     const std::vector<Place>& exports) {
  const auto write = [&](const std::string& list, const std::vector<Place>& places,
                         FieldKind kind) {
    body_.Open(Cat("if (writes && args.", list, " != nullptr)"));
    for (size_t k = 0; k < places.size(); ++k) {
      const int field = source_.FieldOf(kind, static_cast<int32_t>(k));
      const Field& f = source_.fields()[static_cast<size_t>(field)];
      if (f.elements == 0) continue;
      const bool spread = places[k].kind == PlaceKind::kSpread;
      body_.Open(
          Cat("if (", spread ? "" : Cat(Live(), " && "), "args.", list, "[", k, "] != nullptr)"));
      EachElement(places[k], [&](const std::string& e) {
        return Cat("static_cast<", CTypeOf(f.carrier), "*>(args.", list, "[", k,
                   "])[(column * args.instances + instance) * ", f.elements, " + ", e,
                   "] = ", places[k][e], ";");
      });
      body_.Close();
    }
    body_.Close();
  };
  write("state_trajectory", states, kState);
  write("export_trajectory", exports, kExport);
}

void KernelWriter::TellStep() {
  if (source_.terminations() == 0) return;
  if (source_.block()) Line("if (tells) __syncthreads();");
  body_.Open(Cat("if (tells && ", Live(), ")"));
  Line(Cat("for (int k = 0; k < ", source_.terminations(),
           "; ++k) TellStep(args, k, column, instance, ran[k]);"));
  body_.Close();
}

// The ranges of the states that the step left, where they are sampled.
std::string KernelWriter::SampleText(const std::vector<Place>& states) {
  if (source_.real_states() == 0) return "";
  constexpr int kDepth = 5;
  body_ = TextWriter(groups_ ? kDepth + 1 : kDepth);
  TextWriter tallies(kDepth);
  TextWriter joins(kDepth);
  int real = 0;
  for (size_t k = 0; k < states.size(); ++k) {
    const ValueId id = StateInput(k).value;
    if (!source_.IsReal(id)) continue;
    const std::string range = Cat("range_", source_.StateName(k));
    tallies.Line(Cat("StateTally ", range, ";"));
    const bool alone = states[k].kind != PlaceKind::kSpread;
    EachElement(states[k], [&](const std::string& e) {
      return Cat(alone ? Cat("if (", Live(), ") ") : "", range, ".See<",
                 FormatText(source_.FormatOf(id)), ">(", states[k][e], ");");
    });
    joins.Line(Cat("Join(slot.state[", real++, "], ", range, ");"));
  }
  TextWriter text(kDepth - 1);
  text.Open("if (sampled)");
  text.Raw(tallies.text());
  text.Raw(OverGroup(TakeBody(kDepth), kDepth));
  text.Raw(joins.text());
  text.Close();
  return text.text();
}

// The diagnostics of the step: the threads of the block join what they gathered.
void KernelWriter::JoinStep(const std::string& sample) {
  Line("// Diagnostics of the step: the threads of the block join what they saw.");
  if (source_.numerical().adjoint) {
    Line("if (args.tape_units != nullptr) RaiseTapeUnits(&args.tape_units[t], units);");
  }
  body_.Open("if (records)");
  for (int k = 0; k < source_.terminations(); ++k) {
    Line(Cat("Join(slot.termination[", k, "], loop_", source_.TerminationName(k), ");"));
  }
  for (int k = 0; k < source_.events(); ++k) {
    Line(Cat("Join(slot.event[", k, "], event_", source_.EventName(k), ");"));
  }
  body_.Raw(sample);
  Line("__syncthreads();");
  for (int k = 0; k < source_.terminations(); ++k) {
    Line(Cat("JoinKeys(slot.termination[", k, "], loop_", source_.TerminationName(k), ");"));
  }
  for (int k = 0; k < source_.events(); ++k) {
    Line(Cat("JoinKeys(slot.event[", k, "], event_", source_.EventName(k), ");"));
  }
  Line("__syncthreads();");
  Line("slot.Leave(args, column, sampled ? sample : -1, first_pass);");
  body_.Close();
  Line("sample += sampled ? 1 : 0;");
}

void KernelWriter::StoreSites() {
  const int signature = source_.FieldOf(kSignature);
  if (source_.block()) {
    Line(Cat("atomicAdd(reinterpret_cast<unsigned long long*>(&", FieldAt(signature, "0"),
             "), static_cast<unsigned long long>(signature));"));
  } else {
    Line(Cat("if (live) ", FieldAt(signature, "0"), " += static_cast<int64_t>(signature);"));
  }
  for (const Site& site : source_.numerical().sites) {
    if (site.kind != SiteKind::kEvent) continue;
    const int k = source_.SiteOf(site.name).index;
    const std::string event = Cat("event_", source_.EventName(k));
    if (site.elements == 1) {
      Line(Cat("if (", Live(), ") ", FieldAt(source_.FieldOf(kLastEvent, k), "0"), " = last_",
               event, "[0];"));
    }
    const std::string first = FieldAt(source_.FieldOf(kFirstEvent, k), "0");
    if (source_.block()) {
      Line(Cat("if (first_", event, " >= 0) atomicMin(reinterpret_cast<unsigned long long*>(&",
               first, "), static_cast<unsigned long long>(first_", event, "));"));
    } else {
      Line(Cat("if (live) ", first, " = first_", event, ";"));
    }
  }
}

// What the text records is fixed when it is generated.
void KernelWriter::OpenForward() {
  OpenShared(true);
  joins_ = true;
  switch (source_.recording()) {
    case Recording::kInstances:
      kernel_.Line("const bool records = (args.flags & kRecordSteps) != 0;");
      kernel_.Line("const bool tells = (args.flags & (kRecordInstances | kValuesPass)) != 0;");
      kernel_.Line("const bool writes = (args.flags & kValuesPass) == 0;");
      break;
    case Recording::kNone:
      kernel_.Line("constexpr bool records = false, tells = false, writes = true;");
      break;
    default:
      kernel_.Line("constexpr bool records = true, tells = false, writes = true;");
  }
  kernel_.Line("[[maybe_unused]] const bool counts = records;");
  kernel_.Line("unsigned long long health_changes = 0;");
  kernel_.Open("if (records)");
  kernel_.Line("shared.slots[0].Clear();");
  kernel_.Line("shared.slots[1].Clear();");
  // A block per instance has a barrier behind its sites.
  if (!source_.block()) kernel_.Line("__syncthreads();");
  kernel_.Close();
  if (source_.block()) {
    kernel_.Line("[[maybe_unused]] unsigned long long* const tape_top = &shared.tape_top;");
  }
}

// What constant casts gave once, for all the steps that an instance ran.
void KernelWriter::RepeatRanges(TextWriter& text, const std::string& steps) {
  for (int role : constant_roles_) {
    const std::string ranges = RangesName(static_cast<Role>(role));
    text.Line(Cat("if (live) AddRepeated(", ranges, ", constant_", ranges, ", ", steps, ");"));
  }
}

// What is read before the steps; the depths of what is done for an instance differ by the loops
// around it.
std::string KernelWriter::LoadText(Travelling& instance) {
  body_ = TextWriter(groups_ ? 3 : 2);
  if (groups_) {
    instance_ = TextWriter(3);
    FindConstantCasts(source_.program().step, Stops());
  }
  instance.states = LoadStates();
  instance.exports = LoadExports();
  if (source_.FieldOf(kCost) >= 0) instance.cost = LoadScalar(kCost, "cost");
  instance.health = LoadScalar(kHealth, "health");
  Line(Cat(Opening("uint32_t", "rank"), " = args.rank[instance];"));
  if (groups_ && Stops()) Line(Cat(Opening("int64_t", "ran_steps"), " = 0;"));
  DeclareSites();
  return TakeBody(0);
}

std::string KernelWriter::StepText(const Travelling& instance) {
  body_ = TextWriter(groups_ ? 4 : 3);
  body_.Open(Cat("if (", source_.block() ? "" : "live && ", "(health < 0 || (health & 1) == 0))"));
  Line("bool bad = false;");
  Line("bool bad_input = false;");
  dirty_ = crossed_ = true;
  Step(instance.states, instance.exports);
  body_.Close();
  WriteTrajectories(instance.states, instance.exports);
  TellStep();
  return TakeBody(0);
}

std::string KernelWriter::StoreText(const Travelling& instance) {
  body_ = TextWriter(groups_ ? 3 : 2);
  for (size_t k = 0; k < instance.states.size(); ++k) {
    StoreField(source_.FieldOf(kState, static_cast<int32_t>(k)), instance.states[k]);
  }
  for (size_t k = 0; k < instance.exports.size(); ++k) {
    StoreField(source_.FieldOf(kExport, static_cast<int32_t>(k)), instance.exports[k]);
  }
  if (instance.cost.set()) StoreField(source_.FieldOf(kCost), instance.cost);
  StoreField(source_.FieldOf(kHealth), instance.health);
  StoreSites();
  if (Stops()) RepeatRanges(body_, "ran_steps");
  return TakeBody(0);
}

// Where steps are joined over a block, its threads take all their instances through a step first.
std::string KernelWriter::Forward() {
  OpenForward();
  groups_ = !source_.block() && source_.recording() != Recording::kNone;
  Travelling instance;
  const std::string load = LoadText(instance);
  const std::string step = StepText(instance);
  const std::string sample = SampleText(instance.states);
  const std::string store = StoreText(instance);
  // Now it is known what is kept of an instance, and what is read once.
  if (!Stops()) RepeatRanges(instance_, "args.count");
  constexpr int kDepth = 2;
  body_ = TextWriter(kDepth);
  body_.Raw(OverGroup(groups_ ? instance_.text() + load : load, kDepth));
  Line("int64_t sample = 0;");
  if (source_.block()) Line("__syncthreads();");
  body_.Open("for (int64_t column = 0; column < args.count; ++column)");
  Line("const int64_t t = args.first_step + column;");
  Line(
      "const bool sampled = (args.stride > 0 && (t + 1) % args.stride == 0) || t + 1 == "
      "args.steps;");
  Line("[[maybe_unused]] auto& slot = shared.slots[column & 1];");
  DeclareTallies();
  body_.Raw(OverGroup(step, kDepth + 1));
  // What reads elements of others stands before the last Combine of the step.
  JoinStep(sample);
  body_.Close();
  body_.Raw(OverGroup(store, kDepth));
  return Assemble("Steps [first_step, first_step + count), their decisions and diagnostics.",
                  "simgrad_forward", FlushRanges() + FlushHealth());
}

}  // namespace simgrad::sim::cuda
