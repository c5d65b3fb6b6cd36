"""One elementary function of an array that moves a little at each step."""

from typing import Any

import jax.numpy as jnp


def step(state: Any, params: Any, function: str, elements: int) -> Any:
    x = state["x"]
    made = jnp.power(x, params["power"]) if function == "pow" else getattr(jnp, function)(x)
    return {"x": x + 0.001, "y": 0.5 * state["y"] + made}
