#include "server/validation/tensor_check.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/request_error.h"

namespace simgrad::server::validation {

int64_t DTypeBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F64:
    case v1::DTYPE_I64:
      return 8;
    case v1::DTYPE_F32:
    case v1::DTYPE_I32:
    case v1::DTYPE_U32:
      return 4;
    case v1::DTYPE_BF16:
    case v1::DTYPE_F16:
      return 2;
    case v1::DTYPE_E4M3:
    case v1::DTYPE_E5M2:
    case v1::DTYPE_BOOL:
    case v1::DTYPE_U8:
      return 1;
    default:
      return 0;
  }
}

bool IsRealDType(v1::DType dtype) { return v1::DTYPE_F64 <= dtype && dtype <= v1::DTYPE_E5M2; }

std::string DTypeLabel(v1::DType dtype) {
  if (!v1::DType_IsValid(dtype)) return absl::StrCat("dtype ", static_cast<int>(dtype));
  return v1::DType_Name(dtype);
}

std::string ShapeText(const google::protobuf::RepeatedField<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

namespace {

// All of them at once, as a request may have many millions.
bool AreBits(const std::string& data) {
  uint8_t any = 0;
  for (const char byte : data) any |= static_cast<uint8_t>(byte);
  return any <= 1;
}

}  // namespace

absl::Status CheckTensor(const v1::Tensor& tensor, const std::string& field,
                         const std::string& content) {
  const int64_t bytes_each = DTypeBytes(tensor.dtype());
  if (bytes_each == 0) {
    return InvalidField(field + ".dtype",
                        absl::StrCat(DTypeLabel(tensor.dtype()),
                                     " is no element type; set one of DTYPE_F64, "
                                     "F32, BF16, F16, E4M3, E5M2, I32, I64, BOOL, U32, U8"));
  }
  if (tensor.content_case() == v1::Tensor::kRef) {
    return NotSupported(field + ".ref", "no uploaded content is taken here; send it inline");
  }
  int64_t bytes = bytes_each;
  bool empty = false;
  for (int i = 0; i < tensor.shape_size(); ++i) {
    const int64_t dim = tensor.shape(i);
    if (dim < 0) {
      return InvalidField(absl::StrCat(field, ".shape[", i, "]"),
                          absl::StrCat("a dimension is at least 0, not ", dim));
    }
    if (dim == 0) {
      empty = true;
    } else if (bytes > std::numeric_limits<int64_t>::max() / dim) {
      return InvalidField(field + ".shape",
                          ShapeText(tensor.shape()) + " has more elements than can be addressed");
    } else {
      bytes *= dim;
    }
  }
  if (empty) bytes = 0;
  const std::string& data = tensor.inline_();
  if (static_cast<int64_t>(data.size()) != bytes) {
    return InvalidField(absl::StrCat(field, ".", content),
                        absl::StrCat(data.size(), " bytes, but ", DTypeLabel(tensor.dtype()), " ",
                                     ShapeText(tensor.shape()), " takes ", bytes));
  }
  if (tensor.dtype() == v1::DTYPE_BOOL && !AreBits(data)) {
    for (size_t i = 0; i < data.size(); ++i) {
      if (data[i] != 0 && data[i] != 1) {
        return InvalidField(absl::StrCat(field, ".", content),
                            absl::StrCat("byte ", i, " of a bool tensor is neither 0 nor 1"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace simgrad::server::validation
