"""Elementary functions that the random worlds and their reverses need, rounded once from many decimal digits."""

import functools
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from arithmetic_rounding import nearest

DIGITS = 60
BEYOND = 2000.0  # an exponent of e that no format holds, on either side


def within(x):
    return Decimal(max(-BEYOND, min(BEYOND, x)))


@functools.lru_cache
def pi(digits):
    """By Machin's formula."""
    with localcontext(Context(prec=digits + 10)):

        def inverse_tangent(n):
            power, total, k = Decimal(1) / n, Decimal(0), 0
            while abs(power) > Decimal(10) ** -(digits + 8):
                total += power / (2 * k + 1)
                power, k = -power / (n * n), k + 1
            return total

        return 4 * (4 * inverse_tangent(5) - inverse_tangent(239))


def sine(x, quarters=0):
    """The sine of x and so many right angles, by Taylor's series."""
    x = Decimal(x)
    digits = DIGITS + max(0, x.adjusted() if x else 0)
    with localcontext(Context(prec=digits)):
        if quarters or abs(x) > 1:
            turn = 2 * pi(digits)
            x += turn * quarters / 4
            x -= turn * (x / turn).to_integral_value()
        total = term = x
        k = 1
        while term and term.adjusted() > total.adjusted() - DIGITS:
            term = -term * x * x / ((k + 1) * (k + 2))
            total, k = total + term, k + 2
        return total


def exponential(x):
    return within(x).exp()


def power_of_two(x):
    return Decimal(2) ** within(x)


def sigmoid(x):
    return 1 / (1 + (-within(x)).exp())


def hyperbolic_tangent(x):
    if abs(x) < 1e-30:
        return Decimal(x)
    power = (2 * within(x)).exp()
    return (power - 1) / (power + 1)


# By name: the function of a finite number, and its values at both infinities.
FUNCTIONS = {
    "exp": (exponential, 0.0, math.inf),
    "exp2": (power_of_two, 0.0, math.inf),
    "sigmoid": (sigmoid, 0.0, 1.0),
    "tanh": (hyperbolic_tangent, -1.0, 1.0),
    "sin": (sine, math.nan, math.nan),
    "cos": (functools.partial(sine, quarters=1), math.nan, math.nan),
}
ODD = {"sin", "tanh"}  # these keep the sign of a zero


@functools.lru_cache(2**16)
def finite_value(name, form, x):
    with localcontext(Context(prec=2 * DIGITS)):
        exact = FUNCTIONS[name][0](x)
    return nearest(form, Fraction(exact))


def value(name, form, x):
    """A function's value in a format."""
    if math.isnan(x) or (x == 0 and name in ODD):
        return x
    if math.isinf(x):
        return FUNCTIONS[name][1 + (x > 0)]
    return finite_value(name, form, x)
