"""Checks of the arguments of worlds: each raises ValueError with the argument's name and what is right."""

from __future__ import annotations

import operator
from typing import Any, Sequence

import numpy as np


def whole(least: int, **given: Any) -> None:
    """Refuses what is no whole number, or is below `least`."""
    for name, number in given.items():
        if not _is_whole(number) or number < least:
            raise ValueError(f"{name} {number}: at least {least}, and whole")


def positive(**given: float) -> None:
    """Refuses numbers that are not above 0."""
    for name, number in given.items():
        if not number > 0:
            raise ValueError(f"{name} {number}: above 0")


def each_whole(name: str, given: Sequence[int], of: Sequence[str]) -> None:
    """Refuses what is not a whole number, at least 1, for each of these."""
    if len(given) != len(of) or not all(_is_whole(n) and n >= 1 for n in given):
        raise ValueError(f"{name} {tuple(given)}: a whole number, at least 1, for each of {', '.join(of)}")


def edges_of(box: float | Sequence[float], dimensions: int) -> np.ndarray:
    """The edges of a box [dimensions], which may be one number; they are above 0."""
    found = np.asarray(box, float)
    if found.shape not in ((), (1,), (dimensions,)) or not (found > 0).all():
        raise ValueError(f"box {box}: one edge, or one for each of {dimensions} dimensions, above 0")
    return np.broadcast_to(found, dimensions)


def _is_whole(number: Any) -> bool:
    try:
        operator.index(number)
    except TypeError:
        return False
    return True
