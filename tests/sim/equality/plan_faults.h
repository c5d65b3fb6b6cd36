// Plans with one fault each, made of right ones; the comparison of executors must find every one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::equality {

struct PlanFault {
  std::string name;
  // Edits the plan; returns whether it gave the fault an occasion. What is left still ends, and stays
  // within its memory.
  std::function<bool(plan::Plan&)> plant;
};

std::vector<PlanFault> PlanFaults();

}  // namespace simgrad::sim::equality
