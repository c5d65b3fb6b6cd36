"""Rules of operations that move, repeat or reduce elements."""

from __future__ import annotations

from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from simgrad.jax import fold
from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import BOOL, Node, Value, known_array, neutral, size_of

_REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "reduce_max",
    "reduce_min": "reduce_min",
    "reduce_and": "all",
    "reduce_or": "any",
}
_OF_NOTHING = {"sum": 0, "prod": 1, "all": True, "any": False}


@rule("broadcast_in_dim")
def _broadcast(low: Lowering, equation: Any, operands: Operands) -> Value:
    params = equation.params
    return low.graph.broadcast(operands[0], params["shape"], params["broadcast_dimensions"])


@rule("reshape", "squeeze", "expand_dims")
def _reshape(low: Lowering, equation: Any, operands: Operands) -> Value:
    """A reshape reads the elements in the order of its `dimensions`, where it has them."""
    order = equation.params.get("dimensions") if equation.primitive.name == "reshape" else None
    x = operands[0] if order is None else low.graph.transpose(operands[0], order)
    return low.graph.reshape(x, equation.outvars[0].aval.shape)


@rule("transpose")
def _transpose(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.transpose(operands[0], equation.params["permutation"])


@rule("rev")
def _rev(low: Lowering, equation: Any, operands: Operands) -> Value:
    shape = operands[0].shape
    places = np.arange(size_of(shape)).reshape(shape)
    return low.graph.take([operands[0]], np.flip(places, equation.params["dimensions"]))


@rule("slice")
def _slice(low: Lowering, equation: Any, operands: Operands) -> Value:
    params = equation.params
    shape = equation.outvars[0].aval.shape
    return low.graph.slice(operands[0], params["start_indices"], shape, params["strides"])


@rule("concatenate")
def _concatenate(low: Lowering, equation: Any, operands: Operands) -> Value:
    return low.graph.concat(operands, int(equation.params["dimension"]))


@rule("stack")
def _stack(low: Lowering, equation: Any, operands: Operands) -> Value:
    axis = int(equation.params["axis"])
    shape = [*operands[0].shape[:axis], 1, *operands[0].shape[axis:]]
    return low.graph.concat([low.graph.reshape(x, shape) for x in operands], axis)


@rule("tile")
def _tile(low: Lowering, equation: Any, operands: Operands) -> Value:
    repeats = [int(n) for n in equation.params["reps"]]
    shape = (1,) * (len(repeats) - len(operands[0].shape)) + operands[0].shape
    full = [n for pair in zip(repeats, shape) for n in pair]
    dims = [2 * axis + 1 for axis in range(len(shape))]
    repeated = low.graph.broadcast(low.graph.reshape(operands[0], shape), full, dims)
    return low.graph.reshape(repeated, equation.outvars[0].aval.shape)


@rule("split")
def _split(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    axis, offset, parts = int(equation.params["axis"]), 0, []
    for n in equation.params["sizes"]:
        start, shape = [0] * len(operands[0].shape), list(operands[0].shape)
        start[axis], shape[axis] = offset, int(n)
        parts.append(low.graph.slice(operands[0], start, shape))
        offset += int(n)
    return parts


@rule("unstack")
def _unstack(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    axis, x = int(equation.params["axis"]), operands[0]
    part = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    starts = ([0] * axis + [k] + [0] * (len(part) - axis - 1) for k in range(x.shape[axis]))
    return [low.graph.reshape(low.graph.slice(x, start, part), v.aval.shape) for start, v in zip(starts, equation.outvars)]


@rule("empty", "empty2")
def _empty(low: Lowering, equation: Any, operands: Operands) -> Value:
    """An array that JAX fills before it reads it: of zeros."""
    return np.zeros(equation.outvars[0].aval.shape, neutral(equation.outvars[0].aval.dtype))


@rule("iota")
def _iota(low: Lowering, equation: Any, operands: Operands) -> Value:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    line = known_array(np.arange(shape[axis]).astype(equation.params["dtype"]))
    return fold.broadcast(line, shape, [axis])


@rule("pad")
def _pad(low: Lowering, equation: Any, operands: Operands) -> Value:
    x, fill = operands
    padding = [[int(n) for n in axis] for axis in equation.params["padding_config"]]
    if not isinstance(x, Node) and not isinstance(fill, Node):
        return known_array(fold.padded(x, fill, padding))
    places = fold.padded(np.arange(size_of(x.shape)).reshape(x.shape), -1, padding)
    if not isinstance(fill, Node):
        return low.graph.take([x], places, fill=fill.item())
    return low.graph.take([x, fill], np.where(places < 0, size_of(x.shape), places))


@rule(*_REDUCTIONS)
def _reduction(low: Lowering, equation: Any, operands: Operands) -> Value:
    x, axes = operands[0], tuple(int(a) for a in equation.params["axes"])
    code, result = _REDUCTIONS[equation.primitive.name], equation.outvars[0].aval
    count = size_of([x.shape[a] for a in axes])
    if count == 1:
        return low.graph.reshape(x, result.shape)
    if count == 0:
        if code not in _OF_NOTHING:
            raise NotLowered(f"{equation.primitive.name} of no elements")
        return np.full(result.shape, _OF_NOTHING[code], neutral(result.dtype))
    if code in ("any", "all") and x.dtype != BOOL:
        raise NotLowered(f"{equation.primitive.name} of integers", "& or | in a jax.lax.scan along the axis")
    if code in ("reduce_max", "reduce_min"):
        if x.dtype == BOOL:
            return low.graph.emit("any" if code == "reduce_max" else "all", x, axes=axes)
        x, axes = _one_axis(low, x, axes)
    if code == "prod" and low.is_narrow(result):
        return _rounded_product(low, x, axes, result)
    return low.graph.emit(code, x, axes=axes)


def _rounded_product(low: Lowering, x: Value, axes: Sequence[int], result: Any) -> Value:
    """One element after the other, each product rounded."""
    x, (axis,) = _one_axis(low, x, axes)

    def product(y: Any) -> Any:
        lines = jnp.moveaxis(y, axis, 0)
        return jax.lax.scan(lambda made, line: (made * line, None), lines[0], lines[1:])[0]

    return low.function_in(result, product, x)


def _one_axis(low: Lowering, x: Value, axes: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """Several axes as one, the last."""
    if len(axes) == 1:
        return x, (axes[0],)
    kept = [a for a in range(len(x.shape)) if a not in axes]
    moved = low.graph.transpose(x, [*kept, *axes])
    shape = [x.shape[a] for a in kept]
    return low.graph.reshape(moved, [*shape, size_of([x.shape[a] for a in axes])]), (len(kept),)


@rule("argmax", "argmin")
def _argument(low: Lowering, equation: Any, operands: Operands) -> Value:
    axis = int(equation.params["axes"][0])
    found = low.graph.emit(equation.primitive.name, low.graph.as_number(operands[0]), axis=axis)
    return low.graph.convert(found, equation.params["index_dtype"])


@rule("cumsum")
def _cumsum(low: Lowering, equation: Any, operands: Operands) -> Value:
    axis, reverse = int(equation.params["axis"]), bool(equation.params["reverse"])
    if operands[0].shape[axis] <= 1:
        return operands[0]
    return low.graph.emit("cumsum", operands[0], axis=axis, reverse=reverse)


_CUMULATED = {"cumprod": jnp.multiply, "cummax": jnp.maximum, "cummin": jnp.minimum, "cumlogsumexp": jnp.logaddexp}


@rule("cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(low: Lowering, equation: Any, operands: Operands) -> Value:
    """One element after the other."""
    step = _CUMULATED[equation.primitive.name]
    axis, reverse = int(equation.params["axis"]), bool(equation.params["reverse"])
    if operands[0].shape[axis] <= 1:
        return operands[0]

    def running(x: Any) -> Any:
        lines = jnp.moveaxis(x, axis, 0)
        first, rest = (lines[-1], lines[:-1]) if reverse else (lines[0], lines[1:])

        def turn(carried: Any, line: Any) -> Any:
            following = step(carried, line)
            return following, following

        _, others = jax.lax.scan(turn, first, rest, reverse=reverse)
        pair = [others, first[None]] if reverse else [first[None], others]
        return jnp.moveaxis(jnp.concatenate(pair), 0, axis)

    return low.function_in(equation.outvars[0].aval, running, operands[0])
