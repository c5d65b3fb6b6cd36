#include "tests/sim/program/fingerprint_groups.h"

#include <algorithm>
#include <utility>

#include "sim/engine/gate.h"
#include "sim/program/detect.h"
#include "sim/program/lower.h"
#include "sim/program/print.h"
#include "sim/worlds/worlds.h"
#include "tests/sim/equality/random.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/program/woven_programs.h"

namespace simgrad::sim::fingerprints {
namespace {

using equality::Random;

void AddDefined(const Region& region, std::vector<ValueId>& ids) {
  ids.insert(ids.end(), region.args.begin(), region.args.end());
  for (const Op& op : region.ops) {
    ids.insert(ids.end(), op.results.begin(), op.results.end());
    for (const Region& nested : op.regions) AddDefined(nested, ids);
  }
}

// Which values that the text defines are looked at, in its order, where only the region at `which`
// of those that the text prints is executed.
std::string Looks(const NumericalProgram& numerical, const std::vector<const Region*>& printed,
                  size_t which) {
  const Region& region = *printed[which];
  const std::vector<bool> looks = DetectNonFinite(numerical, region, region.yields).look;
  std::string text(numerical.program.inputs.size(), '0');
  for (size_t i = 0; i < printed.size(); ++i) {
    std::vector<ValueId> ids;
    AddDefined(*printed[i], ids);
    for (ValueId id : ids) {
      if (id != ValueId::kNone) text += i == which && looks[Index(id)] ? '1' : '0';
    }
  }
  return text + "\n";
}

// A run that decided anything: some loops never ran, some events were always or never true.
Decided AnyRun(Random& random, const std::vector<Site>& sites) {
  Decided decided;
  for (const Site& site : sites) {
    if (site.kind == SiteKind::kTermination) {
      decided.iterations[site.name] = random.Chance(0.6) ? 0 : 3;
    } else {
      decided.events[site.name] = {4, static_cast<uint64_t>(random.Integer(0, 2)) * 2};
    }
  }
  return decided;
}

std::string Gates(const NumericalProgram& numerical) {
  std::string text;
  Random random(numerical.text.size());
  for (int run = 0; run < 4; ++run) {
    const Decided decided = AnyRun(random, numerical.sites);
    const sim::Gates gates = sim::Gates::Find(numerical.program, decided).value();
    for (size_t i = 0; i < numerical.program.inputs.size(); ++i) {
      text += gates.Of(static_cast<int32_t>(i)) + ";";
    }
  }
  return text + "\n";
}

std::string SitesText(const NumericalProgram& numerical) {
  std::string text;
  for (const Site& site : numerical.sites) {
    text += site.name + " " + std::to_string(site.elements) + " " + std::to_string(site.max_iter);
  }
  return text + "\n";
}

// Everything that the passes say of programs.
struct Said {
  std::string meaning, looks;

