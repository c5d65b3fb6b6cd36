"""NumPy's functions that put elements in order, or take them from places: sort and take, on values of a world."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simgrad.numpy_operands import along_one, builder_of, counted
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL, ELEMENT_TYPE_U8

if TYPE_CHECKING:
    from simgrad.expression import Expression


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> "Expression":
    """A gather of the flat array; a computed index that is outside means the nearest element."""
    b = builder_of(arr, indices)
    x, along = along_one(b.value(arr), axis)
    if np.ndim(indices) != x.ndim:
        raise ValueError(
            f"{b.here()}np.take_along_axis of shape {x.shape} at indices of shape {np.shape(indices)}: "
            "as many axes"
        )
    if not hasattr(indices, "builder"):
        places = np.take_along_axis(np.arange(x.size).reshape(x.shape), np.asarray(indices), along)
        return b.take(x, places.shape, places.ravel().tolist())
    if indices.element in (ELEMENT_TYPE_REAL, ELEMENT_TYPE_BOOL):
        raise TypeError(f"{b.here()}np.take_along_axis takes computed indices, not reals or bools")
    # A bound above 255 is no u8.
    given = indices.astype("i32") if indices.element == ELEMENT_TYPE_U8 else indices
    inside = b.min(b.max(given, np.int32(0)), np.int32(x.shape[along] - 1))
    return _at_places(x, inside.astype("i32"), along)


def _at_places(x: "Expression", places: "Expression", axis: int) -> "Expression":
    """x at i32 places along an axis, all inside."""
    stride = math.prod(x.shape[axis + 1 :])
    base = np.arange(x.size).reshape(x.shape).take([0], axis).astype(np.int32)
    return x.builder.gather(x.reshape(-1), places * np.int32(stride) + base, axes=0)


def argsort(a: Any, axis: int | None = -1, kind: Any = None, *, stable: bool | None = None) -> "Expression":
    """Stable, of whatever kind: NumPy leaves the order of equal elements open for the others."""
    of, along = along_one(a, axis)
    if kind not in _KINDS:
        raise ValueError(f"{of.builder.here()}a sort of kind {kind!r}: quicksort, mergesort, heapsort or stable")
    if kind is not None and stable is not None:
        raise ValueError(f"{of.builder.here()}a sort of kind {kind!r} and stable={stable}: one of them")
    return of.builder.argsort(counted(of), axes=along)


def sort(a: Any, axis: int | None = -1, kind: Any = None, *, stable: bool | None = None) -> "Expression":
    """A stable argsort, and a gather."""
    of, along = along_one(a, axis)
    places = argsort(of, along, kind, stable=stable)
    return _at_places(of, places, along) if of.size else of


def take(a: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> "Expression":
    """Raises IndexError for a known index that is outside; a computed one means the nearest element there. With `mode`
    `clip` a known one does, too, and none counts from the back."""
    b = builder_of(a, indices)
    x, along = along_one(b.value(a), axis)
    if mode not in ("raise", "clip"):
        raise ValueError(f"{b.here()}np.take of mode {mode!r}: raise or clip")
    if not hasattr(indices, "builder") and np.asarray(indices).dtype == bool:
        indices = np.asarray(indices, np.int32)  # places 0 and 1, and no mask
    if not hasattr(indices, "builder") and mode == "clip":
        indices = np.take(np.arange(x.shape[along]), np.asarray(indices), mode="clip")
    return x[(*(slice(None),) * along, indices)]


_KINDS = (None, "quicksort", "mergesort", "heapsort", "stable")
