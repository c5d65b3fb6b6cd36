#include "server/conversion/stream_header.h"

#include "server/conversion/enum_names.h"
#include "server/conversion/result.h"

namespace simgrad::server::conversion {

v1::StreamHeader StreamHeaderToProto(const std::vector<Recorded>& recorded, int64_t instances,
                                     int64_t steps) {
  v1::StreamHeader header;
  header.set_instances(instances);
  header.set_steps(steps);
  for (const Recorded& field : recorded) {
    if (!field.is_sent) continue;
    v1::FieldInfo* info = header.add_trajectory();
    info->set_name(field.name);
    info->set_dtype(ToProto(field.dtype));
    info->mutable_shape()->Add(field.shape.begin(), field.shape.end());
    info->set_times(field.is_state ? steps + 1 : steps);
  }
  return header;
}

}  // namespace simgrad::server::conversion