  void Add(const absl::StatusOr<NumericalProgram>& lowered) {
    if (!lowered.ok()) {
      meaning += lowered.status().ToString();
      return;
    }
    meaning += lowered->text + lowered->fingerprint + SitesText(*lowered);
    for (const Input& input : lowered->program.inputs) meaning += input.used ? 'u' : '-';
    // As the text prints them: a region that two steps share twice.
    std::vector<const Region*> printed = RegionsOf(*lowered);
    const bool shares = lowered->adjoint && !lowered->adjoint->last;
    if (shares) printed.insert(printed.end() - 2, &lowered->adjoint->inner);
    looks += Looks(*lowered, printed, 1);
    if (!lowered->adjoint) return;
    for (size_t which = printed.size() - 4; which < printed.size(); ++which) {
      looks += Looks(*lowered, printed, which);
    }
  }
  Digests Both() const { return {Fingerprint(meaning), Fingerprint(looks)}; }
};

precision::Policy PolicyOf(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  return std::get<precision::Policy>(precision::Resolve(spec));
}

// Without an objective, and with each: forward and adjoint, under every preset.
Digests OfWorld(const Program& world) {
  Said all;
  std::vector<std::string> objectives = {""};
  for (const Objective& objective : world.objectives) objectives.push_back(objective.name);
  for (const std::string& preset : precision::PresetNames()) {
    for (const std::string& objective : objectives) {
      all.Add(Lower(world, PolicyOf(preset), objective, std::nullopt));
      all.Add(Lower(world, PolicyOf(preset), objective, shaped::WantedOf(world, objective)));
    }
  }
  return all.Both();
}

// Every choice of words and flags of a built-in world.
void AddBuiltIn(std::vector<Group>& groups, const WorldSchema& schema) {
  std::vector<Config> configs = {{{"elements", 3.0}}};
  for (const ConfigField& field : schema.config) {
    std::vector<ConfigValue> values(field.words.begin(), field.words.end());
    if (field.type == ConfigType::kFlag) values = {true, false};
    if (values.empty()) continue;
    std::vector<Config> grown;
    for (const Config& config : configs) {
      for (const ConfigValue& value : values) {
        grown.push_back(config);
        grown.back()[field.name] = value;
      }
    }
    configs = std::move(grown);
  }
  for (size_t i = 0; i < configs.size(); ++i) {
    const absl::StatusOr<Program> world = BuildWorld(schema.name, configs[i]);
    if (!world.ok()) continue;  // words that exclude each other
    groups.push_back(
        {schema.name + "." + std::to_string(i), [program = *world] { return OfWorld(program); }});
  }
}

void AddShaped(std::vector<Group>& groups) {
  const std::vector<std::pair<std::string, std::function<Program()>>> worlds = {
      {"nested_tests.4.3", [] { return shaped::NestedTests(4, 3); }},
      {"nested_shifts.3.4", [] { return shaped::NestedShifts(3, 4); }},
      {"shifted_for.40", [] { return shaped::ShiftedFor(40); }},
      {"shifted_while.40", [] { return shaped::ShiftedWhile(40); }},
      {"shifted_states.40", [] { return shaped::ShiftedStates(40); }},
      {"exports.50", [] { return shaped::Exports(50); }},
      {"wide_concat.50", [] { return shaped::WideConcat(50); }},
      {"chain.pow.50", [] { return shaped::Chain(OpCode::kPow, 50); }},
      {"chain.max.50", [] { return shaped::Chain(OpCode::kMax, 50); }},
      {"casts.50", [] { return shaped::Casts(50); }},
      {"captures.50", [] { return shaped::Captures(50); }},
      {"objective_reads.50", [] { return shaped::ObjectiveReads(50); }},
  };
  for (const auto& [name, make] : worlds) {
    groups.push_back({name, [make = make] { return OfWorld(make()); }});
  }
}

Digests OfWoven(uint64_t first) {
  Said all;
  for (uint64_t seed = first; seed < first + 25; ++seed) {
    const woven::Woven woven = woven::Weave(seed);
    all.Add(Lower(woven.world, woven.policy, woven.objective, woven.adjoint));
    all.Add(Lower(woven.world, woven.policy, woven.objective, std::nullopt));
  }
  return all.Both();
}

Digests GatesOfWoven(uint64_t first) {
  std::string all;
  for (uint64_t seed = first; seed < first + 25; ++seed) {
    const woven::Woven woven = woven::Weave(seed);
    const auto lowered = Lower(woven.world, woven.policy, woven.objective, std::nullopt);
    if (lowered.ok()) all += Gates(*lowered);
  }
  return {Fingerprint(all), "-"};
}

// A case whose world declares no weights: these groups are older than they are.
absl::StatusOr<NumericalProgram> RandomWithoutWeights(uint64_t seed) {
  const auto made = equality::MakeCase(seed);
  if (!made.ok()) return made.status();
  NumericalProgram program = *made->work.batch.program;
  const bool any = std::any_of(program.program.inputs.begin(), program.program.inputs.end(),
                               [](const Input& input) { return input.weights; });
  if (!any) return program;
  Program world = made->world;
  for (Input& input : world.inputs) input.weights = false;
  return Lower(world, program.policy, program.objective, made->asked);
}

Digests GatesOfRandom(uint64_t first) {
  std::string all;
  for (uint64_t seed = first; seed < first + 25; ++seed) {
    const auto made = RandomWithoutWeights(seed);
    if (made.ok()) all += Gates(*made);
  }
  return {Fingerprint(all), "-"};
}

Digests OfRandom(uint64_t first) {
  Said all;
  for (uint64_t seed = first; seed < first + 25; ++seed) {
    const auto made = RandomWithoutWeights(seed);
    if (made.ok()) all.Add(*made);
  }
  return all.Both();
}

}  // namespace

std::vector<Group> Groups(int random_cases) {
  std::vector<Group> groups;
  for (const WorldSchema& schema : BuiltInWorlds()) AddBuiltIn(groups, schema);
  AddShaped(groups);
  for (int first = 0; first < random_cases; first += 25) {
    const uint64_t seed = static_cast<uint64_t>(first) + 1;
    groups.push_back({"woven." + std::to_string(first), [seed] { return OfWoven(seed); }});
    groups.push_back({"random." + std::to_string(first), [seed] { return OfRandom(seed); }});
    groups.push_back(
        {"gates.woven." + std::to_string(first), [seed] { return GatesOfWoven(seed); }});
    groups.push_back(
        {"gates.random." + std::to_string(first), [seed] { return GatesOfRandom(seed); }});
  }
  // Here a loop first reads a value from outside in a later round than the text would have it.
  if (random_cases <= 1925) groups.push_back({"random.1925", [] { return OfRandom(1926); }});
  return groups;
}

}  // namespace simgrad::sim::fingerprints
