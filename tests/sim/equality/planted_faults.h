// Executors with one fault each, made of a right one; the comparison must find every one of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/executor.h"

namespace simgrad::sim::equality {

struct PlantedFault {
  std::string name;
  // The faulty executor for this batch; null where the batch gives the fault no occasion.
  std::function<std::shared_ptr<Executor>(std::shared_ptr<Executor>, const Batch&)> plant;
};

std::vector<PlantedFault> PlantedFaults();

}  // namespace simgrad::sim::equality
