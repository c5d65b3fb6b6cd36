"""Worlds that no one here wrote: the library's own step, unmodified (tests/with_jax/foreign_worlds.py), in jit(vmap(scan))."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sys
from typing import Any, Callable

import jax
import jax.numpy as jnp
import steps as all_steps

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "with_jax"))
sys.setrecursionlimit(100_000)  # JAX's own tracing of large models

from foreign_worlds import CASES, Case  # noqa: E402

from simgrad.jax.trees import Group, called  # noqa: E402


@functools.cache
def _case(name: str) -> Case:
    return CASES[name]()


def prepare(name: str, **_: Any) -> None:
    """Makes the model, which no trace may. Libraries print while they are imported; answers go to stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        _case(name)


def _step_of(name: str) -> Callable[[Any, Any], Any]:
    """The step of leaves by name; leaves that are not given are the example's."""
    case = _case(name)
    group = Group.of("state", case.state)
    examples = dict(zip(group.names, jax.tree_util.tree_leaves(case.state)))

    def step(state: Any, params: Any) -> Any:
        leaves = [jnp.asarray(state.get(n, x), getattr(x, "dtype", None)) for n, x in examples.items()]
        given = {"state": jax.tree_util.tree_unflatten(group.tree, leaves), **params}
        made = dict(zip(group.names, jax.tree_util.tree_leaves(called(case.step, given))))
        return {n: made[n] for n in state}

    return step


def rollout(states: Any, params: Any, steps: int, name: str, **_: Any) -> Any:
    return all_steps.rollout(_step_of(name), states, params, steps=steps)


def gradient(states: Any, params: Any, steps: int, name: str, watch: str) -> Any:
    """By the whole state."""
    step = _step_of(name)

    def cost(states: Any) -> Any:
        def alone(state: Any) -> Any:
            return jnp.sum(all_steps.unrolled(lambda z: step(z, params), state, steps)[watch] ** 2)

        return jnp.sum(jax.vmap(alone)(states))

    value, by_states = jax.value_and_grad(cost)(states)
    return {"value": value, **by_states}
