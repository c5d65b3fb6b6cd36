"""Reads what a call in NumPy's words was given: its builder, numbers, element types and axes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from simgrad.constants import element_of
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U32,
)

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder

Axis = int | Sequence[int] | None


def builder_of(*values: Any) -> "ProgramBuilder":
    """The builder of the first value of a world among these, in lists too."""
    found = _found(values)
    if found is None:
        raise TypeError("none of these is a value of a world")
    return found


def _found(values: Sequence[Any]) -> "ProgramBuilder | None":
    for x in values:
        inside = _found(x) if isinstance(x, (list, tuple)) else getattr(x, "builder", None)
        if inside is not None:
            return inside
    return None


def element_as(dtype: Any, held: int) -> int:
    """The element type of a dtype, for what is held in another: `int` is i64 of u32 and i64, else i32."""
    if isinstance(dtype, str) and dtype == "int":
        dtype = int
    if dtype is int and held in (ELEMENT_TYPE_U32, ELEMENT_TYPE_I64):
        return ELEMENT_TYPE_I64
    element = element_of(dtype)
    if element == ELEMENT_TYPE_I32 and dtype is not int and not _is_i32(dtype):
        raise TypeError(f"dtype {dtype!r}: worlds have no integers of 8 or 16 bits with a sign; np.int32")
    return element


def _is_i32(dtype: Any) -> bool:
    own = isinstance(dtype, int) or (isinstance(dtype, str) and dtype == "i32")
    return own or np.dtype(dtype) == np.int32


def real(b: "ProgramBuilder", x: Any) -> "Expression":
    """x as a real."""
    value = b.value(x)
    return value if value.element == ELEMENT_TYPE_REAL else b.convert(value, ELEMENT_TYPE_REAL)


def values_of(b: "ProgramBuilder", *operands: Any, among: Sequence[Any] = ()) -> "list[Expression]":
    """The operands as values, each of its own type; whole numbers of Python of that of the others and of `among`."""
    made = [b.value(x) if is_computed(x) else x for x in operands]
    known = [x.element for x in (*made, *among) if hasattr(x, "builder")]
    return [b.value(x, None if hasattr(x, "builder") else b.element_of(x, known)) for x in made]


def is_computed(x: Any) -> bool:
    """Whether x is a value of a world, or a list with one in it."""
    return _found([x]) is not None


def whole(n: Any, what: str) -> int:
    """n as an int of Python. Raises TypeError for what is none, with `what` it would have been."""
    try:
        return operator.index(n)
    except TypeError:
        raise TypeError(f"{what} {n!r}: a whole number that is known") from None


def counted(x: "Expression") -> "Expression":
    """x, with bools as the i32 0 and 1."""
    return x.astype("i32") if x.element == ELEMENT_TYPE_BOOL else x


def axes_in_order(x: Any, axis: int | Sequence[int]) -> list[int]:
    """Counted from the front, in the order given. Raises ValueError for one that is outside or stands twice."""
    given = [axis] if np.ndim(axis) == 0 else list(axis)  # type: ignore[arg-type]
    axes = [whole(a, "axis") for a in given]
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"{x.builder.here()}axis {axis} is none of an array of shape {x.shape}")
    in_front = [a % x.ndim for a in axes]
    if len(set(in_front)) < len(axes):
        raise ValueError(f"{x.builder.here()}axis {axis} names an axis twice")
    return in_front


def axes_of(x: Any, axis: Axis) -> list[int]:
    """Ascending, counted from the front; None: all."""
    return list(range(x.ndim)) if axis is None else sorted(axes_in_order(x, axis))


def axis_of(x: Any, axis: int) -> int:
    """One axis, counted from the front. Raises TypeError for several."""
    if np.ndim(axis):
        raise TypeError(f"{x.builder.here()}axis {axis}: one axis, as a whole number")
    return axes_in_order(x, axis)[0]


def along_one(x: Any, axis: int | None) -> tuple["Expression", int]:
    """x and its axis counted from the front; None: x flat, and 0."""
    return (x.reshape(-1), 0) if axis is None else (x, axis_of(x, axis))
