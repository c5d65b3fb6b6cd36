"""NumPy's elementary functions that the table has not, made of those that it has.

Docstrings say of which, as that is what gets rounded and differentiated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from simgrad.constants import constant, holds
from simgrad.numpy_arithmetic import divide_with_remainder
from simgrad.numpy_operands import builder_of, counted, real, whole
from simgrad.numpy_shapes import stack
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
)

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder

_MOST_DECIMALS = 308  # 10^309 is no number of f64
_LARGEST_EXPONENT = 4096  # of 2, and more than the 2098 from the smallest number of f64 to its largest


def is_nan(b: "ProgramBuilder", x: Any) -> "Expression":
    """Whether the sign is not finite: no comparison, so no site."""
    return _of_reals(b, x, lambda value: ~b.is_finite(b.sign(value)), False)


def is_infinite(b: "ProgramBuilder", x: Any) -> "Expression":
    """Whether x is not finite, and its sign is: no comparison, so no site."""
    return _of_reals(b, x, lambda value: b.is_finite(b.sign(value)) & ~b.is_finite(value), False)


def is_finite(b: "ProgramBuilder", x: Any) -> "Expression":
    return _of_reals(b, x, b.is_finite, True)


def _of_reals(
    b: "ProgramBuilder", x: Any, asked: Callable[["Expression"], "Expression"], of_integers: bool
) -> "Expression":
    """`asked` of reals; one answer for integers, which are finite in every format."""
    value = b.value(x)
    if value.element == ELEMENT_TYPE_REAL:
        return asked(value)
    return b.broadcast_to(b.value(of_integers, ELEMENT_TYPE_BOOL), value.shape)


def reciprocal(b: ProgramBuilder, x: Expression) -> Expression:
    """1 / x, of reals."""
    if x.element != ELEMENT_TYPE_REAL:
        raise TypeError(f"{b.here()}np.reciprocal takes reals; of integers, 1 // x and 1 / x say which quotient is meant")
    return 1.0 / x


def hypot(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """norm2 of the two, which scales them: no square leaves the format."""
    return b.norm2(stack(b.matched([real(b, x), real(b, y)])), axes=0)


def arcsinh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(x) + log1p(x / (1 + h) x / (1 + x)) with h = hypot(1, x), of -x below 0; infinities stay.

    The sum of the logarithms is that of x + h, and no factor leaves the format.
    """
    value = real(b, x)
    finite, below = b.is_finite(value), value < 0
    size = b.where(finite, b.where(below, -value, value), 0.0)
    rising = b.log1p(size) + b.log1p(size / (1 + hypot(b, 1.0, size)) * (size / (1 + size)))
    return b.where(finite, b.where(below, -rising, rising), value)


def arccosh(b: "ProgramBuilder", x: Any) -> "Expression":
    """log1p(t) + log1p(sqrt(t) sqrt(t + 2) / (1 + t)) of t = x - 1; sqrt(x) of an infinity."""
    value = real(b, x)
    finite = b.is_finite(value)
    t = b.where(finite, value - 1, 1.0)
    risen = b.log1p(t) + b.log1p(b.sqrt(t) * (b.sqrt(t + 2) / (1 + t)))
    return b.where(finite, risen, b.sqrt(b.where(finite, 1.0, value)))


def arctanh(b: "ProgramBuilder", x: Any) -> "Expression":
    """(log1p(x) - log1p(-x)) / 2."""
    value = real(b, x)
    return (b.log1p(value) - b.log1p(-value)) * 0.5


