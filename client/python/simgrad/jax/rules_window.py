"""Rules of what reads an array by windows: convolutions, and reductions of windows.

Windows are read along one axis after the other, by constant places of that axis alone.
"""

from __future__ import annotations

from typing import Any, Sequence

import jax
import numpy as np
from jax.extend import core

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import BOOL, Node, Value, neutral, size_of

_MOST_ELEMENTS = 1 << 22  # of all windows, which are written to memory


def _places(size: int, window: int, stride: int, padding: Sequence[int], inner: int, spread: int) -> np.ndarray:
    """[windows, places of a window] along an axis; -1 in the padding, and between elements that are `inner` apart.
    `spread`: how far places of a window are apart."""
    padded = (size - 1) * inner + 1 + sum(padding) if size else sum(padding)
    count = max((padded - ((window - 1) * spread + 1)) // stride + 1, 0) if window else 0
    at = np.arange(count)[:, None] * stride + np.arange(window) * spread - padding[0]
    inside = (at >= 0) & (at <= (size - 1) * inner) & (at % inner == 0)
    return np.where(inside, at // inner, -1)


def _windows(low: Lowering, x: Value, first: int, places: Sequence[np.ndarray], fill: Any) -> Value:
    """The windows of the axes from `first` on: [axes before, windows of each axis, places of each axis]."""
    graph = low.graph
    whole = [*x.shape[:first], *(n for at in places for n in at.shape)]
    if size_of(whole) > _MOST_ELEMENTS:
        raise NotLowered(
            f"windows with {size_of(whole):,} elements together, above {_MOST_ELEMENTS:,}",
            "lax.scan over parts of the array, or a smaller window",
        )
    for k, at in enumerate(places):
        axis = first + 2 * k
        if (at < 0).any():
            row = np.full([*x.shape[:axis], 1, *x.shape[axis + 1 :]], fill, x.dtype)
            at = np.where(at < 0, x.shape[axis], at)
            x = graph.concat([x, row], axis)
        x = graph.emit("gather", x, at.astype(np.int32), axis=axis)
    axes = range(first, first + 2 * len(places), 2)
    return graph.transpose(x, [*range(first), *axes, *(axis + 1 for axis in axes)])


# ---- Convolutions ----


@rule("conv_general_dilated")
def _convolution(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Windows of the left side, and one product of matrices with the weights, of each group."""
    graph, params, result = low.graph, equation.params, equation.outvars[0].aval
    n, shape = params["dimension_numbers"], result.shape
    batched, grouped = int(params["batch_group_count"]), int(params["feature_group_count"])
    if size_of(shape) == 0 or 0 in operands[0].shape or 0 in operands[1].shape:
        return np.zeros(shape, neutral(result.dtype))
    x = graph.transpose(graph.convert(operands[0], result.dtype), n.lhs_spec)  # [batch, features, ...]
    weights = graph.transpose(graph.convert(operands[1], result.dtype), n.rhs_spec)  # [out, features of a group, ...]
    places = [
        _places(*given)
        for given in zip(
            *(x.shape[2:], weights.shape[2:], params["window_strides"], params["padding"]),
            *(params["lhs_dilation"], params["rhs_dilation"]),
        )
    ]
    made, groups = [at.shape[0] for at in places], batched * grouped
    inner = size_of(weights.shape[1:])
    images, results = x.shape[0] // batched, weights.shape[0] // groups
    found = _windows(low, x, 2, places, 0)
    parted = [batched, images, grouped, weights.shape[1], size_of(made), inner // weights.shape[1]]
    # To [groups, features and places of a window, images and windows]: one of both counts of groups is 1.
    columns = graph.transpose(graph.reshape(found, parted), [0, 2, 3, 5, 1, 4])
    columns = graph.reshape(columns, [groups, inner, images * size_of(made)])
    rows = graph.reshape(weights, [groups, results, inner])

    def product(a: Any, b: Any) -> Any:
        dimensions = (((2,), (1,)), ((0,), (0,)))
        return jax.lax.dot_general(a, b, dimensions, preferred_element_type=a.dtype)

    [product_of] = low.function(product, rows, columns)
    whole = graph.reshape(product_of, [groups * results, images, *made])
    order = [1, 0, *range(2, 2 + len(made))]
    return graph.transpose(graph.transpose(whole, order), [n.out_spec.index(d) for d in range(len(order))])


# ---- Reductions ----

_OF_SLICES = "jnp.roll or slices, one for each place of the window"
_REDUCED = {"reduce_window_sum": "add", "reduce_window_max": "max", "reduce_window_min": "min"}
_CODES = {"add": "sum", "mul": "prod", "max": "reduce_max", "min": "reduce_min", "or": "any", "and": "all"}


def _nothing(combine: str, dtype: np.dtype) -> Any:
    """The number that changes no result."""
    if combine in ("add", "mul", "or", "and"):
        return {"add": 0, "mul": 1, "or": False, "and": True}[combine]
    if dtype.kind == "f":
        return -np.inf if combine == "max" else np.inf
    if dtype == BOOL:
        return combine == "min"
    return np.iinfo(dtype).min if combine == "max" else np.iinfo(dtype).max


@rule(*_REDUCED)
def _reduced_windows(low: Lowering, equation: Any, operands: Operands) -> Value:
    return _reduced(low, equation, operands[0], _REDUCED[equation.primitive.name])


def _operation(jaxpr: Any) -> str:
    """The name of the one primitive that combines both arguments; empty where there is another function."""
    one = jaxpr.eqns[0] if len(jaxpr.eqns) == 1 else None
    if one is None or any(isinstance(v, core.Literal) for v in one.invars):
        return ""
    return str(one.primitive.name) if set(one.invars) == set(jaxpr.invars) and one.outvars == jaxpr.outvars else ""


@rule("reduce_window")
def _general_windows(low: Lowering, equation: Any, operands: Operands) -> Value:
    """One that combines by one operation of JAX."""
    closed = equation.params["jaxpr"]
    jaxpr = getattr(closed, "jaxpr", closed)
    name = _operation(jaxpr) if len(operands) == 2 else ""
    if name not in _CODES:
        raise NotLowered("reduce_window by a function of one's own", _OF_SLICES)
    found, start = _reduced(low, equation, operands[0], name), operands[1]
    graph = low.graph
    if not isinstance(start, Node) and start == _nothing(name, operands[0].dtype):
        return found
    if name in ("add", "mul"):
        return graph.arithmetic(name, start, found)
    if found.dtype == BOOL:
        return graph.logic({"max": "or", "min": "and"}.get(name, name), start, found)
    return graph.emit(name, start, found)


def _reduced(low: Lowering, equation: Any, x: Value, combine: str) -> Value:
    graph, params, result = low.graph, equation.params, equation.outvars[0].aval
    if x.dtype == BOOL:
        combine = {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(combine, combine)
    elif combine in ("or", "and"):
        raise NotLowered(f"reduce_window by {combine!r} of integers", _OF_SLICES)
    nothing = _nothing(combine, x.dtype)
    if size_of(result.shape) == 0 or 0 in x.shape:
        return np.full(result.shape, nothing, neutral(result.dtype))
    places = [
        _places(*given)
        for given in zip(
            *(x.shape, params["window_dimensions"], params["window_strides"], params["padding"]),
            *(params["base_dilation"], params["window_dilation"]),
        )
    ]
    empty = None
    # Padding by the first element of the same window changes nothing, gradients at ties among it.
    if combine in ("max", "min"):
        missing = [(at < 0).all(axis=1) for at in places]
        if any(line.any() for line in missing):
            empty = np.zeros(result.shape, np.bool_)
            for k, line in enumerate(missing):
                empty |= line.reshape([-1 if d == k else 1 for d in range(len(missing))])
        first = [np.where(at < 0, n, at).min(axis=1, keepdims=True) % n for at, n in zip(places, x.shape)]
        places = [np.where(at < 0, f, at) for at, f in zip(places, first)]
    made = [at.shape[0] for at in places]
    count = size_of([at.shape[1] for at in places])
    windows = graph.reshape(_windows(low, x, 0, places, nothing), [*made, count])
    if count == 1:
        found = graph.reshape(windows, made)
    else:
        found = graph.emit(_CODES[combine], windows, axes=(len(made),))
    return found if empty is None else graph.select(empty, np.full(made, nothing, x.dtype), found)
