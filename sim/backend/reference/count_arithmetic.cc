#include "sim/backend/reference/count_arithmetic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "precision/float_environment.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/reference/replay.h"
#include "sim/program/halts.h"

namespace simgrad::sim {
namespace {

class Counting {
 public:
  Counting(const Batch& batch, const ArithmeticOptions& options, WorkMeter::StopCallback stop)
      : batch_(batch), options_(options), layouts_(*batch.program), stop_(std::move(stop)) {}

  absl::Status Instance(int64_t row) {
    reference::InstanceRun instance(batch_, layouts_, row, 0.0, stop_);
    reference::Replay replay{.batch = batch_,
                             .instance = instance,
                             .before_step = [&](int64_t t) { CountAt(t, forward_, instance); },
                             .before_reverse = [&](int64_t t) { CountAt(t, adjoint_, instance); },
                             .before_again = [&] { instance.CountInto(nullptr); },
                             .goes_on = [&] { return Holds(instance.most_kept()); }};
    instance.CountInto(&forward_);
    instance.Start();
    if (options_.adjoint) {
      replay.Reverse(0, options_.seed_scale);
    } else {
      replay.Forward();
    }
    if (!options_.adjoint || Holds(instance.most_kept())) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "to count its arithmetic, the adjoint of a step needs ", instance.most_kept(),
        " bytes of the loops that ran: a smaller max_iter or a larger tolerance would need less"));
  }

  Arithmetic Told() const { return {forward_.Rows(), adjoint_.Rows()}; }

 private:
  // The costs at the end, and `initial`, are always counted; a step of an instance that has halted
  // is not.
  void CountAt(int64_t t, ArithmeticTable& table, reference::InstanceRun& instance) const {
    const bool is_step = t >= 0 && t < batch_.steps;
    const bool is_sampled = t + 1 == batch_.steps || (t + 1) % options_.stride == 0;
    const bool halted = !batch_.program->halts.empty() &&
                        HaltOf(instance.state().states.back().integer[0]).has_value();
    instance.CountInto(is_step && (halted || !is_sampled) ? nullptr : &table);
  }

  // Whether so much may be kept. Once refused, always: what was left out stays left out.
  bool Holds(int64_t bytes) {
    if (refused_ || bytes <= held_) return !refused_;
    refused_ = bytes > options_.memory_budget_bytes ||
               (options_.reserve != nullptr && !options_.reserve(bytes - held_));
    if (!refused_) held_ = bytes;
    return !refused_;
  }

  const Batch& batch_;
  const ArithmeticOptions& options_;
  const reference::Layouts layouts_;
  const WorkMeter::StopCallback stop_;
  ArithmeticTable forward_;
  ArithmeticTable adjoint_;
  int64_t held_ = int64_t{1} << 20;  // EstimateBytes has room for so little
  bool refused_ = false;
};

}  // namespace

absl::StatusOr<Arithmetic> CountArithmetic(const Batch& batch, const ArithmeticOptions& options,
                                           WorkMeter::StopCallback stop) {
  if (absl::Status fits = CheckBatch(batch, stop); !fits.ok()) return fits;
  if (options.adjoint && !batch.program->adjoint) {
    return absl::InvalidArgumentError("the arithmetic of an adjoint that the program has not");
  }
  const precision::ScopedFloatEnvironment environment;
  Counting counting(batch, options, std::move(stop));
  const int64_t instances = std::min(options.instances, batch.instances);
  for (int64_t row = 0; row < instances; ++row) {
    absl::Status status;
    if (options.before_instance != nullptr) status = options.before_instance(row, instances);
    absl::Status counted;
    if (status.ok()) status = UntilStopped([&] { counted = counting.Instance(row); });
    if (status.ok()) status = counted;
    if (!status.ok()) return status;
  }
  return counting.Told();
}

}  // namespace simgrad::sim
