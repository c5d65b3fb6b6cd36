"""Runs a world and the step that it was made of, and says where they differ most."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import jax
import numpy as np

from simgrad.client import Client
from simgrad.jax.jax_world import JaxWorld
from simgrad.jax.trace import in_f64
from simgrad.jax.trees import Group, called, is_key, numbers, x64
from simgrad.local import local


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of one leaf over instances and steps. Of reals the largest |a - b| / max(1, largest finite |leaf|),
    infinite where they differ in a NaN or an infinity; of integers and bools the largest |a - b|."""

    name: str
    worst: float
    step: int

    def __str__(self) -> str:
        return f"{self.name}: {self.worst:.3g} at step {self.step}"


@dataclasses.dataclass(frozen=True)
class Check:
    """The leaves, worst first; `worst` is the number of the first."""

    leaves: tuple[Difference, ...]
    steps: int

    @property
    def worst(self) -> float:
        return self.leaves[0].worst if self.leaves else 0.0

    def __str__(self) -> str:
        return "\n".join([f"{self.steps} steps in f64, worst leaf first:", *(f"  {x}" for x in self.leaves)])


class JaxStep:
    """A step in JAX, compiled once, in f64: for one instance.

    Args:
      step: what to run; None: the step of the world.
      inputs: control, params and data, where they are not the examples.
    """

    def __init__(self, world: JaxWorld, step: Callable[..., Any] | None = None, **inputs: Any):
        groups = world.groups
        self._starts = world.starts
        self._group = group = groups["state"]
        given = {kind: _leaves(g, inputs.get(kind)) for kind, g in groups.items() if kind != "state"}
        self._widths = world.widths
        with self._widths(), x64():
            others = {kind: groups[kind].built(_arrays(leaves)) for kind, leaves in given.items()}

        def turn(*leaves: Any) -> list[Any]:
            made = called(step or world.step, {"state": group.built(leaves), **others})
            structure = jax.tree_util.tree_structure
            if structure(made) != group.tree and isinstance(made, tuple) and len(made) == 2:
                made = made[0]
            if structure(made) != group.tree:
                raise TypeError(f"a step returns the state that it takes, {group.tree}, not {structure(made)}")
            following = jax.tree_util.tree_leaves(made)
            words = [jax.random.key_data(x) if is_key(x) else x for x in following]
            return [jax.numpy.asarray(x, e.dtype) for x, e in zip(words, group.examples)]

        self._others = others
        if not jax.config.jax_enable_x64:
            with self._widths(), x64():
                in_f64(turn, _arrays(list(group.examples)), True)
        self._turn = jax.jit(turn)

    def _first(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """The leaves that a run starts from: those that were sent, or those that init makes of them."""
        if self._starts is None:
            return leaves
        made = self._starts({"state": self._group.built(_arrays(leaves)), **self._others})
        by_name = {**dict(zip(self._group.names, leaves)), **made}
        return [np.asarray(numbers(by_name[n]), x.dtype) for n, x in zip(self._group.names, leaves)]

    def trajectory(self, steps: int, state: Any = None) -> dict[str, np.ndarray]:
        """[steps + 1, shape] of each leaf of the state, by name."""
        with self._widths(), x64():
            leaves = _arrays(self._first(_leaves(self._group, state)))
            recorded = [leaves]
            for _ in range(steps):
                recorded.append(self._turn(*recorded[-1]))
        return {
            name: np.stack([np.asarray(step[k]) for step in recorded])
            for k, name in enumerate(self._group.names)
        }


def _arrays(leaves: list[np.ndarray]) -> list[jax.Array]:
    """As a step has them in JAX: traced numbers index them, and they have `.at`."""
    return [jax.numpy.asarray(x) for x in leaves]


def _leaves(group: Group, given: Any) -> list[np.ndarray]:
    if given is None:
        return list(group.examples)
    made = [np.asarray(numbers(x), e.dtype) for x, e in zip(group.flat(given), group.examples)]
    for name, x, e in zip(group.names, made, group.examples):
        if x.shape != e.shape:
            raise TypeError(
                f"{group.kind} {name} has shape {x.shape}, not {e.shape}: check runs one instance, whose inputs are the same "
                "at every step"
            )
    return made


def check(
    world: JaxWorld,
    step: Callable[..., Any] | Client | None = None,
    steps: int = 5,
    state: Any = None,
    *,
    client: Client | None = None,
    **inputs: Any,
) -> Check:
    """Runs the world and a step of JAX from one state, compares every recorded leaf at every step, and prints
    the leaf that differs most.

        simgrad.jax.check(world, step)

    Args:
      step: what runs in JAX; None: the step that the world was made of. A Client stands for `client`.
      steps: how many. state: to start from; None: the example.
      client: whose server runs the world; None: a server of one's own, as simgrad.local starts it.
      inputs: control, params and data, where they are not the examples.
    Errors: TypeError for other inputs, and for pytrees that are not the world's; those of simgrad.local and
      Client.rollout.
    """
    unknown = set(inputs) - {"control", "params", "data"}
    if unknown:
        raise TypeError(f"check has no {', '.join(sorted(unknown))}: control, params and data are the inputs")
    if step is not None and not callable(step):
        client, step = step, None
    if client is None:
        with local() as own:
            found = _compared(world, step, own, steps, state, inputs)
    else:
        found = _compared(world, step, client, steps, state, inputs)
    print(f"{steps} steps in f64, worst of {len(found.leaves)} leaves: {found.leaves[0] if found.leaves else 'none'}")
    return found


def _compared(
    world: JaxWorld,
    step: Callable[..., Any] | None,
    client: Client,
    steps: int,
    state: Any,
    inputs: dict[str, Any],
) -> Check:
    expected = JaxStep(world, step, **inputs).trajectory(steps, state)
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
        ours = np.asarray(result.trajectory[name][0])
        theirs = expected[name][-len(ours) :]
        found.append(_difference(name, ours, theirs))
    return Check(tuple(sorted(found, key=lambda x: -x.worst)), steps)


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    if ours.size == 0:
        return Difference(name, 0.0, 0)
    errors = (_of_reals if theirs.dtype.kind == "f" else _of_integers)(ours, theirs).reshape(len(ours), -1).max(1)
    return Difference(name, float(errors.max()), int(errors.argmax()))


def _of_reals(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    scale = float(np.max(np.abs(theirs), initial=1.0, where=np.isfinite(theirs)))
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        errors = np.where(alike, 0.0, np.abs(ours - theirs) / scale)
    return np.where(np.isnan(errors), np.inf, errors)


def _of_integers(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Exact up to the last rounding: the larger less the smaller, as u64, which holds every difference of i64."""
    a, b = ours.astype(np.int64), theirs.astype(np.int64)
    return (np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).astype(np.float64)
