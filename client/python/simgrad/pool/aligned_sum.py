"""Sums over instances, of which each server holds a part.

Maths: a binary tree aligned to the instance id (docs/numerics.md sections 3 and 6). Node (level, index)
  covers the ids [index << level, (index + 1) << level). A node is round(left + right) of its halves; an
  absent half passes the other one through. So the sum depends on the set of (id, value) alone, and nodes of
  any disjoint ranges of ids merge to the bits of one server. Nodes of inputs declared weights have
  levels from BLOCK_BITS on: the first sums, within a block and a step, are the server's.
Accuracy: each addition is rounded once to the format, to nearest even; NaN is the canonical one.
Shapes: `values` are [nodes, numbers] in f64, which holds the numbers of every format exactly.
Cost: 64 passes at most over what is left. Source: precision/aligned_sum.h, precision/rounding.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

import numpy as np


class Format(NamedTuple):
    precision: int  # bits, with the hidden one
    emin: int  # exponent of the smallest subnormal
    largest: float
    has_infinity: bool


FORMATS = {
    "f64": Format(53, -1074, float(np.finfo(np.float64).max), True),
    "f32": Format(24, -149, float(np.finfo(np.float32).max), True),
    "bf16": Format(8, -133, 255.0 * 2.0**120, True),
    "f16": Format(11, -24, 65504.0, True),
    "e5m2": Format(3, -16, 57344.0, True),
    "e4m3": Format(4, -9, 448.0, False),
}
# Nothing is cut within a block of 2^BLOCK_BITS ids, and the nodes of weights are over whole blocks.
BLOCK_BITS = 8
_LEVELS = 64


def round_to(format: str, x: np.ndarray) -> np.ndarray:
    """Each f64 rounded once to a format, as f64."""
    with np.errstate(all="ignore"):
        rounded = x.astype(np.float64)
        traits = FORMATS[format]
        if format != "f64":
            _, exponent = np.frexp(x)  # |x| is in [2^(exponent - 1), 2^exponent)
            quantum = np.maximum(exponent - traits.precision, traits.emin)
            rounded = np.ldexp(np.rint(np.ldexp(x, -quantum)), quantum)
            beyond = np.abs(rounded) > traits.largest
            infinity = np.copysign(np.inf, x) if traits.has_infinity else np.nan
            rounded = np.where(beyond, infinity, rounded)
        return np.where(np.isnan(rounded), np.nan, rounded)


def multiply(format: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in f64, rounded to the format."""
    with np.errstate(all="ignore"):
        return round_to(format, np.asarray(a * b, np.float64))


@dataclass(frozen=True)
class Node:
    """The sum of `values` [numbers] over the ids [index << level, (index + 1) << level)."""

    level: int
    index: int
    values: np.ndarray

    @property
    def first_id(self) -> int:
        return self.index << self.level


def merged(nodes: Sequence[Node], accumulator: str, numbers: int) -> np.ndarray:
    """The sum over disjoint nodes in any order: [numbers]; zeros where there are none."""
    if not nodes:
        return np.zeros(numbers)
    ordered = sorted(nodes, key=lambda node: node.first_id)
    return _root(
        np.array([node.level for node in ordered]),
        np.array([node.index for node in ordered], np.uint64),
        np.stack([node.values for node in ordered]),
        accumulator,
    )


def pairwise(ids: np.ndarray, values: np.ndarray, accumulator: str) -> np.ndarray:
    """The sum over leaves with distinct ids (uint64) in any order: [numbers]."""
    if not len(ids):
        return np.zeros(values.shape[1:])
    order = np.argsort(ids)
    return _root(np.zeros(len(ids), np.int64), ids[order], values[order], accumulator)


def cover(nodes: Sequence[Node], first: int, last: int, accumulator: str) -> list[Node]:
    """Nodes over parts of [first, last], joined to the largest aligned blocks within it."""
    joined = []
    begin = first
    while begin <= last:
        level = _LEVELS if begin == 0 else (begin & -begin).bit_length() - 1
        while begin + (1 << level) - 1 > last:
            level -= 1
        end = begin + (1 << level)
        inside = [node for node in nodes if begin <= node.first_id < end]
        if inside:
            values = merged(inside, accumulator, len(inside[0].values))
            joined.append(Node(level, begin >> level, values))
        begin = end
    return joined


def whole_blocks(first: int, last: int) -> tuple[int, int]:
    """The first and the last id of the blocks that hold [first, last]."""
    within = (1 << BLOCK_BITS) - 1
    return first & ~within, last | within


def _root(levels: np.ndarray, indices: np.ndarray, values: np.ndarray, accumulator: str) -> np.ndarray:
    """Joins nodes, ascending by id, until one is left: each pass lifts those of one level and joins siblings."""
    for below in range(_LEVELS):
        if len(levels) == 1:
            break
        raised = levels == below
        indices = np.where(raised, indices >> np.uint64(1), indices)
        levels = np.where(raised, below + 1, levels)
        at_level = levels == below + 1
        left = np.flatnonzero(at_level[1:] & at_level[:-1] & (indices[1:] == indices[:-1]))
        if not len(left):
            continue
        with np.errstate(all="ignore"):
            sums = round_to(accumulator, values[left] + values[left + 1])
        values = values.copy()
        values[left] = sums
        levels, indices, values = (np.delete(a, left + 1, axis=0) for a in (levels, indices, values))
    root: np.ndarray = values[0]
    return root
