// The witness in loops: for, while, while per element.
#include <algorithm>

#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {

Witness::Node* Witness::Moved(Scene& scene, Node* from, std::vector<double> v, Format format,
                              const Place& place) {
  Node* node = New(scene, "move", {from}, place);
  node->v = std::move(v);
  node->format = format;
  node->plain = from->plain;
  return node;
}

Witness::Node* Witness::ElementOf(Scene& scene, Node* from, const std::vector<double>& v,
                                  Format format, int64_t e, const Place& place) {
  Node* node = Moved(scene, from, {v[static_cast<size_t>(e)]}, format, place);
  node->what = "element";
  node->element = e;
  return node;
}

void Witness::RunFor(Scene& scene, const Line& line, const Place& place) {
  const Format format = Setting(line.role).format;
  std::vector<Node*> now;
  for (int id : line.in) now.push_back(scene.env[static_cast<size_t>(id)]);
  const auto move_all = [&](const Place& where) {
    for (Node*& x : now)
      x = Moved(scene, x, Bring(x, line.role, line.site, line.label), format, where);
  };
  for (int64_t j = 0; j < line.count; ++j) {
    const Place inside{place.iteration * std::max<int64_t>(line.count, 1) + j, place.element,
                       place.loop};
    move_all(inside);
    Node* index = New(scene, "index", {}, inside);
    index->v = {static_cast<double>(j)};
    index->plain = true;
    scene.env[static_cast<size_t>(line.body_args[0])] = index;
    for (size_t k = 0; k < now.size(); ++k) {
      scene.env[static_cast<size_t>(line.body_args[k + 1])] = now[k];
    }
    Run(scene, line.body, inside);
    for (size_t k = 0; k < now.size(); ++k) {
      now[k] = scene.env[static_cast<size_t>(line.body_yields[k])];
    }
  }
  move_all(place);
  for (size_t k = 0; k < now.size(); ++k) scene.env[static_cast<size_t>(line.out[k])] = now[k];
}

// One run of a while; `now` holds the carried nodes, already in the loop's format.
std::vector<Witness::Node*> Witness::RunOne(Scene& scene, const Line& line, const Place& around,
                                            const Place& start, std::vector<Node*> now,
                                            const std::vector<Node*>& rest) {
  const Format format = Setting(line.role).format;
  const auto bind = [&](const std::vector<int>& args) {
    for (size_t k = 0; k < args.size(); ++k) {
      scene.env[static_cast<size_t>(args[k])] = k < now.size() ? now[k] : rest[k - now.size()];
    }
  };
  for (int64_t it = 0;; ++it) {
    const Place inside{around.iteration * (line.count + 1) + it, start.element, line.order};
    for (Node*& x : now) x = Moved(scene, x, x->v, format, inside);
    bind(line.test_args);
    Run(scene, line.test, inside);
    double tested[2];
    for (size_t k = 0; k < 2; ++k) {
      Node* yield = scene.env[static_cast<size_t>(line.test_yields[k])];
      tested[k] = Bring(yield, Role::kTermination, line.order, line.label)[0];
    }
    if (tested[0] < tested[1] || it == line.count) break;
    bind(line.body_args);
    Run(scene, line.body, inside);
    for (size_t k = 0; k < now.size(); ++k) {
      Node* yield = scene.env[static_cast<size_t>(line.body_yields[k])];
      now[k] = Moved(scene, yield, Bring(yield, line.role, line.site, line.label), format, inside);
    }
  }
  return now;
}

void Witness::RunWhile(Scene& scene, const Line& line, const Place& place) {
  const Format format = Setting(line.role).format;
  const size_t c = static_cast<size_t>(line.carried);
  std::vector<Node*> in;
  for (int id : line.in) in.push_back(scene.env[static_cast<size_t>(id)]);
  std::vector<std::vector<double>> values;
  for (size_t k = 0; k < in.size(); ++k) {
    values.push_back(k < c ? Bring(in[k], line.role, line.site, line.label) : in[k]->v);
  }
  const int64_t runs = line.per_element ? recipe_.n : 1;
  std::vector<std::vector<Node*>> ended;
  for (int64_t e = 0; e < runs; ++e) {
    const Place start{place.iteration, line.per_element ? place.element * runs + e : place.element,
                      line.order};
    std::vector<Node*> now, rest;
    for (size_t k = 0; k < in.size(); ++k) {
      const Format own = k < c ? format : in[k]->format;
      (k < c ? now : rest)
          .push_back(line.per_element ? ElementOf(scene, in[k], values[k], own, e, start)
                                      : Moved(scene, in[k], values[k], own, start));
    }
    ended.push_back(RunOne(scene, line, place, start, std::move(now), rest));
  }
  for (size_t k = 0; k < c; ++k) {
    std::vector<Node*> parts;
    for (const auto& run : ended) parts.push_back(run[k]);
    Node* out = New(scene, line.per_element ? "gather" : "move", parts, place);
    out->format = format;
    for (const Node* part : parts) out->v.insert(out->v.end(), part->v.begin(), part->v.end());
    scene.env[static_cast<size_t>(line.out[k])] = out;
  }
}

}  // namespace simgrad::nonfinite
