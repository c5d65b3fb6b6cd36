// The lanes of a function that is written, how its inputs reach it, and what it records.
//
// Cost: each record that is off costs nothing. Threads: constant data.
#pragma once

#include <vector>

namespace simgrad::sim::compiled {

struct LaneShape {
  int width = 8;  // lanes of one vector
  int parts = 2;  // vectors side by side
  int lanes() const { return width * parts; }
};

// How an input reaches a group.
struct InputForm {
  bool per_lane = false;
  bool per_step = false;
  bool sums_per_step = false;  // its gradient has an entry for each step
  bool operator==(const InputForm&) const = default;
};

struct WriterOptions {
  LaneShape shape;
  std::vector<InputForm> inputs;   // per program input
  bool stops = false;              // policy `stop`
  bool looks = false;              // at results, for health
  bool decides = false;            // records decisions
  bool ranges = false;             // records under- and overflows
  bool extremes = false;           // smallest margins and tested values among them
  bool instances = false;          // level `instances`
  bool evades_subnormals = false;  // products meet none (product_near_zero.h)
};

}  // namespace simgrad::sim::compiled
