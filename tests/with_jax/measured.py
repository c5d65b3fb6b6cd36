"""What a world of JAX does: its trajectory, how fast errors grow in it, a gradient, its sites."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from foreign_worlds import CASES, Case

import simgrad.jax
from simgrad.jax.check import JaxStep
from simgrad.jax.trees import called

STEPS = 100
KEPT = (1, 2, 5, 10, 20, 50, 100)  # of the trajectory
GRADIENT_STEPS = 3
TINY = 1e-13  # relative, of the perturbation that shows how errors grow


@dataclasses.dataclass
class Measured:
    """One world. Arrays by "state/NAME", "expected/NAME", "grown/NAME", "control", "direction", "slope".

    `facts` are numbers for people and for tests, and `program` the world as protobuf.
    """

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]
    program: bytes


def lowered(name: str) -> tuple[Case, simgrad.jax.JaxWorld, float]:
    """The case, its world with the objective that tests differentiate, and the seconds it took."""
    case = CASES[name]()
    begin = time.perf_counter()
    watched = {"watched": lambda state: jnp.sum(_leaf(state, case.watch) ** 2)}
    made = simgrad.jax.world(
        case.step,
        state=case.state,
        control=case.control,
        name=name,
        objective=watched,
        **case.options,
    )
    return case, made, time.perf_counter() - begin


def _leaf(state: Any, name: str) -> Any:
    from simgrad.jax.trees import path_name

    paths, _ = jax.tree_util.tree_flatten_with_path(state)
    return next(leaf for path, leaf in paths if path_name(path) == name)


def measure(name: str) -> Measured:
    """Runs JAX alone. Call with x64 on."""
    case, world, seconds = lowered(name)
    state, control = case.start(np.random.default_rng(1))
    inputs = {} if control is None else {"control": control}
    theirs = JaxStep(world, **inputs)
    expected = theirs.trajectory(STEPS, state)
    grown = theirs.trajectory(STEPS, _perturbed(state))
    slope, direction = _slope(case, world, state, control)
    arrays: dict[str, np.ndarray] = {"direction": direction}
    if slope is not None:
        arrays["slope"] = np.asarray(slope)
    if control is not None:
        arrays["control"] = np.asarray(control)
    kept = list(KEPT)
    for leaf in world.state:
        arrays[f"state/{leaf}"] = expected[leaf][0]
        arrays[f"expected/{leaf}"] = expected[leaf][kept]
        if expected[leaf].dtype.kind == "f":
            arrays[f"grown/{leaf}"] = _worst(grown[leaf][kept], expected[leaf][kept])
    facts, program = facts_of(case, world, seconds)
    growth = max([float(v.max()) for k, v in arrays.items() if k.startswith("grown/")] or [0.0])
    return Measured({**facts, "growth": growth, "gradient_of_jax": slope is not None}, arrays, program)


def facts_of(case: Case, world: simgrad.jax.JaxWorld, seconds: float) -> tuple[dict[str, Any], bytes]:
    """Of the program alone, which is given as protobuf. `seconds`: that lowering took."""
    program, report = world.program, world.report()
    assert program is not None
    data = program.SerializeToString(deterministic=True)
    lines = {s.name: s.line for s in report.sites if s.what != "choice"}
    facts = {
        "name": program.name,
        "operations": report.operation_count,
        "sites": sorted(lines),
        "lines": lines,
        "watch": case.watch,
        "implicit": case.implicit,
        "lowered_in_less_than_seconds": _rounded_up(seconds),
        "digest": hashlib.sha256(data).hexdigest(),
    }
    return facts, data


def _rounded_up(seconds: float) -> int:
    return int(seconds) + 1


def _perturbed(state: Any) -> Any:
    rng = np.random.default_rng(2)

    def moved(x: Any) -> Any:
        array = np.asarray(x)
        if array.dtype.kind != "f":
            return x
        return jnp.asarray(array * (1 + TINY * rng.choice([-1.0, 1.0], size=array.shape)))

    return jax.tree_util.tree_map(moved, state)


def _worst(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Per kept step the largest difference, by the largest number of the leaf then, or 1."""
    largest = np.abs(theirs).reshape(len(theirs), -1).max(1, initial=0.0)
    differences = np.abs(ours - theirs).reshape(len(ours), -1).max(1, initial=0.0)
    return differences / np.maximum(1.0, largest)


def _slope(
    case: Case, world: simgrad.jax.JaxWorld, state: Any, control: Any
) -> tuple[float | None, np.ndarray]:
    """The derivative of the objective along a direction in the watched leaf, where JAX has one."""
    group = world.groups["state"]
    place = group.names.index(case.watch)
    leaves = [jnp.asarray(x, e.dtype) for x, e in zip(group.flat(state), group.examples)]
    drawn = np.random.default_rng(3).normal(size=leaves[place].shape)
    direction = drawn / np.sqrt(np.sum(drawn**2))

    def loss(x: Any) -> Any:
        now = group.built([*leaves[:place], x, *leaves[place + 1 :]])
        given = {"state": now} if control is None else {"state": now, "control": control}
        for _ in range(GRADIENT_STEPS):
            given = {**given, "state": called(case.step, given)}
        return jnp.sum(_leaf(given["state"], case.watch) ** 2)

    try:
        gradient = jax.jit(jax.grad(loss))(leaves[place])
    except ValueError as error:
        assert "Reverse-mode differentiation does not work" in str(error)
        return None, direction
    return float(np.sum(np.asarray(gradient) * direction)), direction
