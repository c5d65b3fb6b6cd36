"""NumPy's sums, means and extremes along axes, on values of a world."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Sequence

from simgrad.numpy_operands import Axis, along_one, axes_of, builder_of, counted, real
from simgrad.numpy_shapes import reshape
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL

if TYPE_CHECKING:
    from simgrad.expression import Expression


def kept(x: Any, axes: Sequence[int], result: "Expression", keepdims: bool) -> "Expression":
    return (
        reshape(result, [1 if a in axes else n for a, n in enumerate(x.shape)])
        if keepdims
        else result
    )


def reduced(code: str, x: Any, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """sum, prod, any, all; any and all of numbers ask whether they are not 0."""
    b, axes = builder_of(x), axes_of(x, axis)
    if code in ("any", "all") and x.element != ELEMENT_TYPE_BOOL:
        x = b.convert(x, ELEMENT_TYPE_BOOL)
    if code in ("sum", "prod"):
        x = counted(x)
    result = b.apply(code, x, axes=axes) if axes else x
    return kept(x, axes, result, keepdims)


def mean(a: Any, axis: Axis = None, *, keepdims: bool = False) -> "Expression":
    """The sum, of reals, divided by the number of elements."""
    b = builder_of(a)
    count = math.prod(a.shape[i] for i in axes_of(a, axis))
    return b.div(reduced("sum", real(b, a), axis, keepdims), float(count))


def variance(a: Any, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> "Expression":
    """The sum of squared differences from the mean, divided by the number of elements less ddof, at least by 0."""
    x = real(builder_of(a), a)
    centred = x - mean(x, axis, keepdims=True)
    count = math.prod(x.shape[i] for i in axes_of(x, axis))
    return reduced("sum", centred * centred, axis, keepdims) / float(max(count - ddof, 0))


def extreme(code: str, x: Any, axis: Axis = None, keepdims: bool = False) -> "Expression":
    """reduce_max and reduce_min, one axis after the other from the last; all axes at once as one. Of bools any and all."""
    b, axes = builder_of(x), axes_of(x, axis)
    if x.element == ELEMENT_TYPE_BOOL:
        return reduced("any" if code == "reduce_max" else "all", x, axis, keepdims)
    if len(axes) == x.ndim > 0:
        return kept(x, axes, b.apply(code, x.reshape(-1), axes=0), keepdims)
    result = x
    for a in reversed(axes):
        result = b.apply(code, result, axes=a)
    return kept(x, axes, result, keepdims)


def argument(code: str, x: Any, axis: int | None = None) -> "Expression":
    of, along = along_one(x, axis)
    return builder_of(x).apply(code, counted(of), axes=along)


def cumsum(a: Any, axis: int | None = None) -> "Expression":
    of, along = along_one(a, axis)
    return builder_of(a).cumsum(counted(of), axes=along)
