"""NumPy's functions that move elements and compute none, on values of a world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from simgrad.numpy_operands import Axis, axes_in_order, axes_of, axis_of, builder_of, is_computed, whole
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL

if TYPE_CHECKING:
    from simgrad.expression import Expression


def reshape(a: Any, shape: Any) -> "Expression":
    b = builder_of(a)
    try:
        known = np.broadcast_to(np.False_, a.shape).reshape(lengths_of(shape)).shape
    except ValueError as error:
        raise ValueError(f"{b.here()}{error}") from None
    return a if known == a.shape else b.reshape(a, known)


def lengths_of(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple; one number is the length of one axis."""
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


def broadcast_to(array: Any, shape: Any) -> "Expression":
    return builder_of(array).broadcast_to(array, shape)


def transpose(a: Any, axes: Any = None) -> "Expression":
    dims = list(range(a.ndim))[::-1] if axes is None else axes_in_order(a, axes)
    if len(dims) != a.ndim:
        raise ValueError(f"{a.builder.here()}axes {axes} are no order of the {a.ndim} axes")
    return a if a.ndim < 2 else builder_of(a).transpose(a, dims)


def squeeze(a: Any, axis: Axis = None) -> "Expression":
    return reshape(a, np.squeeze(np.empty(a.shape, bool), axis).shape)


def expand_dims(a: Any, axis: int | Sequence[int]) -> "Expression":
    return reshape(a, np.expand_dims(np.empty(a.shape, bool), axis).shape)


def swapaxes(a: Any, axis1: int, axis2: int) -> "Expression":
    dims = list(range(a.ndim))
    first, second = axis_of(a, axis1), axis_of(a, axis2)
    dims[first], dims[second] = dims[second], dims[first]
    return transpose(a, dims)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> "Expression":
    sources, targets = axes_in_order(a, source), axes_in_order(a, destination)
    if len(sources) != len(targets):
        raise ValueError(
            f"{a.builder.here()}np.moveaxis of {source} to {destination}: as many places as axes"
        )
    dims = [axis for axis in range(a.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources)):
        dims.insert(target, axis)
    return transpose(a, dims)


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> "Expression":
    b = builder_of(arrays)
    values = b.matched(arrays, shapes=False)
    if axis is None:
        values, axis = [x.reshape(-1) for x in values], 0
    return values[0] if len(values) == 1 else b.concat(*values, axes=axis)


def stack(arrays: Sequence[Any], axis: int = 0) -> "Expression":
    b = builder_of(arrays)
    values = b.matched(arrays, shapes=False)
    if len({x.shape for x in values}) != 1:
        raise b.unmet(*(x.shape for x in values))
    return concatenate([expand_dims(x, axis) for x in values], axis)


def vstack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    values = [b.value(x) for x in tup]
    return concatenate([x.reshape(1, -1) if x.ndim < 2 else x for x in values])


def hstack(tup: Sequence[Any]) -> "Expression":
    b = builder_of(tup)
    values = [b.value(x) for x in tup]
    values = [x.reshape(1) if x.ndim == 0 else x for x in values]
    return concatenate(values, 0 if values[0].ndim == 1 else 1)


def roll(a: "Expression", shift: int | Sequence[int], axis: Axis = None) -> "Expression":
    """Two slices along each axis, joined."""
    if is_computed(shift):
        raise TypeError(f"{builder_of(a, shift).here()}np.roll by {shift!r}: a whole number that is known")
    if axis is None:
        return roll(a.reshape(-1), shift, 0).reshape(a.shape)
    by = dict.fromkeys(range(a.ndim), 0)
    for n, along in zip(*np.broadcast_arrays(np.atleast_1d(shift), np.atleast_1d(axis))):
        by[axis_of(a, along)] += whole(n, "np.roll by")
    for along, n in by.items():
        length = a.shape[along]
        cut = -n % length if length else 0
        if cut:
            before: tuple[Any, ...] = (slice(None),) * along
            a = concatenate([a[(*before, slice(cut, length))], a[(*before, slice(0, cut))]], along)
    return builder_of(a).value(a)


def flip(m: "Expression", axis: Axis = None) -> "Expression":
    gone = set(axes_of(m, axis))
    return m[tuple(slice(None, None, -1) if a in gone else slice(None) for a in range(m.ndim))]


def triangle(m: Any, k: int, lower: bool) -> "Expression":
    b = builder_of(m)
    if m.ndim == 0:
        raise ValueError(f"{b.here()}a triangle of a scalar: at least one axis")
    inside = np.tri(*m.shape[-2:], k=k if lower else k - 1).astype(bool)  # type: ignore[call-overload]
    return b.where(inside if lower else ~inside, m, False if m.element == ELEMENT_TYPE_BOOL else 0)


def diagonal(v: Any, k: int = 0) -> "Expression":
    """Makes a matrix of a vector that is its diagonal, or takes the diagonal of a matrix: `take`."""
    places = np.arange(v.size).reshape(v.shape)
    if v.ndim == 1:
        places = np.diag(places + 1, k) - 1
    else:
        places = np.diag(places, k)
    return builder_of(v).take(v, places.shape, places.ravel().tolist())


def matrix_diagonal(a: Any, offset: int = 0) -> "Expression":
    """Takes the diagonal of the first two axes, as the last axis: `take`."""
    value = builder_of(a).value(a)
    places = np.diagonal(np.arange(value.size).reshape(value.shape), offset)
    return value.builder.take(value, places.shape, places.ravel().tolist())
