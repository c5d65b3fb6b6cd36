"""Masses on springs to their neighbours in a square."""

from typing import Any

import jax.numpy as jnp

H = 0.01


def step(state: Any, params: Any, side: int) -> Any:
    u, v = state["u"], state["v"]
    down, right = jnp.diff(u, axis=0), jnp.diff(u, axis=1)
    pull = jnp.pad(down, ((0, 1), (0, 0))) - jnp.pad(down, ((1, 0), (0, 0)))
    pull = pull + jnp.pad(right, ((0, 0), (0, 1))) - jnp.pad(right, ((0, 0), (1, 0)))
    v = v + H * (params["k"] * pull - 0.1 * (u * u * u))
    return {"u": u + H * v, "v": v}


def cost(state: Any) -> Any:
    return jnp.sum(state["u"] ** 2)
