from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
DTYPE_BF16: DType
DTYPE_BOOL: DType
DTYPE_E4M3: DType
DTYPE_E5M2: DType
DTYPE_F16: DType
DTYPE_F32: DType
DTYPE_F64: DType
DTYPE_I32: DType
DTYPE_I64: DType
DTYPE_U32: DType
DTYPE_U8: DType
DTYPE_UNSPECIFIED: DType

class Tensor(_message.Message):
    __slots__ = ["dtype", "inline", "ref", "shape"]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    inline: bytes
    ref: bytes
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., inline: _Optional[bytes] = ..., ref: _Optional[bytes] = ...) -> None: ...

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
