"""Shapes of the results of operations on arrays and linear algebra, from those of their operands."""

from __future__ import annotations

from typing import Any, Sequence

Shape = tuple[int, ...]


def array_shape(code: str, shapes: Sequence[Shape], attributes: dict[str, Any]) -> Shape:
    """Raises ValueError where operands do not meet; all else is verified by the server."""
    if code in ("iota", "dynamic_slice"):
        return tuple(attributes["shape"])
    a = shapes[0]
    if code == "transpose":
        return tuple(a[axis] for axis in attributes["dims"])
    if code == "gather":
        [axis] = attributes["axes"]
        return a[:axis] + shapes[1] + a[axis + 1 :]
    if code == "norm2":
        return tuple(n for axis, n in enumerate(a) if axis not in attributes["axes"])
    if code == "matmul":
        _meet(a, shapes[1])
        return a[:-1] + shapes[1][-1:]
    if code in ("triangular_solve", "solve", "lu_solve"):
        _meet(a, shapes[-1])
        return shapes[-1]
    return a[:1] if code == "lu_permutation" else a


def _meet(a: Shape, b: Shape) -> None:
    if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise ValueError(f"shapes {a} and {b} do not meet")
