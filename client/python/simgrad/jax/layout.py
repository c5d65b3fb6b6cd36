"""Shape operations of the graph, written in as few as possible: what moves nothing is not written."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from simgrad.jax import fold
from simgrad.jax.node import Node, Shape, Value, same, size_of


class Layout:
    """Broadcast, reshape, slice, concat, transpose and take, normalised while they are written.

    `make` writes a node; the graph has it.
    """

    def make(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: dict[str, Any],
        shape: Sequence[int],
        dtype: Any,
    ) -> Node:
        raise NotImplementedError

    @staticmethod
    def value(x: Value) -> Value:
        """The numbers of a literal, else the node."""
        if isinstance(x, Node) and x.op == "literal":
            numbers: np.ndarray = x.attributes["value"]
            return numbers
        return x

    def reshape(self, a: Value, shape: Sequence[int]) -> Value:
        shape = tuple(int(n) for n in shape)
        if a.shape == shape:
            return a
        if not isinstance(a, Node):
            return a.reshape(shape)
        if a.op == "reshape":
            return self.reshape(a.operands[0], shape)
        return self.make("reshape", [a], {"shape": shape}, shape, a.dtype)

    def broadcast(self, a: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
        """`dims`: for each axis of a the axis of the result; axes of length 1 may be repeated."""
        shape, dims = tuple(int(n) for n in shape), tuple(int(d) for d in dims)
        ordered = list(dims) == sorted(dims)
        if ordered and size_of(shape) == size_of(a.shape):
            return self.reshape(a, shape)
        if not isinstance(a, Node):
            return fold.broadcast(a, shape, dims)
        kept = [axis for axis, n in enumerate(a.shape) if n != 1]
        if len(kept) != len(a.shape):
            smaller = self.reshape(a, [a.shape[axis] for axis in kept])
            return self.broadcast(smaller, shape, [dims[axis] for axis in kept])
        if a.op == "broadcast":
            inner = [dims[d] for d in a.attributes["dims"]]
            return self.broadcast(self.value(a.operands[0]), shape, inner)
        if not ordered:
            order = sorted(range(len(dims)), key=dims.__getitem__)
            return self.broadcast(self.transpose(a, order), shape, sorted(dims))
        return self.make("broadcast", [a], {"shape": shape, "dims": dims}, shape, a.dtype)

    def broadcast_to(self, a: Value, shape: Sequence[int]) -> Value:
        """By NumPy's rules."""
        missing = len(shape) - len(a.shape)
        return self.broadcast(a, shape, range(missing, len(shape)))

    def slice(
        self,
        a: Value,
        start: Sequence[int],
        shape: Sequence[int],
        stride: Sequence[int] | None = None,
    ) -> Value:
        begin, count = [int(x) for x in start], [int(x) for x in shape]
        steps = [int(x) for x in stride] if stride is not None else [1] * len(begin)
        steps = [1 if n == 1 else t for n, t in zip(count, steps)]
        if tuple(count) == a.shape and all(t == 1 for t in steps):
            return a
        if not isinstance(a, Node):
            return fold.strided(a, begin, count, steps)
        if a.op == "slice":
            outer = zip(a.attributes["start"], begin, a.attributes["stride"])
            combined = [x * y for x, y in zip(a.attributes["stride"], steps)]
            return self.slice(a.operands[0], [s + x * t for s, x, t in outer], count, combined)
        through = self._slice_through(a, begin, count, steps)
        if through is not None:
            return through
        attributes = {"start": tuple(begin), "shape": tuple(count), "stride": tuple(steps)}
        return self.make("slice", [a], attributes, count, a.dtype)

    def _slice_through(
        self, a: Node, start: list[int], shape: list[int], stride: list[int]
    ) -> Value | None:
        """The slice of what a was made of, where that is less."""
        if a.op == "concat":
            return self._slice_of_concat(a, start, shape, stride)
        if a.op == "broadcast":
            dims = a.attributes["dims"]
            part = self.slice(
                self.value(a.operands[0]),
                [start[d] for d in dims],
                [shape[d] for d in dims],
                [stride[d] for d in dims],
            )
            return self.broadcast(part, shape, dims)
        if a.op != "reshape":
            return None
        inner = a.operands[0]
        if inner.op not in ("concat", "broadcast", "literal") and a.size <= size_of(shape):
            return None
        pairs = _unit_axes(inner.shape, a.shape)
        if pairs is None:
            return None
        begin, count, steps = [0] * len(inner.shape), [1] * len(inner.shape), [1] * len(inner.shape)
        for to, axis in pairs:
            begin[to], count[to], steps[to] = start[axis], shape[axis], stride[axis]
        return self.reshape(self.slice(self.value(inner), begin, count, steps), shape)

    def _slice_of_concat(
        self, a: Node, start: list[int], shape: list[int], stride: list[int]
    ) -> Value | None:
        axis = a.attributes["axis"]
        low, high = start[axis], start[axis] + (shape[axis] - 1) * stride[axis] + 1
        offset = 0
        parts: list[Value] = []
        for piece in a.operands:
            n = piece.shape[axis]
            begin, count = list(start), list(shape)
            if low >= offset and high <= offset + n:
                begin[axis] -= offset
                return self.slice(self.value(piece), begin, count, stride)
            if stride[axis] == 1 and low < offset + n and high > offset:
                first, last = max(low, offset), min(high, offset + n)
                begin[axis], count[axis] = first - offset, last - first
                parts.append(self.slice(self.value(piece), begin, count, stride))
            offset += n
        return self.concat(parts, axis) if stride[axis] == 1 and len(parts) < len(a.operands) else None

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Neighbouring constants become one; so do neighbouring slices of one array."""
        given = [x for x in values if x.shape[axis] != 0] or list(values[:1])
        flat: list[Value] = []
        for x in given:
            if isinstance(x, Node) and x.op == "concat" and x.attributes["axis"] == axis:
                flat += [self.value(piece) for piece in x.operands]
            else:
                flat.append(x)
        joined: list[Value] = []
        for x in flat:
            merged = self._merged(joined[-1], x, axis) if joined else None
            if merged is None:
                joined.append(x)
            else:
                joined[-1] = merged
        if len(joined) == 1:
            return joined[0]
        shape = list(joined[0].shape)
        shape[axis] = sum(x.shape[axis] for x in joined)
        if joined[0].shape[axis] == 1 and all(same(x, joined[0]) for x in joined):
            dims = list(range(len(shape)))
            return self.broadcast(joined[0], shape, dims)
        return self.make("concat", joined, {"axis": axis}, shape, joined[0].dtype)

    def _merged(self, x: Value, y: Value, axis: int) -> Value | None:
        if not isinstance(x, Node) and not isinstance(y, Node):
            return np.concatenate([x, y], axis)
        if not isinstance(x, Node) or not isinstance(y, Node):
            return None
        if x.op != "slice" or y.op != "slice" or x.operands[0] is not y.operands[0]:
            return None
        if any(t != 1 for t in (*x.attributes["stride"], *y.attributes["stride"])):
            return None
        before, after = x.attributes["start"], y.attributes["start"]
        others = [k for k in range(len(x.shape)) if k != axis]
        if after[axis] != before[axis] + x.shape[axis]:
            return None
        if any((before[k], x.shape[k]) != (after[k], y.shape[k]) for k in others):
            return None
        shape = list(x.shape)
        shape[axis] += y.shape[axis]
        return self.slice(x.operands[0], before, shape)

    def transpose(self, a: Value, dims: Sequence[int]) -> Value:
        dims = tuple(int(d) for d in dims)
        if dims == tuple(range(len(dims))):
            return a
        if not isinstance(a, Node):
            return np.transpose(a, dims)
        shape = [a.shape[d] for d in dims]
        moved = [d for d in dims if a.shape[d] != 1]
        if moved == sorted(moved):
            return self.reshape(a, shape)
        if a.op == "transpose":
            return self.transpose(a.operands[0], [a.attributes["dims"][d] for d in dims])
        return self.make("transpose", [a], {"dims": dims}, shape, a.dtype)

    def take(self, arrays: Sequence[Value], indices: Any, fill: float | None = None) -> Value:
        """Elements by constant numbers into the arrays, flattened one after the other; -1: `fill`."""
        places = np.asarray(indices, np.int64)
        if all(not isinstance(x, Node) for x in arrays):
            numbers = [x for x in arrays if not isinstance(x, Node)]
            return fold.take(*numbers, indices=places, fill=fill)
        used = self._used(arrays, places)
        if not used[0]:
            return np.full(places.shape, fill, arrays[0].dtype)
        if len(used[0]) < len(arrays):
            return self.take([arrays[k] for k in used[0]], used[1], fill)
        if len(arrays) == 1:
            simpler = self._simpler_take(arrays[0], places, fill)
            if simpler is not None:
                return simpler
        if not (places < 0).any():
            fill = None
        attributes = {"indices": places, "fill": fill}
        return self.make("take", arrays, attributes, places.shape, arrays[0].dtype)

    @staticmethod
    def _used(arrays: Sequence[Value], places: np.ndarray) -> tuple[list[int], np.ndarray]:
        """The places of the arrays that are read, and `places` as numbers into those arrays alone."""
        offsets = np.concatenate([[0], np.cumsum([size_of(x.shape) for x in arrays])])
        moved, used, before = np.array(places), [], 0
        for k in range(len(arrays)):
            mine = (places >= offsets[k]) & (places < offsets[k + 1])
            if mine.any():
                used.append(k)
                moved[mine] = places[mine] - offsets[k] + before
                before += int(offsets[k + 1] - offsets[k])
        return used, moved

    def _simpler_take(self, a: Value, places: np.ndarray, fill: float | None) -> Value | None:
        while isinstance(a, Node) and a.op == "reshape":
            a = a.operands[0]
        flat = places.reshape(-1)
        if flat.size and (flat >= 0).all():
            box = _box(flat, a.shape)
            if box is not None:
                return self.reshape(self.slice(a, *box), places.shape)
            if (flat == flat[0]).all():
                return self.broadcast(self.reshape(self.take([a], flat[:1]), ()), places.shape)
        if isinstance(a, Node) and a.op == "take":
            inner, inner_fill = a.attributes["indices"].reshape(-1), a.attributes["fill"]
            if fill is None or inner_fill is None or inner_fill == fill:
                through = np.where(places >= 0, inner[np.maximum(places, 0)], -1)
                sources = [self.value(x) for x in a.operands]
                return self.take(sources, through, inner_fill if fill is None else fill)
        return None


def _unit_axes(inner: Shape, outer: Shape) -> list[tuple[int, int]] | None:
    """Pairs of axes where the shapes differ by axes of length 1 alone."""
    b = [axis for axis, n in enumerate(inner) if n != 1]
    a = [axis for axis, n in enumerate(outer) if n != 1]
    if [inner[axis] for axis in b] != [outer[axis] for axis in a]:
        return None
    return list(zip(b, a))


def _box(flat: np.ndarray, shape: Shape) -> tuple[list[int], list[int], list[int]] | None:
    """Start, shape and stride, where the flat indices are one box of an array, row-major."""
    if not shape:
        return ([], [], []) if flat.size == 1 else None
    coordinates = np.stack(np.unravel_index(flat, shape))
    start, count, stride = [], [], []
    for row in coordinates:
        found = np.unique(row)
        gaps = np.diff(found)
        if len(gaps) and (gaps != gaps[0]).any():
            return None
        start.append(int(found[0]))
        count.append(len(found))
        stride.append(int(gaps[0]) if len(gaps) else 1)
    if size_of(count) != flat.size:
        return None
    lines = [s + np.arange(n) * t for s, n, t in zip(start, count, stride)]
    grid = np.meshgrid(*lines, indexing="ij")
    in_order = (np.ravel_multi_index(grid, shape).reshape(-1) == flat).all()
    return (start, count, stride) if in_order else None
