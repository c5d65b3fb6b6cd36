#include "server/validation/path_check.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"
#include "server/validation/tensor_check.h"

namespace simgrad::server::validation {
namespace {

// Bytes of the whole path; the largest number where it is larger.
int64_t BytesOf(const PathShape& shape) {
  int64_t bytes = shape.bytes;
  for (int64_t factor : {shape.instances, shape.steps}) {
    if (factor > 0 && bytes > std::numeric_limits<int64_t>::max() / factor) {
      return std::numeric_limits<int64_t>::max();
    }
    bytes *= factor;
  }
  return bytes;
}

absl::Status CheckRecorded(const PathShape& shape, const RequestLimits& limits,
                           const std::string& field) {
  if (shape.bytes > limits.max_message_bytes / 2) {
    return LimitExceeded(
        field, absl::StrCat("the path of one instance in one step takes ", shape.bytes,
                            " bytes, messages hold ", limits.max_message_bytes / 2, " of them"));
  }
  const int64_t bytes = BytesOf(shape);
  if (bytes <= limits.max_path_bytes) return absl::OkStatus();
  return LimitExceeded(
      field, absl::StrCat("the path of ", shape.instances, " instances in ", shape.steps,
                          " steps takes ", bytes, " bytes (", shape.bytes,
                          " per instance and step); the limit is ", limits.max_path_bytes,
                          "; ask for fewer instances or steps, or lower the caps of loops"));
}

}  // namespace

absl::Status CheckPathUse(v1::PathUse use, const std::string& field) {
  if (v1::PathUse_IsValid(use)) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("unknown value ", static_cast<int>(use), "; one of RECORDED, FORCED"));
}

absl::Status CheckPath(const v1::PathOptions& path, const std::string& field) {
  if (path.record() && path.has_forced()) {
    return InvalidField(field + ".record",
                        "a run that follows a path has that path; record or force, not both");
  }
  if (!path.has_forced()) return absl::OkStatus();
  const std::string decisions = field + ".forced.decisions";
  if (path.forced().decisions().dtype() != v1::DTYPE_U8) {
    return InvalidField(decisions + ".dtype",
                        absl::StrCat("a path is bytes, DTYPE_U8, not ",
                                     DTypeLabel(path.forced().decisions().dtype())));
  }
  return CheckTensor(path.forced().decisions(), decisions);
}

absl::Status CheckPathFits(const v1::PathOptions& path, const PathShape& shape,
                           const RequestLimits& limits, const std::string& field) {
  if (path.record()) return CheckRecorded(shape, limits, field + ".record");
  if (!path.has_forced()) return absl::OkStatus();
  const v1::Path& forced = path.forced();
  if (forced.structure() != shape.structure) {
    return InvalidField(
        field + ".forced.structure",
        absl::StrCat("the path is of the structure '",
                     absl::CHexEscape(forced.structure().substr(0, 12)), "', the world of '",
                     shape.structure.substr(0, 12),
                     "'; a path fits a world of the same operations, shapes, sites and caps"));
  }
  const auto& sent = forced.decisions().shape();
  const bool fits = sent.size() == 3 && sent[0] == shape.instances && sent[1] == shape.steps &&
                    sent[2] == shape.bytes;
  if (fits && shape.steps == 0 && shape.of_initial) {
    return InvalidField(field + ".forced",
                        "`initial` follows the row of step 0, and there is no step");
  }
  if (fits) return absl::OkStatus();
  return InvalidField(field + ".forced.decisions.shape",
                      absl::StrCat("is ", ShapeText(sent), "; a path of ", shape.instances,
                                   " instances in ", shape.steps, " steps of this world is [",
                                   shape.instances, ", ", shape.steps, ", ", shape.bytes, "]"));
}

}  // namespace simgrad::server::validation
