// Checks a tensor by itself: dtype, dims, and that the bytes are exactly as many as the shape says.
//
// Errors: INVALID_FIELD; NOT_SUPPORTED for a `ref`, in whose place content is put before. Cost: linear in the rank (bool: in the
// elements). Never multiplies dims into an overflow, never allocates.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "simgrad/v1/tensor.pb.h"

namespace simgrad::server::validation {

// Bytes of one element; 0 for an unknown dtype.
int64_t DTypeBytes(v1::DType dtype);
bool IsRealDType(v1::DType dtype);
std::string DTypeLabel(v1::DType dtype);

// `content`: the field of the tensor that is told where its bytes are at fault.
absl::Status CheckTensor(const v1::Tensor& tensor, const std::string& field,
                         const std::string& content = "inline");

// "[2, 3]".
std::string ShapeText(const google::protobuf::RepeatedField<int64_t>& shape);

}  // namespace simgrad::server::validation
