"""Rules of gathers, scatters and dynamic slices. With constant indices they become slices and takes."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, Sequence

import jax
import numpy as np
from jax.extend import core

from simgrad.jax.lowering import Lowering, NotLowered, Operands, rule
from simgrad.jax.node import BOOL, I32, I64, REAL, Node, Shape, Value, known_array, neutral, size_of

_SCATTERS = {
    "scatter": "set",
    **{f"scatter{dash}{kind}": kind for dash in "-_" for kind in ("add", "mul", "min", "max", "sub")},
}


@dataclasses.dataclass(frozen=True)
class _Windows:
    """The places of windows of an array: JAX's dimension numbers, alike for a gather and a scatter.

    Attributes:
      offsets: axes of the result that run in a window. removed: axes of the array that a window has
        none of. batched, index_batched: axes of array and indices that go together. indexed: the axis
        that each component of an index is of. sizes: of a window, per axis of the array.
    """

    offsets: Sequence[int]
    removed: Sequence[int]
    batched: Sequence[int]
    index_batched: Sequence[int]
    indexed: Sequence[int]
    sizes: Sequence[int]

    @classmethod
    def of_gather(cls, params: Any) -> "_Windows":
        n = params["dimension_numbers"]
        return cls(
            *(n.offset_dims, n.collapsed_slice_dims, n.operand_batching_dims),
            *(n.start_indices_batching_dims, n.start_index_map, params["slice_sizes"]),
        )

    @classmethod
    def of_scatter(cls, params: Any, array: Shape, updates: Shape) -> "_Windows":
        n = params["dimension_numbers"]
        kept = [
            d
            for d in range(len(array))
            if d not in n.inserted_window_dims and d not in n.operand_batching_dims
        ]
        sizes = [1] * len(array)
        for position, d in zip(n.update_window_dims, kept):
            sizes[d] = updates[position]
        return cls(
            *(n.update_window_dims, n.inserted_window_dims, n.operand_batching_dims),
            *(n.scatter_indices_batching_dims, n.scatter_dims_to_operand_dims, sizes),
        )

    def lines(self, array: Shape) -> bool:
        """Whether each index names one whole line of the array along one axis."""
        if len(self.indexed) != 1 or tuple(self.removed) != tuple(self.indexed) or self.batched:
            return False
        return all(n == array[d] for d, n in enumerate(self.sizes) if d != self.indexed[0])

    def may_repeat(self, indices: Value) -> bool:
        """Whether the indices are computed, and several of them may be one place."""
        together = [n for axis, n in enumerate(indices.shape[:-1]) if axis not in self.index_batched]
        return isinstance(indices, Node) and size_of(together) > 1

    def order(self, array: Shape, rank: int) -> list[int]:
        """If `lines` holds: by axis of JAX's result, its axis in [axes before `axis`, of indices, behind `axis`]."""
        [axis] = self.indexed
        batch = rank - len(self.offsets)
        behind = iter([d if d < axis else d - 1 + batch for d in range(len(array)) if d != axis])
        indices = iter(range(axis, axis + batch))
        return [next(behind) if p in self.offsets else next(indices) for p in range(rank)]


def _bounds(mode: Any) -> str:
    """JAX's mode; PROMISE_IN_BOUNDS does what XLA does: a gather clips, a scatter drops."""
    text = str(mode)
    return "clip" if "CLIP" in text else "fill" if "FILL" in text else "promise"


def _flat_index(
    low: Lowering, indices: Value, array: Shape, windows: _Windows, result: Shape, outside: str
) -> Value:
    """Per element of the result its row-major number in the array, which i32 holds; -1 outside, or clipped per axis."""
    graph = low.graph
    strides = [size_of(array[d + 1 :]) for d in range(len(array))]
    batch_axes = [p for p in range(len(result)) if p not in windows.offsets]
    batch = [result[p] for p in batch_axes]
    inner = [d for d in range(len(array)) if d not in (*windows.removed, *windows.batched)]
    constant = np.zeros(result, np.int64)
    fixed = [
        *zip(windows.offsets, inner),
        *((batch_axes[k], d) for d, k in zip(windows.batched, windows.index_batched)),
    ]
    for position, d in fixed:
        line = np.arange(result[position]) * strides[d]
        constant += line.reshape([-1 if p == position else 1 for p in range(len(result))])
    total: Value = constant
    within: Value | None = None
    for component, d in enumerate(windows.indexed):
        start = [0] * (len(indices.shape) - 1) + [component]
        column = graph.slice(indices, start, [*indices.shape[:-1], 1])
        column = graph.convert(graph.reshape(column, batch), I64)
        last = np.asarray(array[d] - windows.sizes[d], np.int64)
        zero = np.zeros((), np.int64)
        if outside == "clip":
            column = graph.emit("min", graph.emit("max", column, zero), last)
        else:
            good = graph.logic(
                "and", graph.compare("ge", column, zero), graph.compare("le", column, last)
            )
            within = good if within is None else graph.logic("and", within, good)
        scaled = graph.arithmetic("mul", column, np.asarray(strides[d], np.int64))
        total = graph.arithmetic("add", total, graph.broadcast(scaled, result, batch_axes))
    if within is not None:
        nowhere = np.full(result, -1, np.int64)
        total = graph.select(graph.broadcast(within, result, batch_axes), total, nowhere)
    return total


