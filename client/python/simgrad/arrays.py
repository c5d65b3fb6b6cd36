"""Arrays as they travel: NumPy to the wire format and back, without changing a bit.

An array travels in its own dtype (f64, f32, f16, bf16, i32, i64, u32, u8, bool), little-endian and
row-major, and is rounded once, on the server. What comes back in f64, f32, or an integer type keeps
its dtype; bf16, f16, e4m3 and e5m2 come back as the f32 that equals them exactly, or as their bits
(raw=True).
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np

from simgrad.v1 import tensor_pb2

_NUMPY_OF_DTYPE: dict[int, np.dtype[Any]] = {
    tensor_pb2.DTYPE_F64: np.dtype("<f8"),
    tensor_pb2.DTYPE_F32: np.dtype("<f4"),
    tensor_pb2.DTYPE_F16: np.dtype("<u2"),
    tensor_pb2.DTYPE_BF16: np.dtype("<u2"),
    tensor_pb2.DTYPE_E4M3: np.dtype("u1"),
    tensor_pb2.DTYPE_E5M2: np.dtype("u1"),
    tensor_pb2.DTYPE_I32: np.dtype("<i4"),
    tensor_pb2.DTYPE_I64: np.dtype("<i8"),
    tensor_pb2.DTYPE_BOOL: np.dtype("u1"),
    tensor_pb2.DTYPE_U32: np.dtype("<u4"),
    tensor_pb2.DTYPE_U8: np.dtype("u1"),
}

_DTYPE_OF_NUMPY = {
    "float64": tensor_pb2.DTYPE_F64,
    "float32": tensor_pb2.DTYPE_F32,
    "float16": tensor_pb2.DTYPE_F16,
    "bfloat16": tensor_pb2.DTYPE_BF16,  # ml_dtypes
    "int32": tensor_pb2.DTYPE_I32,
    "int64": tensor_pb2.DTYPE_I64,
    "bool": tensor_pb2.DTYPE_BOOL,
    "uint32": tensor_pb2.DTYPE_U32,
    "uint8": tensor_pb2.DTYPE_U8,
}


class Bits:
    """An array given by its bits, for formats NumPy does not have.

    Args:
      bits: uint16 (bf16, f16) or uint8 (e4m3, e5m2) array.
      format: "bf16", "f16", "e4m3" or "e5m2".
    """

    def __init__(self, bits: Any, format: str):
        widths = {"bf16": np.uint16, "f16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8}
        if format not in widths:
            raise ValueError(f"format {format!r}: one of {', '.join(widths)}")
        self.bits = np.asarray(bits)
        self.format = format
        if self.bits.dtype != widths[format]:
            raise TypeError(
                f"bits of {format} are {widths[format].__name__}, not {self.bits.dtype}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape


class PerStep:
    """Marks a control or data array that has one value per step.

    Its shape is [time, field shape] where all instances share it, [instance, time, field shape]
    else.
    Without the mark, an array with two axes more than the declared field is taken as the latter.
    """

    def __init__(self, array: Any):
        self.array = array


def travels(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype travel as they are."""
    return _wire_of(dtype) is not None


@functools.lru_cache(maxsize=256)  # NumPy takes microseconds to name a dtype
def _wire_of(dtype: np.dtype[Any]) -> int | None:
    return _DTYPE_OF_NUMPY.get(dtype.name)


def to_tensor(array: Any) -> tensor_pb2.Tensor:
    """The message that carries `array`. TypeError where its dtype cannot travel."""
    if isinstance(array, Bits):
        dtype = tensor_pb2.DType.Value("DTYPE_" + array.format.upper())
        array = array.bits
    else:
        array = np.asarray(array)
        wire = _wire_of(array.dtype)
        if wire is None:
            raise TypeError(
                f"an array of dtype {array.dtype} cannot travel: "
                f"one of {', '.join(_DTYPE_OF_NUMPY)}"
            )
        dtype = wire
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return tensor_pb2.Tensor(dtype=tensor_pb2.DType.Name(dtype), shape=array.shape, inline=array.tobytes(order="C"))


def from_bytes(dtype: int, shape: Any, data: bytes, raw: bool = False) -> np.ndarray:
    """The array that `data` holds; low formats as exact f32, or as bits where `raw`."""
    array = np.frombuffer(data, dtype=_NUMPY_OF_DTYPE[dtype]).reshape(tuple(shape))
    if dtype == tensor_pb2.DTYPE_BOOL:
        return np.asarray(array != 0)
    if raw or dtype not in _WIDEN:
        return array.copy()
    # With an axis at least: operators make a scalar of an array without one, and NumPy 1 computes that in i64.
    return _WIDEN[dtype](np.atleast_1d(array)).reshape(array.shape)


def from_tensor(tensor: tensor_pb2.Tensor, raw: bool = False) -> np.ndarray:
    return from_bytes(tensor.dtype, tensor.shape, tensor.inline, raw)


def numpy_dtype(dtype: int) -> np.dtype[Any]:
    """How one element of a wire dtype lies in memory."""
    return _NUMPY_OF_DTYPE[dtype]


def _widen_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _widen_f16(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float32)


def _widen_e5m2(bits: np.ndarray) -> np.ndarray:
    # e5m2 is the upper half of f16.
    return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def _widen_e4m3(bits: np.ndarray) -> np.ndarray:
    # (-1)^s 2^(e-7) (1 + m/8), subnormal 2^-6 m/8; NaN only at 7F and FF, no infinity.
    magnitude = (bits & 0x7F).astype(np.int32)
    exponent, mantissa = magnitude >> 3, magnitude & 7
    normal = np.ldexp((8 + mantissa).astype(np.float32), exponent - 10)
    subnormal = np.ldexp(mantissa.astype(np.float32), -9)
    value = np.where(exponent == 0, subnormal, normal)
    value = np.where(magnitude == 0x7F, np.float32("nan"), value)
    return np.where(bits & 0x80, -value, value).astype(np.float32)


_WIDEN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    tensor_pb2.DTYPE_BF16: _widen_bf16,
    tensor_pb2.DTYPE_F16: _widen_f16,
    tensor_pb2.DTYPE_E5M2: _widen_e5m2,
    tensor_pb2.DTYPE_E4M3: _widen_e4m3,
}
