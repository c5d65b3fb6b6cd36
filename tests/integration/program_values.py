"""Values of a program by name, and the operations that move or choose numbers without arithmetic."""

from typing import NamedTuple

import numpy as np


class Value(NamedTuple):
    array: np.ndarray
    element: str

    @property
    def numbers(self):
        """The elements of reals as a list of floats."""
        return [float(x) for x in self.array.ravel()]


class Scope:
    """Values of a region, those of the regions around it, and in reverse those of the region that it reverses."""

    def __init__(self, around=None, primal=None, site=""):
        self.values = {}
        self.loops = {}  # by the name of a result: what the loop that gave it recorded
        self.around = around
        self.primal = primal
        self.site = site or (around.site if around else "")

    def chain(self):
        scope = self
        while scope:
            yield scope
            scope = scope.around
        scope = self
        while scope:
            if scope.primal:
                yield from scope.primal.chain()
            scope = scope.around

    def __getitem__(self, name):
        return next(scope.values[name] for scope in self.chain() if name in scope.values)

    def __setitem__(self, name, value):
        self.values[name] = value

    def loop(self, name):
        return next(scope.loops[name] for scope in self.chain() if name in scope.loops)

    def bind(self, definitions, values):
        for definition, value in zip(definitions, values, strict=True):
            if definition:
                self[definition.name] = value


COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": lambda a, b: np.less(a, b) | np.greater(a, b),  # a NaN is not unequal either
}


def literal(op, shape):
    numbers = np.array(op.numbers)
    return np.full(shape, numbers[0]) if numbers.size == 1 else numbers.reshape(shape)


def window(op, option, starts, sizes):
    """The places of a slice in what it is cut from, of a padded array in what it is put into."""
    op.check("start", option)
    steps = op.integers(option) or [1] * len(starts)
    if option == "interior" and option in op.options:
        steps = [n + 1 for n in steps]
    return tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, sizes, steps, strict=True))


def slice_of(op, shape, x):
    return x[window(op, "stride", op.integers("start"), shape)]


def pad(op, shape, x):
    padded = np.zeros(shape, x.dtype)
    padded[window(op, "interior", op.integers("start"), x.shape)] = x
    return padded


def broadcast(op, shape, x):
    op.check("dims")
    sizes = [1] * len(shape)
    for axis, size in zip(op.integers("dims"), x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def transpose(op, shape, x):
    op.check("dims")
    return x.transpose(op.integers("dims"))


def clipped(op, indices, size):
    if op.options["axes"] != "[0]" or op.options["bounds"] != "clip":
        raise ValueError(f"{op.code} with {op.options}")
    return np.clip(indices.astype(int), 0, size - 1)


def gather(op, shape, x, indices):
    op.check("axes", "bounds")
    return x[clipped(op, indices, len(x))]


def event(op, shape, a, b):
    [sign] = op.words
    op.check("site", "kind", sign)
    return COMPARE[COMPARISONS[sign]](a, b)


def largest_update(op, shape, x, indices, updates):
    """A scatter of presences: whether any update to a place is present."""
    op.check("axes", "bounds", "max")
    if "max" not in op.words:
        raise ValueError(f"scatter of presences with {sorted(op.words)}")
    result = x.copy()
    np.maximum.at(result, clipped(op, indices, len(x)), updates)
    return result


def reduced(op, shape, x):
    op.check("axes")
    return {"any": np.any, "all": np.all}[op.code](x != 0, axis=tuple(op.integers("axes")))


def counted_up(op, shape, x):
    """A cumsum of integers."""
    op.check("axes", "reverse")
    [axis] = op.integers("axes")
    turned = np.flip if "reverse" in op.words else lambda array, axis: array
    return turned(np.cumsum(turned(x, axis), axis), axis)


def plain(function):
    """An operation that has no attributes."""

    def evaluate(op, shape, *operands):
        op.check()
        return function(*operands)

    return evaluate


ALWAYS = {
    "slice": slice_of,
    "pad": pad,
    "broadcast": broadcast,
    "transpose": transpose,
    "gather": gather,
    "event": event,
    "any": reduced,
    "all": reduced,
    "reshape": lambda op, shape, x: plain(lambda a: a.reshape(shape))(op, shape, x),
    "select": plain(lambda mask, a, b: np.where(mask != 0, a, b)),
    "not": plain(lambda a: a == 0),
    "and": plain(lambda a, b: (a != 0) & (b != 0)),
    "or": plain(lambda a, b: (a != 0) | (b != 0)),
    "convert": plain(lambda a: a),
    **{code: plain(compare) for code, compare in COMPARE.items()},
}
OF_INTEGERS = {"scatter": largest_update, "cumsum": counted_up, "tape": plain(lambda a: a)}


def move_of(op, is_real):
    """The function of an operation without arithmetic; None if it has some."""
    if op.code == "literal":
        return lambda op, shape: literal(op, shape)
    if op.code in ALWAYS or is_real:
        return ALWAYS.get(op.code)
    if op.code not in OF_INTEGERS:
        raise ValueError(f"unknown operation {op.code}")
    return OF_INTEGERS[op.code]