@rule("gather")
def _gather(low: Lowering, equation: Any, operands: Operands) -> Value:
    graph = low.graph
    array, indices = operands
    params, result = equation.params, tuple(equation.outvars[0].aval.shape)
    if size_of(result) == 0:
        return np.zeros(result, neutral(equation.outvars[0].aval.dtype))
    mode = _bounds(params["mode"])
    outside = "fill" if mode == "fill" else "clip"
    windows = _Windows.of_gather(params)
    fill = _fill(equation.invars[0].aval.dtype, params["fill_value"]) if mode == "fill" else None
    if isinstance(indices, Node) and windows.lines(array.shape) and outside == "clip":
        numbers = graph.as_index(graph.reshape(indices, indices.shape[:-1]))
        found = graph.emit("gather", array, numbers, axis=int(windows.indexed[0]))
        return graph.transpose(found, windows.order(array.shape, len(result)))
    flat = _flat_index(low, indices, array.shape, windows, result, outside)
    if not isinstance(flat, Node):
        if fill is None or not np.isnan(fill):
            return graph.take([array], flat, fill)
        found = graph.take([array], np.maximum(flat, 0), None)
        return graph.select(flat >= 0, found, np.full(result, fill, array.dtype))
    line = graph.reshape(array, (size_of(array.shape),))
    found = graph.emit("gather", line, graph.convert(flat, I32), axis=0)
    if fill is None:
        return found
    inside = graph.compare("ge", flat, np.zeros((), np.int64))
    return graph.select(inside, found, np.asarray(fill, array.dtype))


def _fill(dtype: Any, given: Any) -> Any:
    """The number that stands outside of an array, of u64 the i64 of the same bits."""
    if neutral(dtype) == REAL:
        return np.nan if given is None else given
    if dtype == BOOL:
        return bool(given)
    if given is None:
        info = np.iinfo(dtype)
        given = info.min if info.min else info.max
    return int(known_array(np.asarray(given).astype(dtype)))


def _takes_updates(combination: Any) -> bool:
    """Whether what a scatter stores is the update itself."""
    jaxpr = getattr(combination, "jaxpr", combination)
    return jaxpr is None or (not jaxpr.eqns and jaxpr.outvars[0] is jaxpr.invars[1])


_MOST_TURNS = 32  # of a function that is applied to one element, one after the other


def _applied(low: Lowering, equation: Any, operands: Operands) -> Value:
    """The function of `.at[...].apply` at its places: at one that comes several times, as often. A place outside has a
    number that is not stored."""
    graph, params = low.graph, equation.params
    array, indices, updates = operands
    windows = _Windows.of_scatter(params, array.shape, updates.shape)
    if windows.may_repeat(indices) and not params["unique_indices"]:
        hint = "write x.at[i].set(f(x[i])), or apply(f, unique_indices=True)"
        raise NotLowered("`.at[...].apply` at computed places", hint)
    if size_of(updates.shape) == 0 or size_of(array.shape) == 0:
        return updates
    outside = "clip" if _bounds(params["mode"]) == "clip" else "drop"
    flat = _flat_index(low, indices, array.shape, windows, updates.shape, outside)
    if isinstance(flat, Node):
        line = graph.reshape(array, (size_of(array.shape),))
        inside = graph.emit("max", flat, np.zeros((), np.int64))
        found = graph.emit("gather", line, graph.convert(inside, I32), axis=0)
        times = np.ones(flat.shape, np.int64)
    else:
        _, of_place, counts = np.unique(flat, return_inverse=True, return_counts=True)
        times = np.where(flat >= 0, counts[of_place.reshape(flat.shape)], 0)
        found = graph.take([array], np.where(flat >= 0, flat, flat.max(initial=0)))
    if times.max() > _MOST_TURNS:
        hint = "jax.lax.fori_loop around x.at[i].set(f(x[i]))"
        raise NotLowered(f"`.at[...].apply` {times.max()} times at one place", hint)
    of_one = core.jaxpr_as_fun(core.ClosedJaxpr(params["update_jaxpr"], params["update_consts"]))
    count = size_of(updates.shape)
    found, turns = graph.reshape(found, (count,)), times.reshape(count)
    for turn in range(times.max()):
        chosen = np.flatnonzero(turns > turn)
        of_chosen = jax.ShapeDtypeStruct(chosen.shape, equation.invars[0].aval.dtype)
        closed = jax.make_jaxpr(jax.vmap(lambda x: of_one(x, x)[0]))(of_chosen)
        [made] = low.jaxpr(closed, [found if len(chosen) == count else graph.take([found], chosen)])
        made, order = graph.convert(made, array.dtype), np.arange(count)
        order[chosen] = count + np.arange(len(chosen))
        found = made if len(chosen) == count else graph.take([found, made], order)
    return graph.reshape(found, updates.shape)


