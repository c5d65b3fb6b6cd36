// The runs of a Compare: its work as it stands, and what each variant does otherwise.
//
// All of them are prepared once before the first runs, so that a request is refused as a whole; then each is
// prepared again when it runs, so that the numbers of one are held at a time. Programs are lowered once, as
// long as the cache keeps them.
// Errors: those of Prepare, about "variants[i]" where the variant gave what is at fault; else the message
//   names it.
// Threads: one at a time.
#pragma once

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
  // Sums over all runs.
  double instance_steps() const { return instance_steps_; }
  double work_at_caps() const { return work_at_caps_; }

 private:
  absl::Status Check() const;
  absl::Status PrepareAll(PreparedWork& reference, const PrepareControl& control);
  v1::RolloutSpec& spec();
  const v1::RolloutSpec& spec() const;
  // Prepares the work as it stands now.
  absl::StatusOr<PreparedWork> PrepareWork(const PrepareControl& control);
  // The same status, about the variant where it gave the field.
  absl::Status Of(int variant, const absl::Status& status) const;

  v1::CompareRequest request_;
  conversion::ProgramCache& cache_;
  const PrepareOptions options_;
  bool sends_path_ = false;
  double instance_steps_ = 0;
  double work_at_caps_ = 0;
};

}  // namespace simgrad::server::service
