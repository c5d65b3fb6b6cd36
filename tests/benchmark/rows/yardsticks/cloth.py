"""A square of cloth that hangs from two corners: masses on springs, by a list of edges."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from edges import edges_of

H, REST = 0.005, 0.1


def step(state: Any, params: Any, side: int) -> Any:
    x, v = state["x"], state["v"]
    first, second = edges_of(side)
    free = np.ones((side * side, 1), np.float32)
    free[[0, side - 1]] = 0
    d = x[second] - x[first]
    length = jnp.sqrt(jnp.sum(d * d, axis=1, keepdims=True))
    pull = params["stiffness"] * (1.0 - REST / length) * d
    force = jnp.zeros_like(x).at[first].add(pull).at[second].add(-pull)
    v = v + H * free * (force + np.array([0.0, 0.0, -9.81], np.float32) - params["damping"] * v)
    return {"x": x + H * v, "v": v}


def cost(state: Any) -> Any:
    return jnp.sum(state["x"][:, 2])
