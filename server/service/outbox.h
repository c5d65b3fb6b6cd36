// Takes the parts of an answer from a worker; the stream takes them at the reader's speed.
//
// What waits for a slow reader is bounded: above a limit the worker waits with it, so that an
// answer takes no more memory than was admitted for it, and nothing of it is lost. Threads: one
// worker fills it; the stream empties it on gRPC's threads.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>

#include "server/service/encoded_part.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::server::service {

// The most that may wait for the reader of one stream before its worker does, in messages of the
// largest size: enough that a worker and a reader of the same speed do not wait for each other.
inline constexpr int64_t kQueuedMessages = 4;

class Outbox {
 public:
  virtual ~Outbox() = default;
  // Both wait for room. False: the call ended meanwhile, and what was to be sent was dropped.
  [[nodiscard]] virtual bool Send(EncodedPart part) = 0;
  // Coalesced with what waits: blocks stay contiguous and none is lost.
  [[nodiscard]] virtual bool SendDiagnostics(const sim::StepDiagnostics& diagnostics) = 0;
  // Replaces a progress that was not sent yet.
  virtual void SendProgress(v1::Progress progress) = 0;
  // After everything sent so far. Nothing of the outbox may be touched afterwards.
  virtual void Finish(grpc::Status status) = 0;
};

}  // namespace simgrad::server::service
