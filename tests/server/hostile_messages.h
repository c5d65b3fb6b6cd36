// Messages made to hurt a server: the same seed and index give the same message on every machine.
//
// Each index belongs to a family: woven programs of loops alone, damaged programs and bytes, loops
// nested in every region with carried values that move on, lists that double until they are
// refused, fields that nobody knows, and wide work. Others keep rollouts and reverse one.
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "simgrad/v1/simgrad.pb.h"
#include "tests/server/victim_call.h"

namespace simgrad::server {

struct HostileMessage {
  Rpc rpc = Rpc::kRollout;
  std::string request;  // its bytes
  std::string family;   // with its sizes, for a person
};

HostileMessage MakeHostileMessage(uint64_t seed, uint64_t index);

// A small rollout that is kept, and messages that reverse it by its handle, or keep others.
v1::RolloutRequest RolloutToReverse();
HostileMessage MakeHostileReversal(uint64_t seed, uint64_t index, const std::string& handle);

// Such a message as the work of a Compare, in variants that are as bad.
HostileMessage MakeHostileComparison(uint64_t seed, uint64_t index);

}  // namespace simgrad::server
