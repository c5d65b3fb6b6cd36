"""Runs a world and the step that it was made of, and says where they differ most."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from simgrad.client import Client
from simgrad.jax.trees import Group, called, is_key, numbers, x64
from simgrad.jax.world import JaxWorld


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of one leaf: the largest |a - b| / max(1, largest |leaf|) over instances and steps."""

    name: str
    worst: float
    step: int


@dataclasses.dataclass(frozen=True)
class Check:
    """The leaves, worst first; `worst` is the number of the first."""

    leaves: tuple[Difference, ...]
    steps: int

    @property
    def worst(self) -> float:
        return self.leaves[0].worst if self.leaves else 0.0

    def __str__(self) -> str:
        rows = [f"  {x.name}: {x.worst:.3g} at step {x.step}" for x in self.leaves]
        return "\n".join([f"{self.steps} steps in f64, worst leaf first:", *rows])


class JaxStep:
    """The step of a world in JAX, compiled once, in f64: for one instance.

    Args:
      inputs: control, params and data, where they are not the examples.
    """

    def __init__(self, world: JaxWorld, **inputs: Any):
        groups = world.groups
        self._group = group = groups["state"]
        others = {
            kind: groups[kind].built(_leaves(groups[kind], inputs.get(kind)))
            for kind in groups
            if kind != "state"
        }

        def turn(*leaves: Any) -> list[Any]:
            made = called(world.step, {"state": group.built(leaves), **others})
            alone = jax.tree_util.tree_structure(made) == group.tree
            following = jax.tree_util.tree_leaves(made if alone else made[0])
            words = [jax.random.key_data(x) if is_key(x) else x for x in following]
            return [jax.numpy.asarray(x, e.dtype) for x, e in zip(words, group.examples)]

        self._turn = jax.jit(turn)

    def trajectory(self, steps: int, state: Any = None) -> dict[str, np.ndarray]:
        """[steps + 1, shape] of each leaf of the state, by name."""
        with x64():
            leaves = [jax.numpy.asarray(x) for x in _leaves(self._group, state)]
            recorded = [leaves]
            for _ in range(steps):
                recorded.append(self._turn(*recorded[-1]))
        return {
            name: np.stack([np.asarray(step[k]) for step in recorded])
            for k, name in enumerate(self._group.names)
        }


def _leaves(group: Group, given: Any) -> list[np.ndarray]:
    if given is None:
        return list(group.examples)
    return [np.asarray(numbers(x), e.dtype) for x, e in zip(group.flat(given), group.examples)]


def check(
    world: JaxWorld, client: Client, steps: int = 5, state: Any = None, **inputs: Any
) -> Check:
    """Both run from one state (the example), and every recorded leaf is compared at every step.

    Args:
      inputs: control, params and data, where they are not the examples.
    """
    expected = JaxStep(world, **inputs).trajectory(steps, state)
    group = world.groups["state"]
    names = [n for n in group.names if n in world.state]
    observed = [n for n in group.names if n in world.exports]
    given: dict[str, Any] = {
        word: None if inputs.get(kind) is None else inputs[kind]
        for kind, word in (("control", "controls"), ("params", "params"), ("data", "data"))
    }
    start = group.filled([x[None] for x in _leaves(group, state)])
    result = client.rollout(
        world, steps=steps, initial=start, policy="f64", record=[*names, *observed], diagnostics="off", **given
    )
    found = []
    for name in (*names, *observed):
        ours = np.asarray(result.trajectory[name][0], np.float64)
        theirs = np.asarray(expected[name][-len(ours) :], np.float64)
        found.append(_difference(name, ours, theirs))
    return Check(tuple(sorted(found, key=lambda x: -x.worst)), steps)


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    if ours.size == 0:
        return Difference(name, 0.0, 0)
    scale = max(1.0, float(np.nanmax(np.abs(theirs))) if np.isfinite(theirs).any() else 1.0)
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        errors = np.where(alike, 0.0, np.abs(ours - theirs) / scale)
    errors = np.where(np.isnan(errors), np.inf, errors).reshape(len(ours), -1).max(1)
    return Difference(name, float(errors.max()), int(errors.argmax()))
