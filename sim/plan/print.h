// The text of a plan, for people and tests: a statement a line, blocks indented.
#pragma once

#include <string>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

std::string Print(const Plan& plan);
std::string Print(const Function& function);

}  // namespace simgrad::sim::plan
