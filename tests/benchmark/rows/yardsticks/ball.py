"""The bouncing ball: a loop that pushes it out of the floor, at most 25 turns.

The rollout's loop ends when the last instance of the batch has ended. JAX has no reverse mode for such a loop:
the gradient runs all turns, without effect on those that ended.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp
import steps as all_steps

TURNS, ALPHA, TOL, GRAVITY, RESTITUTION = 25, 0.5, 1e-4, 9.81, 0.8


def depth(y: Any) -> Any:
    return jnp.maximum(-y, 0.0)


def turn(y: Any, k: Any) -> Any:
    p = depth(y)
    return jnp.where(p < TOL, y, y + ALPHA * k * p)


def until_all_end(y: Any, k: Any) -> Any:
    def goes_on(carried: Any) -> Any:
        y, i = carried
        return (i < TURNS) & jnp.any(depth(y) >= TOL)

    return jax.lax.while_loop(goes_on, lambda c: (turn(c[0], k), c[1] + 1), (y, 0))[0]


def all_turns(y: Any, k: Any) -> Any:
    return jax.lax.scan(lambda y, _: (turn(y, k), None), y, None, length=TURNS)[0]


def step(push_out: Callable[..., Any], state: Any, params: Any) -> Any:
    v_free = state["v"] - params["h"] * GRAVITY
    y = state["y"] + params["h"] * v_free
    bounced = -RESTITUTION * jnp.minimum(v_free, 0.0)
    return {"y": push_out(y, params["k"]), "v": jnp.where(y < 0, bounced, v_free)}


def rollout(states: Any, params: Any, steps: int) -> Any:
    def one(z: Any, _: Any) -> Any:
        return step(until_all_end, z, params), None

    return jax.lax.scan(one, states, None, length=steps)[0]


def gradient(states: Any, params: Any, steps: int) -> Any:
    def total(states: Any, params: Any) -> Any:
        end = all_steps.unrolled(lambda z: step(all_turns, z, params), states, steps)
        return jnp.sum(end["y"])

    return all_steps.named(jax.value_and_grad(total, argnums=(0, 1))(states, params))