@rule(*_SCATTERS)
def _scatter(low: Lowering, equation: Any, operands: Operands) -> Value:
    graph = low.graph
    array, indices, updates = operands
    combine = _SCATTERS[equation.primitive.name]
    if combine == "set" and not _takes_updates(equation.params.get("update_jaxpr")):
        updates = _applied(low, equation, operands)
    if size_of(updates.shape) == 0:
        return array
    if combine == "sub":
        combine, updates = "add", graph.emit("neg", updates)
    windows = _Windows.of_scatter(equation.params, array.shape, updates.shape)
    outside = "clip" if _bounds(equation.params["mode"]) == "clip" else "drop"
    if combine == "mul" and not equation.params["unique_indices"] and windows.may_repeat(indices):
        _warn_of_factors(low, equation.primitive.name, updates)
    if isinstance(indices, Node) and windows.lines(array.shape):
        numbers = graph.as_index(graph.reshape(indices, indices.shape[:-1]))
        order = windows.order(array.shape, len(updates.shape))
        moved = graph.transpose(updates, [order.index(p) for p in range(len(order))])
        attributes = {"axis": int(windows.indexed[0]), "combine": combine, "bounds": outside}
        return graph.make("scatter", [array, numbers, moved], attributes, array.shape, array.dtype)
    flat = _flat_index(low, indices, array.shape, windows, updates.shape, outside)
    if not isinstance(flat, Node):
        made = _constant_scatter(low, array, flat, updates, combine)
        if made is not None:
            return made
    line = graph.reshape(array, (size_of(array.shape),))
    numbers = graph.convert(graph.reshape(flat, (size_of(flat.shape),)), I32)
    moved = graph.reshape(updates, (size_of(updates.shape),))
    attributes = {"axis": 0, "combine": combine, "bounds": "drop"}
    made = graph.make("scatter", [line, numbers, moved], attributes, line.shape, array.dtype)
    return graph.reshape(made, array.shape)


def _warn_of_factors(low: Lowering, name: str, updates: Value) -> None:
    """Tells that the gradient of computed factors takes each for the only one of its place: JAX refuses this one."""
    if not isinstance(updates, Node) or not updates.is_active:
        return
    low.graph.notes[f"{name}: the gradient of its factors is right for distinct places alone"] += 1
    low.warn(
        f"the gradient of {name!r} by its factors is wrong where a computed place comes twice; "
        "unique_indices=True says that none does, and JAX has no gradient without it"
    )


def _constant_scatter(
    low: Lowering, array: Value, flat: np.ndarray, updates: Value, combine: str
) -> Value | None:
    """A take of both for `set`; for others only what is touched. None where a place comes twice, but for products of
    reals."""
    graph = low.graph
    places = flat.reshape(-1)
    kept = places >= 0
    size = size_of(array.shape)
    if combine == "set":
        where = np.full(size, -1, np.int64)
        where[places[kept]] = np.flatnonzero(kept)
        both = np.where(where < 0, np.arange(size), size + where)
        return graph.take([array, updates], both.reshape(array.shape))
    touched, sources = places[kept], np.flatnonzero(kept)
    if len(np.unique(touched)) == len(touched):
        parts = [(touched, _combined(low, combine, array, touched, updates, sources))]
    elif combine == "mul" and array.dtype == REAL:
        parts = list(_products(low, array, touched, updates, sources))
    else:
        return None
    back, before = np.arange(size), size
    for mine, _ in parts:
        back[mine] = before + np.arange(len(mine))
        before += len(mine)
    return graph.take([array, *(changed for _, changed in parts)], back.reshape(array.shape))


