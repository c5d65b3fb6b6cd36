// Where a worker leaves the messages of an answer; the stream takes them at the reader's speed.
//
// Threads: one worker fills it; the stream empties it on gRPC's threads.
#pragma once

#include <grpcpp/support/status.h>

#include <variant>

#include "sim/diagnostics/diagnostics.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

// What both streams may carry; results and backward blocks only where their response has them.
using Message =
    std::variant<v1::StreamHeader, v1::DiagnosticsBlock, v1::TrajectoryChunk, v1::Progress,
                 v1::TensorPiece, v1::BackwardBlock, v1::RolloutResult, v1::GradientResult>;

class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void Send(Message message) = 0;
  // Coalesced with what waits: blocks stay contiguous and none is lost.
  virtual void SendDiagnostics(const sim::StepDiagnostics& diagnostics) = 0;
  // Replaces a progress that was not sent yet.
  virtual void SendProgress(v1::Progress progress) = 0;
  // After everything sent so far. Nothing of the outbox may be touched afterwards.
  virtual void Finish(grpc::Status status) = 0;
};

}  // namespace simgrad::server::service