def logaddexp(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and softplus of the smaller less the larger."""
    x, y = b.matched([real(b, x), real(b, y)])
    larger, below = _larger(b, x, y)
    return larger + b.softplus(below)


def logaddexp2(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """The larger, and log1p(2^(smaller - larger)) / log(2)."""
    x, y = b.matched([real(b, x), real(b, y)])
    larger, below = _larger(b, x, y)
    return larger + b.log1p(b.exp2(below)) * (1 / math.log(2))


def _larger(
    b: "ProgramBuilder", x: "Expression", y: "Expression"
) -> tuple["Expression", "Expression"]:
    """The larger, and the smaller less the larger; 0 where the larger is infinite."""
    # At a tie one is the larger and the other the smaller, and each gets half of the cotangent.
    larger = b.max(x, y)
    return larger, b.where(b.is_finite(larger), b.min(y, x) - larger, 0.0)


def log10(b: "ProgramBuilder", x: Any) -> "Expression":
    """r + log(x / 10^r) / log(10) with r = round(q), q = log(x) / log(10): r itself at powers of ten.

    The result is q where the two are more than 4 ulps apart: the format has no number near 10^r there. The derivative is
    that of q.
    """
    value = real(b, x)
    quotient = b.log(value) / math.log(10)
    nearest = b.round(quotient)
    moved = nearest + b.log(value / b.pow(10.0, nearest)) / math.log(10) - quotient
    # An eighth of less than 4 ulps is lost in a sum. A comparison would be a site, and no cost with one has a path.
    lost = 1 - abs(b.sign(quotient + moved * 0.125 - quotient))
    return quotient + b.stop_gradient(b.where(b.is_finite(moved), moved * lost, 0.0))


def ldexp(b: "ProgramBuilder", x: Any, n: Any) -> "Expression":
    """x 2^n in three factors that every format holds, the largest last: only the last product rounds.

    Three times the exponent of the smallest normal number spans a format, from its smallest number to its largest.
    """
    exponent = _within_i32(b, n)
    smallest_normal = b.next_after(0.0, 1.0) / (b.next_after(1.0, 2.0) - 1.0)
    most = b.convert(-b.log2(smallest_normal), ELEMENT_TYPE_I32)
    result, powers = real(b, x), []
    for _ in range(3):
        part = b.min(b.max(exponent, -most), most)
        powers.append(b.exp2(b.convert(part, ELEMENT_TYPE_REAL)))
        exponent = exponent - part
    for factor in reversed(powers):
        result = result * factor
    return result


def _within_i32(b: "ProgramBuilder", n: Any) -> "Expression":
    """Exponents of 2 as i32, those beyond 4096 as 4096. Raises TypeError for reals."""
    if not hasattr(n, "builder"):
        known = constant(n)
        if known.dtype.kind == "f":
            raise TypeError(f"{b.here()}np.ldexp by {n!r}: whole numbers; x * np.exp2(y) takes reals")
        return b.value(np.clip(known, -_LARGEST_EXPONENT, _LARGEST_EXPONENT).astype(np.int32))
    if n.element == ELEMENT_TYPE_REAL:
        raise TypeError(f"{b.here()}np.ldexp by reals: whole numbers; x * np.exp2(y) takes reals")
    if n.element == ELEMENT_TYPE_I32:
        return b.value(n)
    most = np.int64(_LARGEST_EXPONENT)
    wide = b.convert(n, ELEMENT_TYPE_I64)
    return b.convert(b.min(b.max(wide, -most), most), ELEMENT_TYPE_I32)


def modf(b: "ProgramBuilder", x: Any) -> tuple["Expression", "Expression"]:
    """x - trunc(x), 0 of an infinity, and trunc(x)."""
    value = real(b, x)
    cut = b.trunc(value)
    return b.where(is_infinite(b, value), 0.0, value - cut), cut


def copysign(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """|x|, or -|x| where y is below 0; -0 is not."""
    size = b.abs(real(b, x))
    return b.where(b.value(y) < 0, -size, size)


def heaviside(b: "ProgramBuilder", x: Any, middle: Any) -> "Expression":
    """(1 + sign(x)) / 2, and `middle` at 0."""
    value = real(b, x)
    return b.where(value == 0, middle, b.sign(value) * 0.5 + 0.5)


def sinc(x: Any) -> "Expression":
    """sin(pi x) / (pi x), and 1 at 0."""
    b = builder_of(x)
    value = real(b, x)
    angle = math.pi * b.where(value == 0, 1e-20, value)
    return b.where(value == 0, 1.0, b.sin(angle) / angle)


def rounded(a: Any, decimals: int = 0) -> "Expression":
    """The nearest whole number of 10^-decimals, ties to even; integers stay integers."""
    b = builder_of(a)
    value, places = b.value(a), whole(decimals, "np.round of decimals")
    if value.element != ELEMENT_TYPE_REAL and places >= 0:
        return value
    if value.element != ELEMENT_TYPE_REAL:
        return _rounded_integers(b, counted(value), 10**-places)
    if places == 0:
        return b.round(value)
    if abs(places) > _MOST_DECIMALS:
        raise ValueError(f"{b.here()}np.round to {decimals} decimals: {_MOST_DECIMALS} at most")
    scale = 10.0 ** abs(places)
    return b.round(value * scale) / scale if places > 0 else b.round(value / scale) * scale


def _rounded_integers(b: "ProgramBuilder", value: "Expression", scale: int) -> "Expression":
    """The nearest multiple of a power of ten, ties to even, in integers; 0 of a power that they do not reach."""
    if not holds(value.element, np.array(scale, object)):
        return value * 0
    quotient, rest = divide_with_remainder(b, value, scale)
    up = (rest * 2 > scale) | (rest * 2 == scale) & (quotient % 2 == 1)
    return (quotient + up) * scale
