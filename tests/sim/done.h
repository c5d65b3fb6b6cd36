// Runs work that must succeed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"

namespace simgrad::tests {

// An empty result, and a failure, where it does not.
inline sim::WorkResult Done(
    sim::Work work, std::shared_ptr<sim::Executor> executor = sim::MakeReferenceExecutor()) {
  sim::Observer nobody;
  auto result = sim::Engine(std::move(executor)).Execute(std::move(work), nobody);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : sim::WorkResult{};
}

}  // namespace simgrad::tests
