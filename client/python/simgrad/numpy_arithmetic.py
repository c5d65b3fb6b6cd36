"""NumPy's quotients, powers and bounds of elements, as operations of the table.

Docstrings say what each is made of, as that is what gets rounded and differentiated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simgrad.constants import constant, is_weak
from simgrad.numpy_operands import builder_of, counted, real
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

if TYPE_CHECKING:
    from simgrad.expression import Expression
    from simgrad.program import ProgramBuilder

_LARGEST_UNROLLED_POWER = 8


def true_divide(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """x / y; of integers the quotient of the reals that each of them is."""
    elements = {b.element_of(v) for v in (x, y) if hasattr(v, "builder") or not is_weak(v)}
    if len(elements - {ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL}) > 1:
        x, y = real(b, x), real(b, y)  # one type for both would wrap an i32 below 0
    left, right = b.matched([x, y])
    if left.element != ELEMENT_TYPE_REAL:
        left, right = b.convert(left, ELEMENT_TYPE_REAL), b.convert(right, ELEMENT_TYPE_REAL)
    return b.div(left, right)


def floor_divide(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Integers: `div`; reals: floor(x / y), each rounded."""
    quotient = b.div(x, y)
    return b.floor(quotient) if quotient.element == ELEMENT_TYPE_REAL else quotient


def divide_with_remainder(
    b: "ProgramBuilder", x: Any, y: Any
) -> "tuple[Expression, Expression]":
    """Integers: `div` and `mod`; reals: NumPy's quotient, which goes with the exact remainder, and `mod`.

    That quotient is (x - rem(x, y)) / y, less 1 where rem and y differ in sign, rounded to a whole number.
    """
    left, right = b.matched([x, y])
    remainder = b.mod(left, right)
    if left.element != ELEMENT_TYPE_REAL:
        return b.div(left, right), remainder
    rest = b.rem(left, right)
    below = b.min(b.sign(rest) * b.sign(right), 0.0)
    quotient = b.round((left - rest) / right + below)
    # The quotient of a finite x by 0 is infinite and that of an infinite x NaN; `rem` is NaN in both cases.
    undefined = b.floor(left / right + (left - left))
    return b.where(b.is_finite(rest), quotient, undefined), remainder


def power(b: "ProgramBuilder", x: Any, y: Any) -> "Expression":
    """Products for whole exponents of at most 8 and known ones of integers, sqrt for 0.5; else `pow`."""
    try:
        known = None if hasattr(y, "builder") else constant(y)
    except TypeError as error:
        raise TypeError(f"{b.here()}{error}") from None
    if known is None or known.shape != ():
        base, exponents = b.matched([x, y])
        if base.element != ELEMENT_TYPE_REAL:
            raise TypeError(
                f"{b.here()}x ** y of integers takes one known y; x.astype(float) ** y is of reals"
            )
        return b.pow(base, exponents)
    exponent = float(known)
    base = real(b, x) if known.dtype.kind == "f" or exponent < 0 else counted(b.value(x))
    is_real = base.element == ELEMENT_TYPE_REAL
    if exponent == 0:
        return b.like(base, 1)
    if exponent == 0.5:
        return b.sqrt(base)
    if not exponent.is_integer() or is_real and abs(exponent) > _LARGEST_UNROLLED_POWER:
        return b.pow(base, y)
    product = _product(base, int(abs(exponent)))
    return product if exponent > 0 else true_divide(b, 1.0, product)


def _product(x: "Expression", n: int) -> "Expression":
    """x^n by squares: x^7 = x (x^2) (x^4)."""
    result = None
    square = x
    while True:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        if n == 0:
            return x if result is None else result
        square = square * square


def clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> "Expression":
    """min(max(a, a_min), a_max)."""
    b = builder_of(a, a_min, a_max, min, max)
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError(f"{b.here()}np.clip takes a_min and a_max, or min and max, not both")
    low, high = (a_min, a_max) if min is None and max is None else (min, max)
    above = b.value(a) if low is None else b.max(a, low)
    return above if high is None else b.min(above, high)
