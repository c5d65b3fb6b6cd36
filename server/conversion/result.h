// The results of the engine as messages: the final answer, and pieces of what is too large for
// it.
//
// A field that does not fit is left empty in the answer and sent as TensorPieces before it, under
// the name that simgrad.v1.TensorPiece states ("final_state.y", "gradient.param.k", "values",
// "path_signatures", "ok", "first_events.contact", "health": a serialised InstanceHealth).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

v1::RolloutResult RolloutResultToProto(const sim::Work& work, const sim::WorkResult& result);
v1::GradientResult GradientResultToProto(const sim::Work& work, const sim::WorkResult& result);

// Takes out of the answer what does not fit into `max_bytes`, largest first.
std::vector<v1::TensorPiece> SplitOff(v1::RolloutResult& result, int64_t max_bytes);
std::vector<v1::TensorPiece> SplitOff(v1::GradientResult& result, int64_t max_bytes);
std::vector<v1::TensorPiece> SplitOff(v1::Comparison& comparison, int64_t max_bytes);

// The name of a gradient in pieces and comparisons: "gradient.param.k".
std::string GradientField(const sim::Input& input);

// `data` as pieces of at most `max_bytes`.
std::vector<v1::TensorPiece> Pieces(const std::string& field, const std::string& data,
                                    int64_t max_bytes);
// The one of them that begins at `offset`, a multiple of `max_bytes` below the size of `data`.
v1::TensorPiece PieceAt(int64_t offset, const std::string& field, const std::string& data,
                        int64_t max_bytes);

}  // namespace simgrad::server::conversion
