"""Numbers of four formats: exact ones, rounded once to nearest even (docs/numerics.md sections 1 and 2)."""

import math
from fractions import Fraction
from typing import NamedTuple

INFINITY = math.inf


class Format(NamedTuple):
    """A binary format: digits with the leading one, and exponents of its normal numbers."""

    digits: int
    least: int
    most: int


FORMATS = {
    "f64": Format(53, -1022, 1023),
    "f32": Format(24, -126, 127),
    "bf16": Format(8, -126, 127),
    "f16": Format(11, -14, 15),
}


def nearest(name, exact):
    """The number of a format that is nearest to a Fraction; beyond the range an infinity."""
    if exact == 0:
        return 0.0
    form, size = FORMATS[name], abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = max(exponent, form.least) - form.digits + 1
    steps = round(size / Fraction(2) ** step)
    fits = steps.bit_length() + step <= form.most + 1
    number = math.ldexp(steps, step) if fits else INFINITY
    return number if exact > 0 else -number


def rounded(name, x):
    """The same of a float, which may be a zero, infinite or a NaN."""
    if name == "f64" or x == 0 or not math.isfinite(x):
        return x
    form = FORMATS[name]
    step = max(math.frexp(x)[1] - 1, form.least) - form.digits + 1
    steps = abs(round(math.ldexp(x, -step)))
    fits = steps.bit_length() + step <= form.most + 1
    return math.copysign(math.ldexp(steps, step) if fits else INFINITY, x)


def is_tiny(name, x):
    """Whether a number is zero or subnormal in a format."""
    return abs(x) < math.ldexp(1.0, FORMATS[name].least)


def narrows(source, target):
    """Whether a cast may lose digits or range."""
    a, b = FORMATS[source], FORMATS[target]
    return a.digits > b.digits or a.most > b.most


def add(name, a, b):
    total = a + b
    if name == "f64" or not math.isfinite(total):
        return total
    again = total - a
    is_exact = (a - (total - again)) + (b - again) == 0
    return rounded(name, total) if is_exact else nearest(name, Fraction(a) + Fraction(b))


def multiply(name, a, b):
    """The operands are numbers of the format: f64 holds the product of two narrower ones exactly."""
    return rounded(name, a * b)


def divide(name, a, b):
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(INFINITY, a) * math.copysign(1.0, b)
    # A quotient of two numbers of at most 24 digits is no closer to a midpoint than f64 tells.
    return rounded(name, a / b)


def fused(name, a, b, c):
    """a b + c, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return rounded(name, a * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(name, exact) if exact else a * b + c
