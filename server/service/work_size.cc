#include "server/service/work_size.h"

#include <algorithm>

#include "server/conversion/answer_bounds.h"

namespace simgrad::server::service {
namespace {

// Instance-steps below which an answer is not worth sending in parts, if they are quick: a test of
// a loop takes some ten nanoseconds on one core, with its operations.
constexpr int64_t kSmallWork = 4096;
constexpr double kQuickTests = 1e6;

}  // namespace

double WorkAtCaps(const PreparedWork& prepared) {
  const sim::Batch& batch = prepared.work.batch;
  const double steps = static_cast<double>(std::max<int64_t>(batch.steps, 1));
  const auto times = static_cast<double>(std::max<size_t>(prepared.cotangents.size(), 1));
  return static_cast<double>(batch.instances) * steps * times * prepared.program->step_work;
}

bool IsSmall(const sim::Work& work) {
  return work.batch.instances <= kSmallWork &&
         work.batch.instances * work.batch.steps <= kSmallWork &&
         conversion::MostTests(work) <= kQuickTests;
}

}  // namespace simgrad::server::service
