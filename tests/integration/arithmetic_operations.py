"""Operations on reals, one rounding after the other; each tells a tally of arithmetic_counts.py what it did."""

import math
from dataclasses import dataclass

import arithmetic_rounding as rounding
import numpy as np
from arithmetic_counts import Tally, are_finite
from arithmetic_functions import FUNCTIONS, value
from arithmetic_sums import ordered_sum
from program_text import Operation
from program_values import clipped


@dataclass
class Execution:
    op: Operation
    operands: list
    form: str
    shape: tuple
    tally: Tally

    @property
    def size(self):
        return math.prod(self.shape)


# ---- Elementwise ----


def by_size(x):
    """A key that puts -0 below +0."""
    return x, math.copysign(1.0, x)


def least(form, *numbers):
    return math.nan if any(map(math.isnan, numbers)) else min(numbers, key=by_size)


def greatest(form, *numbers):
    return math.nan if any(map(math.isnan, numbers)) else max(numbers, key=by_size)


def sign(form, x):
    return x if math.isnan(x) else float((x > 0) - (x < 0))


ELEMENTWISE = {
    "add": rounding.add,
    "sub": lambda form, a, b: rounding.add(form, a, -b),
    "mul": rounding.multiply,
    "div": rounding.divide,
    "fma": rounding.fused,
    "neg": lambda form, x: -x,
    "abs": lambda form, x: abs(x),
    "sign": sign,
    "min": least,
    "max": greatest,
}
for _name in FUNCTIONS:
    ELEMENTWISE[_name] = lambda form, x, name=_name: value(name, form, x)

ADDENDS = {
    "add": lambda form, a, b: (a, b),
    "sub": lambda form, a, b: (a, -b),
    "fma": lambda form, a, b, c: (rounding.multiply(form, a, b), c),
}
SHRINKING = {"mul", "div", "fma", "exp", "exp2", "sigmoid"}


def elementwise(e):
    function, results = ELEMENTWISE[e.op.code], []
    for i, numbers in enumerate(zip(*[x.numbers for x in e.operands], strict=True)):
        results.append(function(e.form, *numbers))
        e.tally.at(i)
        e.tally.gave()
        count_elementwise(e, numbers, results[-1])
    return results


def count_elementwise(e, numbers, result):
    if e.op.code in ADDENDS:
        e.tally.added(*ADDENDS[e.op.code](e.form, *numbers), result)
    if not are_finite(numbers):
        return
    divides_by_zero = e.op.code == "div" and numbers[1] == 0
    if math.isinf(result) and not divides_by_zero:
        e.tally.overflowed()
    if e.op.code in SHRINKING and all(numbers[:2]) and may_shrink(e, numbers):
        e.tally.shrunk(e.form, ELEMENTWISE[e.op.code]("f64", *numbers), result)


def may_shrink(e, numbers):
    """The addend of an fma may cancel its product: it shrinks only where the product would."""
    return e.op.code != "fma" or rounding.is_tiny(e.form, numbers[0] * numbers[1])


def cast(e):
    """A cast, or the tape of a value."""
    results = []
    narrows = rounding.narrows(e.operands[0].element, e.form)
    for i, x in enumerate(e.operands[0].numbers):
        results.append(rounding.rounded(e.form, x))
        e.tally.at(i)
        e.tally.gave()
        if narrows and math.isfinite(x):
            e.tally.rounded(e.form, x, results[-1])
            if math.isinf(results[-1]):
                e.tally.overflowed()
    return results


def merge(e):
    """The sum of those cotangents that are present: a's presence is told by `merge2` alone."""
    a, b = e.operands[0].numbers, e.operands[-2].numbers
    has_a = e.operands[1].array.ravel() if e.op.code == "merge2" else [True] * e.size
    has_b = e.operands[-1].array.ravel()
    return [merged(e, i, a[i], b[i], has_a[i], has_b[i]) for i in range(e.size)]


def merged(e, i, a, b, has_a, has_b):
    e.tally.at(i)
    e.tally.gave()
    if not (has_a and has_b):
        return a if has_a else b if has_b else 0.0
    total = rounding.add(e.form, a, b)
    e.tally.added(a, b, total)
    if math.isinf(total) and are_finite([a, b]):
        e.tally.overflowed()
    return total


# ---- Reductions ----


def lines_of(e):
    """The indices of the elements that each sum or product runs over, in its order."""
    array = e.operands[0].array
    axes = e.op.integers("axes")
    indices = np.moveaxis(np.arange(array.size).reshape(array.shape), axes, range(-len(axes), 0))
    lines = indices.reshape(-1, math.prod(array.shape[axis] for axis in axes)).tolist()
    return [line[::-1] if "reverse" in e.op.words else line for line in lines]


def end_of_many(e, results):
    """Results and overflows of an operation that reads many elements for each: it overflows where all are finite."""
    may_overflow = has_finite_operands(e)
    for i, result in enumerate(results):
        e.tally.at(i)
        e.tally.gave()
        if may_overflow and not math.isfinite(result):
            e.tally.overflowed()
    return results


