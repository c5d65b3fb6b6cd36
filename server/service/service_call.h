// One call as the service that answers it sees it: the caller, the request, and the way back.
//
// Threads: a service may answer on any thread. What it is told comes from the threads of CallQueue.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/scheduling/caller.h"

namespace simgrad::server::service {

class ReceivedContent;

struct ServiceCall {
  const grpc::ServerContextBase& context;
  // An error: it has no token, and its request was not read.
  const absl::StatusOr<std::shared_ptr<scheduling::Caller>>& caller;
  grpc::ByteBuffer& request;  // the service may take the bytes
  // Instead, of a method that takes a stream: what its messages brought. Null where none was read.
  ReceivedContent* content = nullptr;
};

// The answer of a unary method.
class UnaryAnswer {
 public:
  // Before Finish, and once: what is to be done where the caller leaves without waiting for it.
  virtual void OnCancel(std::function<void()> left) = 0;
  // Once. The call may be gone when it returns.
  virtual void Finish(const grpc::Status& status, const grpc::ByteBuffer& response) = 0;

 protected:
  ~UnaryAnswer() = default;
};

// The events that a streaming method is told.
class StreamEvents {
 public:
  // One message was handed on; false: the call is cut off.
  virtual void OnWriteDone(bool ok) = 0;
  // The caller has left. The answer must be finished still.
  virtual void OnCancel() = 0;
  // Nothing comes any more, and the answer is gone.
  virtual void OnDone() = 0;

 protected:
  ~StreamEvents() = default;
};

// The answer of a streaming method; lives until OnDone.
class StreamAnswer {
 public:
  // Before anything is written.
  virtual void SetEvents(StreamEvents* events) = 0;
  // One message at a time: the next after OnWriteDone.
  virtual void Write(const grpc::ByteBuffer& message) = 0;
  // Once, one of both.
  virtual void WriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) = 0;
  virtual void Finish(const grpc::Status& status) = 0;
  // Cuts the call off, whatever waits for its reader. Where it does not end, asked again: cuts its
  // connection.
  virtual void Cancel() = 0;

 protected:
  ~StreamAnswer() = default;
};

}  // namespace simgrad::server::service
