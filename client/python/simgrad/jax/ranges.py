"""Ranges of integers of a step: the least and the most that they may be."""

from __future__ import annotations

import operator
from typing import Callable, NamedTuple

import numpy as np

from simgrad.jax.fold import ELEMENTS_OF
from simgrad.jax.node import BOOL, I32, REAL, Node, Value, taken_from

_DEEPEST = 32  # operations behind an integer that its range is found from
_COMBINED: dict[str, Callable[[int, int], int]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul},
    **{"min": min, "max": max},
}


class Range(NamedTuple):
    """All integers from `least` to `most`."""

    least: int
    most: int

    @classmethod
    def of_dtype(cls, dtype: np.dtype) -> "Range":
        info = np.iinfo(dtype)
        return cls(int(info.min), int(info.max))

    def inside(self, other: "Range") -> bool:
        return other.least <= self.least and self.most <= other.most

    def common(self, other: "Range") -> "Range":
        """All integers of both."""
        return Range(max(self.least, other.least), min(self.most, other.most))


OF_I32 = Range.of_dtype(I32)


class Ranges:
    """Finds ranges from operations, from constants, and from what is noted of the arguments of loops."""

    def __init__(self) -> None:
        self._found: dict[Node, Range] = {}

    def note(self, x: Value, found: Range) -> None:
        if isinstance(x, Node):
            self._found[x] = found

    def of(self, x: Value, depth: int = _DEEPEST) -> Range:
        """The range of integers or bools. It may be larger than it need be, and is that of the dtype where nothing is
        known."""
        if not isinstance(x, Node):
            return _hull([int(x.min()), int(x.max())]) if x.size else Range(0, 0)
        if x.dtype == BOOL:
            return Range(0, 1)
        if x not in self._found:
            whole = Range.of_dtype(x.dtype)
            found = self._of_operation(x, depth - 1) if depth else None
            self._found[x] = found if found is not None and found.inside(whole) else whole
        return self._found[x]

    def _of_operation(self, x: Node, depth: int) -> Range | None:
        """The range of what an operation gives before it wraps; None: nothing is known."""
        if x.op == "literal":
            return self.of(x.attributes["value"])
        if x.op in ("argmax", "argmin", "argsort"):
            return Range(0, x.operands[0].shape[x.attributes["axis"]] - 1)
        read = taken_from(x)
        if any(y.dtype == REAL for y in read) or x.attributes.get("fill") is not None:
            return None
        ranges = [self.of(y, depth) for y in read]
        if x.op == "convert" or x.op in ELEMENTS_OF:
            return _hull([end for found in ranges for end in found])
        if x.op == "rem" and (ranges[1].least > 0 or ranges[1].most < 0):  # a remainder has the sign of the dividend
            most = max(map(abs, ranges[1])) - 1
            return Range(-most if ranges[0].least < 0 else 0, most)
        if x.op == "sum":
            count = read[0].size // max(x.size, 1)
            return _hull([end * count for end in ranges[0]])
        if x.op in _COMBINED:
            return _hull([_COMBINED[x.op](a, b) for a in ranges[0] for b in ranges[1]])
        return None


def _hull(numbers: list[int]) -> Range:
    return Range(min(numbers), max(numbers))
