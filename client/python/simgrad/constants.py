"""Numbers and arrays of Python and NumPy as literals: which element type they have, and which they take."""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U8,
    ELEMENT_TYPE_U32,
)

# A constant that meets a value of a later type is turned into that type.
_ORDER = (
    *(ELEMENT_TYPE_BOOL, ELEMENT_TYPE_U8, ELEMENT_TYPE_I32, ELEMENT_TYPE_U32, ELEMENT_TYPE_I64),
    ELEMENT_TYPE_REAL,
)
_NAMES: dict[int, str] = {
    ELEMENT_TYPE_BOOL: "bool",
    ELEMENT_TYPE_I32: "i32",
    ELEMENT_TYPE_I64: "i64",
    ELEMENT_TYPE_REAL: "real",
    ELEMENT_TYPE_U32: "u32",
    ELEMENT_TYPE_U8: "u8",
}

_ALL_TYPES = "one of real, i32, i64, u32, u8, bool, or a dtype of NumPy"
_GETS_NONE = "as a number it would get none; declare it, k: sg.Param, and send it with the call, or take its detach()"
LARGEST_WHOLE = 2**53  # from 0 on, all are numbers of f64

_DTYPES: dict[int, type] = {
    ELEMENT_TYPE_BOOL: np.bool_,
    ELEMENT_TYPE_I32: np.int32,
    ELEMENT_TYPE_I64: np.int64,
    ELEMENT_TYPE_REAL: np.float64,
    ELEMENT_TYPE_U32: np.uint32,
    ELEMENT_TYPE_U8: np.uint8,
}


def widest(elements: Iterable[int]) -> int:
    """The element type that all of these can become: bool, u8, i32, u32, i64, real, in this
    order."""
    return max(elements, key=_ORDER.index)


def element_name(element: int) -> str:
    return _NAMES.get(element, str(element))


def element_of(dtype: Any) -> int:
    """The element type that a dtype, a Python type or a name such as "i32" stands for."""
    for element, name in _NAMES.items():
        if dtype == name or (isinstance(dtype, int) and dtype is not True and dtype == element):
            return element
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype {dtype!r}: {_ALL_TYPES}") from None
    if kind.kind == "f":
        return ELEMENT_TYPE_REAL
    if kind.kind == "b":
        return ELEMENT_TYPE_BOOL
    if kind == np.int64 and dtype is not int:
        return ELEMENT_TYPE_I64
    if kind.kind == "i":
        return ELEMENT_TYPE_I32
    if kind in (np.uint32, np.uint8):
        return ELEMENT_TYPE_U32 if kind == np.uint32 else ELEMENT_TYPE_U8
    raise TypeError(f"dtype {dtype!r}: {_ALL_TYPES}")


def dtype_of(element: int) -> np.dtype[Any]:
    """NumPy's dtype for an element type; of a real f64."""
    return np.dtype(_DTYPES[element])


def constant(x: Any) -> np.ndarray:
    """x as an array of bools, integers or f64. Raises TypeError for what is no number, for masked arrays, and for tensors
    that need a gradient."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("a masked array: worlds know no masks; x.filled(0.0) has numbers in their place")
    if isinstance(x, getattr(np, "matrix", ())):  # which NumPy means to drop
        raise TypeError("a np.matrix, of which * multiplies matrices: np.asarray(a), and a @ x for a product of matrices")
    if _needs_gradient(x):
        raise TypeError(f"a tensor that needs a gradient: {_GETS_NONE}")
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        for n in array.flat if array.dtype == object else ():
            if isinstance(n, int) and not -(2**63) <= n < 2**64:
                raise TypeError(f"{_short(n)} is too large for an integer of 64 bits; write a float, such as 1e30")
        raise TypeError(f"{x!r} is neither a number, an array of numbers nor a value of the world")
    return array


def _needs_gradient(x: Any) -> bool:
    """Whether x is a tensor of PyTorch that needs a gradient, or a list with one."""
    if isinstance(x, (list, tuple)):
        return any(map(_needs_gradient, x))
    return bool(getattr(x, "requires_grad", False))


def _short(n: int) -> str:
    """The digits of an integer, of a long one how many bits it has."""
    return str(n) if n.bit_length() < 128 else f"an integer of {n.bit_length()} bits"


def is_weak(x: Any) -> bool:
    """Whether x takes the type of what it meets: Python's numbers, which have none of their own."""
    return not isinstance(x, (np.ndarray, np.generic, bool))


def own_element(x: Any) -> int:
    """The type of a constant alone: Python's numbers are reals, NumPy's integers u8, u32 or i32, or i64 where i32 does
    not hold them."""
    array = constant(x)
    if array.dtype.kind == "b" or array.dtype in (np.uint32, np.uint8):
        return element_of(array.dtype)
    if array.dtype.kind == "f" or is_weak(x):
        return ELEMENT_TYPE_REAL
    return ELEMENT_TYPE_I32 if holds(ELEMENT_TYPE_I32, array) else ELEMENT_TYPE_I64


def met_element(x: Any, others: Iterable[int]) -> int:
    """The type of a constant among values with these types: whole numbers of Python take theirs."""
    known = set(others) - {ELEMENT_TYPE_BOOL}
    return widest(known) if known and is_weak(x) and constant(x).dtype.kind in "iu" else own_element(x)


def holds(element: int, array: np.ndarray) -> bool:
    """Whether every number of an array is one of the element type."""
    if array.size == 0 or element == ELEMENT_TYPE_REAL:
        return True
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():  # NaN is none either
        return False
    if element == ELEMENT_TYPE_BOOL:
        return bool(((array == 0) | (array == 1)).all())
    limits = np.iinfo(_DTYPES[element])
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def range_of(element: int) -> str:
    """The numbers of an element type of integers or bools, for people."""
    if element == ELEMENT_TYPE_BOOL:
        return "0 or 1"
    limits = np.iinfo(_DTYPES[element])
    return f"a whole number from {limits.min} to {limits.max}"


def default_of(name: str, default: Any, element: int) -> float | None:
    """The default of an input as it travels. Raises TypeError or ValueError for one that the element type does not
    hold, or that is not exact."""
    if default is None:
        return None
    if _needs_gradient(default):
        raise TypeError(f"{name}: the default is a tensor that needs a gradient: {_GETS_NONE}")
    try:
        number = float(default)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: a default is one number, not {default!r}") from None
    if not np.isfinite(number):
        raise ValueError(f"{name}: a default is finite, not {default!r}")
    if element == ELEMENT_TYPE_REAL:
        return number
    if number != int(number) or not holds(element, np.array([int(default)], object)):
        raise ValueError(f"{name}: a default of {element_name(element)} is {range_of(element)}, not {default!r}")
    if abs(number) > LARGEST_WHOLE:
        raise ValueError(f"{name}: a default beyond 2^53 is not exact; send the number with the request")
    return number


def numbers_of(array: np.ndarray) -> list[float]:
    """Row-major; one number where all are the same to the bit."""
    flat = np.ascontiguousarray(array, np.float64).ravel()
    if flat.size == 0:
        return [0.0]
    if flat.size > 1 and flat.tobytes() == flat[:1].tobytes() * flat.size:
        flat = flat[:1]
    return [float(x) for x in flat]
