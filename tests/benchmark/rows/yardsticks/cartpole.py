"""A cart with a pole, pushed by a network; the cost is a sum over steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import steps as all_steps

H, GRAVITY, CART, POLE, LENGTH, LIMIT = 0.02, 9.8, 1.0, 0.1, 0.5, 10.0


def step(state: Any, params: Any, layers: int) -> Any:
    x, speed, angle, spin = (state[n] for n in ("x", "speed", "angle", "spin"))
    layer = jnp.stack([x, speed, angle, spin], axis=-1)
    for i in range(1, layers + 1):
        layer = jnp.tanh(layer @ params[f"w{i}"] + params[f"b{i}"])
    push = LIMIT * layer[..., 0]
    sine, cosine, both = jnp.sin(angle), jnp.cos(angle), CART + POLE
    rest = (push + POLE * LENGTH * spin**2 * sine) / both
    turn = (GRAVITY * sine - cosine * rest) / (LENGTH * (4 / 3 - POLE * cosine**2 / both))
    cost = 1 - cosine + x**2 / 100 + push**2 / 10000
    speed = speed + H * (rest - POLE * LENGTH * turn * cosine / both)
    spin = spin + H * turn
    return {
        "x": x + H * speed,
        "speed": speed,
        "angle": angle + H * spin,
        "spin": spin,
        "cost": state["cost"] + cost,
    }


def gradient(states: Any, params: Any, steps: int, sizes: Any) -> Any:
    """All instances as rows of one matrix."""

    def total(states: Any, params: Any) -> Any:
        start = {**states, "cost": jnp.zeros_like(states["x"])}
        end = all_steps.unrolled(lambda z: step(z, params, len(sizes) - 1), start, steps)
        return jnp.sum(end["cost"])

    return all_steps.named(jax.value_and_grad(total, argnums=(0, 1))(states, params))
