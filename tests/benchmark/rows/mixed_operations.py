"""A step of operations of all kinds, written once for NumPy's names: those of the builder or of JAX."""

from __future__ import annotations

import random
from typing import Any


def mixed_operations(np: Any, x: Any, y: Any, operations: int, seed: int) -> tuple[Any, Any]:
    """Two arrays of the shape of x and y; each value is made of two of the last forty.

    Args:
      np: numpy for values of the builder, jax.numpy for JAX's.
      operations: how many there are at least; a mean with its broadcast is one.
    """
    kinds = [
        (2, lambda a, c: 0.5 * (a + c)),
        (1, lambda a, c: a * c),
        (4, lambda a, c: np.maximum(a, c) - np.minimum(a, 0.5 * c)),
        (2, lambda a, c: np.tanh(a + c)),
        (3, lambda a, c: np.exp(-(a * a))),
        (2, lambda a, c: np.sin(a - c)),
        (3, lambda a, c: a / (1.0 + c * c)),
        (3, lambda a, c: np.where(a < c, 0.5 * a, c)),
        (4, lambda a, c: np.sqrt(1.0 + a * a) - 1.0),
        (2, lambda a, c: np.mean(a) - c),
    ]
    draw = random.Random(seed)
    pool, written = [x, y], 0
    while written < operations:
        cost, kind = draw.choice(kinds)
        pool.append(kind(*(draw.choice(pool[-40:]) for _ in range(2))))
        written += cost
    return np.tanh(pool[-1]), np.tanh(pool[-2])
