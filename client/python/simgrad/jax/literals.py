"""Constants of a program in few numbers: repeated ones are written once, and counting is `iota`."""

from __future__ import annotations

import numpy as np

from simgrad.expression import Expression
from simgrad.program import ProgramBuilder
from simgrad.constants import element_of

EXACT = 1 << 53  # integers below are numbers of f64, as which literals are sent
_SMALL = 8  # elements; what is smaller is written as it is


def write_literal(b: ProgramBuilder, array: np.ndarray) -> Expression:
    """The array, which has no NaN, as values of the program. Large integers, which no literal holds, are computed."""
    if array.dtype == np.int64 and bool((np.abs(array >> 1) >= EXACT // 2).any()):
        upper, lower = write_literal(b, array >> 32), write_literal(b, array & 0xFFFFFFFF)
        return b.or_(b.shl(upper, b.literal(32, array.shape, upper.element)), lower)
    element = element_of("real" if array.dtype.kind == "f" else array.dtype)
    shape = array.shape
    if array.size <= _SMALL or _uniform(array):
        return b.literal(array, element=element)
    kept = tuple(axis for axis in range(array.ndim) if not _repeats(array, axis))
    smaller = array[tuple(slice(None) if axis in kept else 0 for axis in range(array.ndim))]
    if len(kept) < array.ndim:
        return b.broadcast(write_literal(b, smaller), shape=shape, dims=kept)
    if array.ndim == 1 and array.size > 2 * _SMALL and _counts(array):
        counted = b.iota(element_of("i32"), shape=shape, axes=0)
        return counted if array.dtype == np.int32 else b.convert(counted, element)
    return b.literal(array, element=element)


def _uniform(array: np.ndarray) -> bool:
    first = array.reshape(-1)[:1]
    return bool((array == first).all()) and not _mixed_zeros(array)


def _mixed_zeros(array: np.ndarray) -> bool:
    if array.dtype.kind != "f" or array.any():
        return False
    signs = np.signbit(array)
    return bool(signs.any()) and not bool(signs.all())


def _repeats(array: np.ndarray, axis: int) -> bool:
    if array.shape[axis] == 1:
        return False
    if array.strides[axis] == 0:
        return True
    first = np.take(array, [0], axis)
    if array.dtype.kind == "f" and (np.signbit(array) != np.signbit(first)).any():
        return False
    return bool((array == first).all())


def _counts(array: np.ndarray) -> bool:
    return array.dtype.kind != "b" and bool((array == np.arange(array.size)).all())