def _combined(
    low: Lowering, combine: str, array: Value, places: np.ndarray, updates: Value, sources: np.ndarray
) -> Value:
    """The elements of the array at distinct places, each with its update."""
    graph = low.graph
    before, brought = graph.take([array], places), graph.take([updates], sources)
    if combine in ("add", "mul"):
        return graph.arithmetic(combine, before, brought)
    if array.dtype == BOOL:
        return graph.logic("or" if combine == "max" else "and", before, brought)
    return graph.emit(combine, before, brought)


def _products(
    low: Lowering, array: Value, touched: np.ndarray, updates: Value, sources: np.ndarray
) -> Iterator[tuple[np.ndarray, Value]]:
    """Places and their products, factors in their order, whose gradient is right also where a place comes several
    times. Places with about as many factors go together: those that have fewer are filled up with ones."""
    graph, size = low.graph, size_of(array.shape)
    places, of_place, counts = np.unique(touched, return_inverse=True, return_counts=True)
    order = np.argsort(of_place, kind="stable")
    turn = np.empty(len(touched), np.int64)
    turn[order] = np.arange(len(touched)) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = 2 ** np.ceil(np.log2(counts)).astype(np.int64)
    for length in np.unique(lengths):
        chosen = lengths == length
        mine = chosen[of_place]
        if length == 1:
            yield places[chosen], _combined(low, "mul", array, touched[mine], updates, sources[mine])
            continue
        factors = np.full((1 + length, chosen.sum()), -1, np.int64)
        factors[0] = places[chosen]
        columns = np.cumsum(chosen) - 1
        factors[1 + turn[mine], columns[of_place[mine]]] = size + sources[mine]
        yield places[chosen], graph.emit("prod", graph.take([array, updates], factors, 1.0), axes=(0,))


@rule("dynamic_slice")
def _dynamic_slice(low: Lowering, equation: Any, operands: Operands) -> Value:
    array, *starts = operands
    shape = tuple(int(n) for n in equation.params["slice_sizes"])
    fixed = _known_starts(starts, array.shape, shape)
    if fixed is not None:
        return low.graph.slice(array, fixed, shape)
    begin = _starts(low, starts)
    return low.graph.emit("dynamic_slice", array, begin, shape=shape)


@rule("dynamic_update_slice")
def _dynamic_update_slice(low: Lowering, equation: Any, operands: Operands) -> Value:
    array, part, *starts = operands
    fixed = _known_starts(starts, array.shape, part.shape)
    if fixed is None:
        begin = _starts(low, starts)
        return low.graph.make("update", [array, part, begin], {}, array.shape, array.dtype)
    if part.shape == array.shape:
        return part
    size = size_of(array.shape)
    places = np.arange(size).reshape(array.shape).copy()
    written = tuple(slice(s, s + n) for s, n in zip(fixed, part.shape))
    places[written] = size + np.arange(size_of(part.shape)).reshape(part.shape)
    return low.graph.take([array, part], places)


def _known_starts(starts: Sequence[Value], array: Shape, part: Shape) -> list[int] | None:
    numbers = [int(s) for s in starts if not isinstance(s, Node)]
    if len(numbers) != len(starts):
        return None
    return [max(0, min(s, n - m)) for s, n, m in zip(numbers, array, part)]


def _starts(low: Lowering, starts: Sequence[Value]) -> Value:
    graph = low.graph
    return graph.concat([graph.reshape(graph.as_index(s), (1,)) for s in starts], 0)


@rule("sort")
def _sort(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The order of the keys, and each operand in it."""
    graph = low.graph
    axis, keys = int(equation.params["dimension"]), int(equation.params["num_keys"])
    shape = operands[0].shape
    ranked = [graph.as_number(x) for x in operands[:keys]]
    order = graph.make("argsort", ranked, {"axis": axis}, shape, np.int32)
    if len(shape) == 1:
        return [graph.emit("gather", x, order, axis=0) for x in operands]
    strides = [size_of(shape[d + 1 :]) for d in range(len(shape))]
    base = np.zeros(shape, np.int32)
    for d in range(len(shape)):
        if d != axis:
            line = np.arange(shape[d], dtype=np.int32) * np.int32(strides[d])
            base = base + line.reshape([-1 if k == d else 1 for k in range(len(shape))])
    scaled = graph.arithmetic("mul", order, np.full(shape, strides[axis], np.int32))
    flat = graph.arithmetic("add", scaled, base)
    size = size_of(shape)
    return [graph.emit("gather", graph.reshape(x, (size,)), flat, axis=0) for x in operands]
