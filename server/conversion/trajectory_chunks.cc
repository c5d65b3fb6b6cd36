#include "server/conversion/trajectory_chunks.h"

#include <algorithm>

namespace simgrad::server::conversion {
namespace {

v1::TrajectoryChunk MakeChunk(const Recorded& field, int64_t first_instance, int64_t instances,
                              int64_t first_time, int64_t times, const uint8_t* data,
                              int64_t bytes) {
  v1::TrajectoryChunk chunk;
  chunk.set_name(field.name);
  chunk.set_first_instance_index(first_instance);
  chunk.set_instances(instances);
  chunk.set_first_time(first_time);
  chunk.set_times(times);
  chunk.set_data(data, static_cast<size_t>(bytes));
  return chunk;
}

}  // namespace

std::vector<v1::TrajectoryChunk> TrajectoryChunks(const Recorded& field, const sim::Tensor& values,
                                                  int64_t instances, int64_t first_time,
                                                  int64_t times, int64_t max_data_bytes) {
  std::vector<v1::TrajectoryChunk> chunks;
  const int64_t time_bytes =
      sim::ElementCount(field.shape) * static_cast<int64_t>(sim::DTypeSize(field.dtype));
  const int64_t row_bytes = times * time_bytes;
  if (row_bytes == 0) return chunks;
  const uint8_t* data = values.bytes.data();
  if (row_bytes <= max_data_bytes) {
    const int64_t most = max_data_bytes / row_bytes;
    for (int64_t i = 0; i < instances; i += most) {
      const int64_t count = std::min(most, instances - i);
      chunks.push_back(
          MakeChunk(field, i, count, first_time, times, data + i * row_bytes, count * row_bytes));
    }
    return chunks;
  }
  const int64_t most = std::max<int64_t>(1, max_data_bytes / time_bytes);
  for (int64_t i = 0; i < instances; ++i) {
    for (int64_t t = 0; t < times; t += most) {
      const int64_t count = std::min(most, times - t);
      chunks.push_back(MakeChunk(field, i, 1, first_time + t, count,
                                 data + i * row_bytes + t * time_bytes, count * time_bytes));
    }
  }
  return chunks;
}

std::vector<v1::TrajectoryChunk> TrajectoryOfChunk(const std::vector<Recorded>& recorded,
                                                   const sim::ForwardChunk& chunk,
                                                   int64_t instances, int64_t max_data_bytes) {
  std::vector<v1::TrajectoryChunk> all;
  size_t state = 0;
  size_t exported = 0;
  for (const Recorded& field : recorded) {
    const sim::Tensor& values = field.is_state ? chunk.states[state++] : chunk.exports[exported++];
    if (!field.is_sent) continue;
    const int64_t first = chunk.diagnostics.first_step + (field.is_state ? 1 : 0);
    for (v1::TrajectoryChunk& part : TrajectoryChunks(field, values, instances, first,
                                                      chunk.diagnostics.steps, max_data_bytes)) {
      all.push_back(std::move(part));
    }
  }
  return all;
}

}  // namespace simgrad::server::conversion
