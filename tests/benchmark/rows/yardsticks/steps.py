"""How a step becomes a rollout and a gradient, for yardsticks that need no better form of their own.

A yardstick is a file with `step(state, params, **settings)` and `cost(state)` of one instance, as a user of
JAX writes them, or with `rollout` and `gradient` of the whole batch where that is faster.
"""

from __future__ import annotations

from typing import Any, Callable

import jax
import jax.numpy as jnp

State = dict[str, Any]


def unrolled(step: Callable[[State], State], state: State, steps: int) -> State:
    """Keeps states alone: a reverse pass computes each step again, which is faster than to keep all of it."""
    following = jax.checkpoint(step)
    return jax.lax.scan(lambda z, _: (following(z), None), state, None, length=steps)[0]


def rollout(step: Any, states: State, params: State, steps: int) -> State:
    def alone(state: State) -> State:
        return jax.lax.scan(lambda z, _: (step(z, params), None), state, None, length=steps)[0]

    return jax.vmap(alone)(states)


def gradient(step: Any, cost: Any, states: State, params: State, steps: int) -> State:
    """The sum of the costs, and its gradient by every state and param."""

    def total(states: State, params: State) -> Any:
        def alone(state: State) -> Any:
            return cost(unrolled(lambda z: step(z, params), state, steps))

        return jnp.sum(jax.vmap(alone)(states))

    return named(jax.value_and_grad(total, argnums=(0, 1))(states, params))


def named(made: Any) -> State:
    value, (of_states, of_params) = made
    return {"value": value, **of_states, **of_params}
