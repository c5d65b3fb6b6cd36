// What a function of the stand-in driver does before and after its own part.
#pragma once

#include <cuda.h>

#include <functional>
#include <mutex>
#include <utility>

#include "tests/stand_in_gpu/machine.h"

namespace simgrad::stand_in {

// A context is its GPU's index, counted from one.
inline thread_local CUcontext current = nullptr;
inline int CurrentGpu() { return static_cast<int>(reinterpret_cast<intptr_t>(current)) - 1; }

inline Stream* Of(CUstream stream) { return reinterpret_cast<Stream*>(stream); }

// One call: the lock, the count, the context, then what it does.
template <class Body>
CUresult Call(const char* name, Body&& body, bool needs_context = true) {
  Machine& machine = Machine::Get();
  const std::lock_guard lock(machine.mutex());
  const CUresult begun = machine.Begin(name);
  if (begun != CUDA_SUCCESS) return begun;
  if (needs_context && current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return machine.Fail(body(machine));
}

inline CUresult PushTo(CUstream stream, std::function<CUresult()> run) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;  // simgrad never uses the default stream
  Operation operation;
  operation.run = std::move(run);
  return Machine::Get().Push(Of(stream), std::move(operation));
}

}  // namespace simgrad::stand_in
