"""Shapes of the results of operations on arrays and linear algebra, from those of their operands."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

Shape = tuple[int, ...]


def array_shape(code: str, shapes: Sequence[Shape], attributes: dict[str, Any]) -> Shape:
    """Raises ValueError where operands do not meet; all else is verified by the server."""
    if code in ("iota", "dynamic_slice"):
        return tuple(attributes["shape"])
    a = shapes[0]
    if code == "transpose":
        whole = all(isinstance(axis, (int, np.integer)) for axis in attributes["dims"])
        if not whole or sorted(attributes["dims"]) != list(range(len(a))):
            raise ValueError(f"transpose of shape {a} by dims {attributes['dims']}: each axis once, counted from 0")
        return tuple(a[axis] for axis in attributes["dims"])
    if code == "gather":
        [axis] = attributes["axes"]
        return a[:axis] + shapes[1] + a[axis + 1 :]
    if code == "norm2":
        return tuple(n for axis, n in enumerate(a) if axis not in attributes["axes"])
    if code == "matmul":
        _meet(a, shapes[1])
        return a[:-1] + shapes[1][-1:]
    if code in ("triangular_solve", "cholesky"):
        _square(code, a, len(a) >= 2)
    elif code in ("lu_solve", "solve"):
        _square(code, a, len(a) == 2)
    elif code in ("lu", "lu_permutation") and len(a) != 2:
        raise ValueError(f"{code} of shape {a}: one matrix [m, n]")
    elif code in ("lu", "lu_permutation") and shapes[1:] not in ([], [a[:1]]):
        raise ValueError(f"{code}: rows of shape {shapes[1]}: an integer per row, {a[:1]}")
    if code in ("triangular_solve", "solve", "lu_solve"):
        _meet(a, shapes[-1])
        return shapes[-1]
    return a[:1] if code == "lu_permutation" else a


def _square(code: str, a: Shape, has_axes: bool) -> None:
    if not has_axes or a[-2] != a[-1]:
        several = ", or [..., n, n]" if code in ("triangular_solve", "cholesky") else ""
        raise ValueError(f"{code} of shape {a}: one square matrix [n, n]{several}")


def _meet(a: Shape, b: Shape) -> None:
    if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise ValueError(f"shapes {a} and {b} do not meet")
