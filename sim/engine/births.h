// Chooses the non-finite instances that get a birth certificate, and the state to replay each from.
//
// While the run goes forward, the first non-finite instances in row order keep their states from
// the start of the chunk in which they became non-finite. A certificate then costs the replay of
// one chunk. A birth in the adjoint is replayed from the start.
// Cost: one state of the run per chunk where no checkpoint holds it, and at most `limit` states of single instances.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/backend/reference/certificate.h"

namespace simgrad::sim {

class Births {
 public:
  Births(Run& run, const Batch& batch, int32_t limit, WorkMeter::StopCallback stop);

  // Around every forward chunk. `saved`: the state at its first step, where it is saved already.
  void BeforeChunk(int64_t first_step, std::shared_ptr<const void> saved);
  void AfterChunk();

  // The states that AfterChunk kept, by row; TakeStarts takes those of a run of the same pass.
  const std::map<size_t, ReplayStart>& starts() const { return starts_; }
  void TakeStarts(std::map<size_t, ReplayStart> starts) { starts_ = std::move(starts); }

  // Certificates of the first `limit` instances that are not ok, in row order. An instance whose
  // replay finds nothing has none. CANCELLED where `stop` said so.
  absl::StatusOr<std::vector<BirthCertificate>> Write(const std::vector<InstanceHealth>& health,
                                                      double seed_scale) const;

 private:
  Run& run_;
  const Batch& batch_;
  size_t limit_;
  WorkMeter::StopCallback stop_;
  int64_t chunk_start_ = 0;
  std::shared_ptr<const void> before_;
  std::map<size_t, ReplayStart> starts_;  // by row; the smallest `limit` rows
};

}  // namespace simgrad::sim
