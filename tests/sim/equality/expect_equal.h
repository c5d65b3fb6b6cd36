// The expectations that random cases put to an executor. Environment: SIMGRAD_SEED=n runs case n
// alone, SIMGRAD_LONG=1 thirty times as many.
//
// Large cases have seeds of their own: their worlds are written in sections, for two steps of three
// instances.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/backend/executor.h"
#include "tests/sim/equality/coverage.h"
#include "tests/sim/equality/large_coverage.h"
#include "tests/sim/equality/matmul_coverage.h"

namespace simgrad::sim::equality {

struct NamedExecutor {
  std::string name;
  std::shared_ptr<Executor> executor;
};

// Every case gives the bits of the reference on each of them, though it is cut into other chunks,
// with other checkpoints and threads.
void ExpectEqualToReference(const std::vector<NamedExecutor>& executors, Coverage& coverage);

// One instance of a case, alone, gives what it gives among the others. Every fifth case.
void ExpectInstancesAlone(std::shared_ptr<Executor> executor);

// As ExpectEqualToReference, for large cases: kLargeCases of them, fewer under sanitizers.
inline constexpr int kLargeCases = 30;
void ExpectLargeEqualToReference(const std::vector<NamedExecutor>& executors,
                                 LargeCoverage& coverage);

// As ExpectEqualToReference, for cases about matmul: kMatmulCases of them.
inline constexpr int kMatmulCases = 100;
void ExpectMatmulsEqualToReference(const std::vector<NamedExecutor>& executors,
                                   MatmulCoverage& coverage);

// Whether so many cases ran that their coverage says something.
bool IsWholeSeries(const Coverage& coverage);

}  // namespace simgrad::sim::equality
