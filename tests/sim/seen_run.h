// Runs work, and keeps what the run told of all its steps beside its result.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "sim/engine.h"

namespace simgrad::tests {

class JoinedDiagnostics : public sim::Observer {
 public:
  void OnForward(const sim::ForwardChunk& chunk) override {
    if (diagnostics.steps == 0) {
      diagnostics = chunk.diagnostics;
    } else {
      diagnostics.Append(chunk.diagnostics);
    }
  }
  sim::StepDiagnostics diagnostics;
};

struct SeenRun {
  sim::WorkResult result;
  sim::StepDiagnostics diagnostics;
};

inline SeenRun RunSeen(const std::shared_ptr<sim::Executor>& executor, sim::Work work) {
  JoinedDiagnostics joined;
  auto result = sim::Engine(executor).Execute(std::move(work), joined);
  EXPECT_TRUE(result.ok()) << result.status();
  SeenRun seen{{}, std::move(joined.diagnostics)};
  if (result.ok()) seen.result = *std::move(result);
  return seen;
}

}  // namespace simgrad::tests
