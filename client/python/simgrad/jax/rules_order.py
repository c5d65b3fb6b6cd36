"""Rules of the largest elements of an axis, by one sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import I32, REAL, Value, neutral, size_of


@rule("top_k")
def _top_k(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    params = equation.params
    axis = int(params["axis"]) if "axis" in params else len(operands[0].shape) - 1
    return _largest(low, operands[0], axis, int(params["k"]))


@rule("approx_top_k")
def _approx_top_k(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """Exact, as on JAX's CPU."""
    params, graph, x = equation.params, low.graph, operands[0]
    axis = int(params["reduction_dimension"]) % len(x.shape)
    if equation.outvars[0].aval.shape[axis] != params["k"]:
        raise NotLowered("approx_max_k without aggregate_to_topk", "leave aggregate_to_topk as it is")
    if params["is_max_k"]:
        return _largest(low, x, axis, int(params["k"]))
    found, places = _largest(low, graph.emit("neg", x), axis, int(params["k"]))
    return [graph.emit("neg", found), places]


def _largest(low: Lowering, x: Value, axis: int, count: int) -> list[Value]:
    """The `count` largest elements of an axis in JAX's order, and their places: NaN, then the largest; +0 before -0; of
    equal ones the first. The language sorts upward, NaN last, the first of equal ones first: of a line that is read
    backward its order, read backward, is JAX's."""
    graph = low.graph
    shape = [*x.shape[:axis], *x.shape[axis + 1 :], count]
    moved = [d for d in range(len(x.shape)) if d != axis]
    back = [*range(axis), len(moved), *range(axis, len(moved))]
    size, lines = x.shape[axis], size_of(shape[:-1])
    if size_of(shape) == 0:
        result = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
        return [np.zeros(result, neutral(x.dtype)), np.zeros(result, I32)]
    rows = graph.reshape(graph.transpose(x, [*moved, axis]), (lines, size))
    last = size - 1
    turned = graph.as_number(graph.emit("gather", rows, np.arange(last, -1, -1, dtype=np.int32), axis=1))
    keys = [turned]
    if x.dtype == REAL:  # the angle to -1 is half a turn at +0, and less half a turn at -0
        angles = graph.emit("atan2", turned, np.full((), -1.0))
        keys.append(graph.emit("stop_gradient", angles))
    order = graph.make("argsort", keys, {"axis": 1}, (lines, size), np.int32)
    ends = graph.emit("gather", order, np.arange(last, last - count, -1, dtype=np.int32), axis=1)
    places = graph.arithmetic("sub", np.full((), last, np.int32), ends)
    flat = graph.arithmetic("add", places, np.arange(lines, dtype=np.int32)[:, None] * np.int32(size))
    found = graph.emit("gather", graph.reshape(rows, (lines * size,)), flat, axis=0)
    return [graph.transpose(graph.reshape(y, shape), back) for y in (found, places)]
