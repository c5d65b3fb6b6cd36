"""The edges of a square of cloth."""

import numpy as np


def edges_of(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the masses at both ends of each edge, along rows and along columns."""
    number = np.arange(side * side, dtype=np.int32).reshape(side, side)
    first = [number[:, :-1].ravel(), number[:-1].ravel()]
    second = [number[:, 1:].ravel(), number[1:].ravel()]
    return np.concatenate(first), np.concatenate(second)
