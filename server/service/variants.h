// The runs of a Compare: its work as it stands, and what each variant does otherwise.
//
// All of them are prepared once before the first runs, so that a request is refused as a whole; then each is
// prepared again when it runs, so that the numbers of one are held at a time, and before, of one beside the
// reference. Programs are lowered once, as long as the cache keeps them.
// Errors: those of Prepare, about "variants[i]" where the variant gave what is at fault; else the message
//   names it.
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/service/prepare.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

// The most variants of one request.
inline constexpr int kMostVariants = 64;

class Variants {
 public:
  // The cache stays. `request`: references in it are resolved.
  Variants(v1::CompareRequest request, conversion::ProgramCache& cache, PrepareOptions options);

  // The reference, with the `variants` themselves; its memory is that of the largest run, and of what is kept
  // of the reference.
  static absl::StatusOr<PreparedWork> Begin(std::shared_ptr<Variants> variants,
                                            const PrepareControl& control);

  int count() const { return request_.variants_size(); }
  absl::StatusOr<PreparedWork> Prepare(int variant, const PrepareControl& control);
  // The label of its world, for metrics.
  std::string LabelOf(int variant) const;
  // The status of a run of a variant, with its name in it.
  absl::Status Of(int variant, const absl::Status& status) const;
  // Sums over all runs.
  double instance_steps() const { return instance_steps_; }
  double work_at_caps() const { return work_at_caps_; }

 private:
  // By group of inputs, and by input of a variant in it: the place among the inputs of the work that it
  // takes, where those that the work lacks stand behind its own.
  using Places = std::array<std::vector<int>, 4>;
  class Exchanged;

  absl::Status Check() const;
  // Checks the inputs of variants by themselves, and finds their places. Throws sim::StopRequested.
  absl::Status Place(sim::WorkMeter& meter);
  absl::Status PrepareAll(PreparedWork& reference, const PrepareControl& control);
  v1::RolloutSpec& spec();
  const v1::RolloutSpec& spec() const;
  // Prepares the work as it stands now.
  absl::StatusOr<PreparedWork> PrepareWork(const PrepareControl& control);
  // A text with the inputs of the variant, where it names those of the work whose places they took.
  std::string Named(int variant, const std::string& text) const;

  v1::CompareRequest request_;
  conversion::ProgramCache& cache_;
  const PrepareOptions options_;
  std::vector<Places> places_;  // by variant
  bool sends_path_ = false;
  double instance_steps_ = 0;
  double work_at_caps_ = 0;
};

}  // namespace simgrad::server::service
