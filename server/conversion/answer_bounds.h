// Upper bounds of what an answer takes: memory while it is made, and tests of its loops.
//
// Chunks wait for a slow reader (server/service/outbox.h), so that an answer of any length takes
// what one chunk takes, and what may wait. Accuracy: what a loop tests is counted at its caps;
// level `instances` returns every tested value.
#pragma once

#include <cstdint>
#include <vector>

#include "server/conversion/work.h"

namespace simgrad::server::conversion {

struct AnswerLimits {
  int64_t max_payload_bytes = 0;  // of one message
  int64_t max_queued_bytes = 0;   // that may wait for the reader
};

// Most steps in one chunk such that what one instance did in them fits into a message, and what all
// of them did into what may wait; at least 1.
int64_t MostChunkSteps(const sim::Work& work, const std::vector<Recorded>& recorded,
                       const AnswerLimits& limits);

// Bytes that the answer holds besides what the engine needs: a chunk and its messages, those that
// wait for the reader, the program's text where it is asked for, and what is told per instance or
// step at the end. Expects work.max_chunk_steps.
int64_t AnswerBytes(const sim::Work& work, const std::vector<Recorded>& recorded,
                    v1::ProgramDetail program, const AnswerLimits& limits);

// Tests of all loops, in all instances and steps, if every loop ran to its cap.
double MostTests(const sim::Work& work);

}  // namespace simgrad::server::conversion