def has_finite_operands(e):
    return are_finite(x for operand in e.operands if operand.element in rounding.FORMATS for x in operand.numbers)


def sum_of_lines(e):
    e.op.check("axes", "order", "accumulator")
    x, results = e.operands[0].numbers, []
    for i, line in enumerate(lines_of(e)):
        e.tally.at(i)
        numbers = [x[k] for k in line]
        results.append(ordered_sum(e.op.options["order"], e.op.options["accumulator"], e.form, numbers, e.tally))
    return end_of_many(e, results)


def cumsum(e):
    """The additions of a line are those of its last element."""
    e.op.check("axes", "accumulator", "reverse")
    x, results = e.operands[0].numbers, [0.0] * e.size
    for line in lines_of(e):
        for n, i in enumerate(line, 1):
            e.tally.at(i) if n == len(line) else e.tally.silently()
            numbers = [x[k] for k in line[:n]]
            results[i] = ordered_sum("sequential", e.op.options["accumulator"], e.form, numbers, e.tally)
    return end_of_many(e, results)


def factor(e, product, x):
    result = rounding.multiply(e.form, product, x)
    e.tally.multiplied(e.form, product, x, result)
    return result


def prod(e):
    e.op.check("axes")
    x, results = e.operands[0].numbers, []
    for i, line in enumerate(lines_of(e)):
        e.tally.at(i)
        product = 1.0
        for k in line:
            product = factor(e, product, x[k])
        results.append(product)
    return end_of_many(e, results)


def exclusive_prod(e):
    """Each element is the product of those before it."""
    e.op.check("axes", "reverse")
    x, results = e.operands[0].numbers, [1.0] * e.size
    for line in lines_of(e):
        for before, i in zip(line, line[1:]):
            e.tally.at(i)
            results[i] = factor(e, results[before], x[before])
    return end_of_many(e, results)


# ---- Products of matrices, scatter ----


def brought(accumulator, x, tally):
    """An operand in the format of the accumulator."""
    result = rounding.rounded(accumulator, x)
    tally.rounded(accumulator, x, result)
    return result


def rounds_products(accumulator):
    """Whether a chain rounds each product, or fuses it into its sum."""
    return accumulator not in ("f32", "f64")


def link_of_chain(accumulator, a, b, product, total):
    if accumulator in ("f32", "f64"):
        return rounding.fused(accumulator, a, b, total)
    return rounding.add(accumulator, product, total)


def chain(accumulator, pairs, tally):
    total = 0.0
    for a, b in pairs:
        product = rounding.multiply(accumulator, a, b)
        after = link_of_chain(accumulator, a, b, product, total)
        if rounds_products(accumulator):
            tally.multiplied(accumulator, a, b, product)
        tally.added(product, total, after)
        total = after
    return total


def product_of_lines(e, row, column):
    accumulator = e.op.options["accumulator"]
    pairs = [tuple(brought(accumulator, x, e.tally) for x in pair) for pair in zip(row, column, strict=True)]
    if order := e.op.options.get("products"):
        products = [rounding.multiply(accumulator, a, b) for a, b in pairs]
        for (a, b), product in zip(pairs, products):
            e.tally.multiplied(accumulator, a, b, product)
        return ordered_sum(order, accumulator, e.form, products, e.tally)
    total = chain(accumulator, pairs, e.tally)
    result = rounding.rounded(e.form, total)
    e.tally.rounded(e.form, total, result)
    return result


def matmul(e):
    e.op.check("accumulator", "products")
    a, b = e.operands[0].array, e.operands[1].array
    results = []
    for row in a.tolist():
        for column in b.T.tolist():
            e.tally.at(len(results))
            results.append(product_of_lines(e, row, column))
    return end_of_many(e, results)


def scatter(e):
    e.op.check("axes", "bounds", "add")
    if "add" not in e.op.words or len(e.shape) != 1:
        raise ValueError(f"scatter with {sorted(e.op.words)} to {e.shape}")
    results = e.operands[0].numbers
    for i, x in zip(clipped(e.op, e.operands[1].array, e.size).tolist(), e.operands[2].numbers, strict=True):
        before, results[i] = results[i], rounding.add(e.form, results[i], x)
        e.tally.at(i)
        e.tally.added(before, x, results[i])
    return end_of_many(e, results)


OTHERS = {
    "cast": cast,
    "tape": cast,
    "merge": merge,
    "merge2": merge,
    "sum": sum_of_lines,
    "cumsum": cumsum,
    "prod": prod,
    "exclusive_prod": exclusive_prod,
    "matmul": matmul,
    "scatter": scatter,
}


def evaluate(e):
    if e.op.code in OTHERS:
        if e.op.code in ("cast", "tape", "merge", "merge2"):
            e.op.check()
        return OTHERS[e.op.code](e)
    if e.op.code not in ELEMENTWISE:
        raise ValueError(f"unknown operation {e.op.code}")
    e.op.check()
    return elementwise(e)
