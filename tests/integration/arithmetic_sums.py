"""Sums in the orders of docs/numerics.md section 3; each tells a tally of arithmetic_counts.py its additions."""

import math
from fractions import Fraction

import arithmetic_rounding as rounding
from arithmetic_counts import are_finite


def sequential(link, numbers):
    total = 0.0
    for x in numbers:
        total = link(total, x)
    return total


def pairwise(link, numbers):
    while len(numbers) > 1:
        pairs = [numbers[i : i + 2] for i in range(0, len(numbers), 2)]
        numbers = [link(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return numbers[0]


def compensated(accumulator, numbers, tally):
    """Neumaier's sum."""

    def add(a, b):
        return rounding.add(accumulator, a, b)

    total = correction = 0.0
    for x in numbers:
        after = add(total, x)
        larger, smaller = (total, x) if abs(total) >= abs(x) else (x, total)
        corrected = add(correction, add(add(larger, -after), smaller))
        tally.compensated(accumulator, total, x, after, corrected != correction)
        total, correction = after, corrected
    return add(total, correction) if math.isfinite(total) else total


def exact_sum(form, numbers, tally):
    if not are_finite(numbers):
        return rounding.rounded(form, float(sum(numbers)))
    exact = sum(map(Fraction, numbers))
    total = rounding.nearest(form, exact)
    tally.rounded(form, rounding.nearest("f64", exact), total)
    return total


def ordered_sum(order, accumulator, form, numbers, tally):
    """The sum in an order, rounded to a format."""
    if order not in ("sequential", "reversed", "pairwise", "compensated", "exact"):
        raise ValueError(f"unknown order {order}")
    if not numbers:
        return 0.0
    if order == "exact":
        return exact_sum(form, numbers, tally)

    def link(a, b):
        total = rounding.add(accumulator, a, b)
        tally.linked(accumulator, a, b, total)
        return total

    if order == "compensated":
        total = compensated(accumulator, numbers, tally)
    elif order == "pairwise":
        total = pairwise(link, numbers)
    else:
        total = sequential(link, {"sequential": numbers, "reversed": numbers[::-1]}[order])
    result = rounding.rounded(form, total)
    tally.rounded(form, total, result)
    return result
