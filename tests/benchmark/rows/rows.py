"""The rows that are measured beside JAX: what runs, in which size, and what is asked.

Both sides read this file, each in a process and environment of its own; it needs NumPy alone.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Any, Callable, Mapping

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Size:
    """How much work: `settings` are what the subject's world and yardstick are made with."""

    instances: int
    steps: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      subject: a file of worlds and of yardsticks, and a function of INPUTS.
      what: rollout or gradient.
      sizes: by name: `full` is the table's, `quick` for development, `least` for the test.
      asked: JAX's time divided by ours, at least; None: reported.
      tolerance: the largest difference of a number of the two results, as a part of the largest number of
        its array (for `share` of the numbers).
      share: below 1 where a decision within rounding errors takes single instances elsewhere.
      wrt: inputs that the gradient is by; none: all.
      note: what a reader must know of the comparison.
    """

    name: str
    subject: str
    what: str
    sizes: Mapping[str, Size]
    asked: float | None
    tolerance: float = 1e-3
    share: float = 1.0
    policy: str = "f32"
    diagnostics: str = "summary"
    wrt: tuple[str, ...] = ()
    note: str = ""


def chosen(patterns: list[str]) -> list[Row]:
    """Rows whose name one of the patterns matches, as a shell matches, in any case; all of them without a pattern."""
    found = [r for r in ROWS if not patterns or any(_matches(r.name, p) for p in patterns)]
    if not found:
        raise ValueError(f"no row is named {' or '.join(patterns)}; there are: " + "; ".join(r.name for r in ROWS))
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())


def inputs_of(row: Row, size: Size) -> tuple[Arrays, Arrays]:
    """States, which have an instance axis, and params, whose reals are in the format of the policy."""
    groups = INPUTS[row.subject](size, np.random.default_rng(1))
    dtype = {"f32": np.float32, "f64": np.float64}[row.policy]

    def formatted(x: Any) -> np.ndarray:
        array = np.asarray(x)
        return array.astype(dtype) if array.dtype.kind == "f" else array

    states, params = ({n: formatted(x) for n, x in group.items()} for group in groups)
    return states, params


# ---- What goes in ----


def _ball(size: Size, random: Any) -> tuple[Any, Any]:
    y = random.uniform(0.1, 1.0, (size.instances, 1))
    return {"y": y, "v": np.zeros_like(y)}, {"k": 1.0, "h": 0.01}


def _lotka_volterra(size: Size, random: Any) -> tuple[Any, Any]:
    prey, predator = random.uniform(0.5, 2.0, (2, size.instances))
    return {"prey": prey, "predator": predator}, {"a": 1.5, "b": 1.0, "c": 3.0, "d": 1.0}


def _particles(size: Size, random: Any) -> tuple[Any, Any]:
    shape = (size.instances, size.settings["particles"], 3)
    return {"x": random.uniform(-2, 2, shape), "v": random.uniform(-2, 2, shape)}, {}


def _grid(size: Size, random: Any) -> tuple[Any, Any]:
    shape = (size.instances, size.settings["side"], size.settings["side"])
    return {"u": random.uniform(0.1, 1, shape), "v": random.uniform(0.1, 1, shape)}, {"k": 0.5}


def _mixed(size: Size, random: Any) -> tuple[Any, Any]:
    x, y = random.uniform(0.1, 1.0, (2, size.instances, 16))
    return {"x": x, "y": y}, {}


def _cartpole(size: Size, random: Any) -> tuple[Any, Any]:
    sizes = size.settings["sizes"]
    states = {n: random.uniform(-0.1, 0.1, size.instances) for n in ("x", "speed", "angle", "spin")}
    params: Arrays = {}
    for i, (n, m) in enumerate(zip(sizes, sizes[1:]), 1):
        params[f"w{i}"] = random.normal(0, n**-0.5, (n, m)) * (0.1 if i == len(sizes) - 1 else 1)
        params[f"b{i}"] = np.zeros(m)
    return states, params


def _cloth(size: Size, random: Any) -> tuple[Any, Any]:
    side = size.settings["side"]
    flat = np.stack([*np.meshgrid(np.arange(side), np.arange(side)), np.zeros((side, side))], axis=-1)
    x = 0.1 * flat.reshape(1, -1, 3) + random.uniform(-0.01, 0.01, (size.instances, side * side, 3))
    return {"x": x, "v": np.zeros_like(x)}, {"stiffness": 500.0, "damping": 0.5}


def _robertson(size: Size, random: Any) -> tuple[Any, Any]:
    y = np.tile([1.0, 0.0, 0.0], (size.instances, 1))
    around = random.uniform(0.8, 1.25, (3, size.instances))
    return {"y": y}, dict(zip(("k1", "k2", "k3"), around * [[0.04], [3e7], [1e4]]))


def _lennard_jones(size: Size, random: Any) -> tuple[Any, Any]:
    edge = round(size.settings["particles"] ** (1 / 3))
    lattice = np.stack(np.meshgrid(*[np.arange(edge)] * 3), axis=-1).reshape(-1, 3)
    x = 1.2 * lattice + random.uniform(-0.05, 0.05, (size.instances, edge**3, 3))
    v = random.normal(0, 0.5, x.shape)
    return {"x": x, "v": v}, {"sigma": 1.0, "epsilon": 1.0}


def _linear_algebra(size: Size, random: Any) -> tuple[Any, Any]:
    n = size.settings["n"]
    root = random.normal(0, 1, (n, n))
    x = random.uniform(-1, 1, (size.instances, n))
    return {"x": x}, {"base": root @ root.T / n + np.eye(n), "b": random.normal(0, 1, n)}


# Arguments at which nothing overflows; they move by 0.001 a step.
_ARGUMENTS = {"exp": (-10, 9), "log": (0.01, 10), "tanh": (-5, 5), "sin": (-100, 100), "pow": (0.1, 10)}


def _functions(size: Size, random: Any) -> tuple[Any, Any]:
    low, high = _ARGUMENTS[size.settings["function"]]
    x = random.uniform(low, high, (size.instances, size.settings["elements"]))
    return {"x": x, "y": np.zeros_like(x)}, {"power": random.uniform(-2, 2, x.shape[1])}


def _foreign(size: Size, random: Any) -> tuple[Any, Any]:
    """The state that was measured, its reals moved a little for each instance; what it is driven by is the same for all."""
    from worlds import foreign

    state, controls = foreign.start(size.settings["name"])
    around = {n: 1 + random.uniform(-1e-3, 1e-3, (size.instances, *x.shape)) for n, x in state.items()}
    reals = {n for n, x in state.items() if x.dtype.kind == "f"}
    return {n: x * around[n] if n in reals else np.tile(x, (size.instances, *[1] * x.ndim)) for n, x in state.items()}, controls


INPUTS: Mapping[str, Callable[[Size, Any], tuple[Any, Any]]] = {
    "ball": _ball,
    "lotka_volterra": _lotka_volterra,
    "particles": _particles,
    "grid": _grid,
    "mixed": _mixed,
    "cartpole": _cartpole,
    "cloth": _cloth,
    "robertson": _robertson,
    "lennard_jones": _lennard_jones,
    "linear_algebra": _linear_algebra,
    "functions": _functions,
    "foreign": _foreign,
}


# ---- The table ----


def _sizes(full: tuple[int, int], quick: tuple[int, int], least: tuple[int, int], **settings: Any) -> dict[str, Size]:
    """A setting may be a tuple of the three."""
    each = [{n: x[i] if isinstance(x, tuple) else x for n, x in settings.items()} for i in range(3)]
    return {n: Size(*s, e) for n, s, e in zip(("full", "quick", "least"), (full, quick, least), each)}


_BALL = _sizes((4096, 2000), (256, 500), (8, 80))  # the least one reaches the floor too
_GRID = _sizes((1, 500), (1, 100), (1, 3), side=(64, 64, 4))
_PARTICLES = _sizes((256, 200), (32, 50), (2, 3), particles=(16, 16, 4))
_MIXED = _sizes((512, 10), (64, 4), (2, 2), operations=(3000, 600, 40), seed=7)
_LENNARD_JONES = dict(particles=(64, 64, 27), cutoff=(2.0, 2.0, 1.4), h=0.004)
_LIST = dict(skin=(0.3, 0.3, 0.3), capacity=(1200, 1200, 300), width=(48, 48, 26))
_LAYERS = ([4, 64, 64, 1], [4, 64, 64, 1], [4, 8, 8, 1])
# Instances and steps of every world of tests/data/jax, for the table of docs/jax.md.
_WORLDS = {
    "brax_ant": (64, 10),
    "brax_hopper": (64, 20),
    "brax_pendulum": (64, 10),
    "diffrax_kvaerno5": (64, 1),
    "diffrax_tsit5": (64, 5),
    "jaxmd_neighbours": (16, 20),
    "jaxmd_pairs": (64, 20),
    "jaxopt_fixed_point": (256, 20),
    "jaxopt_lbfgs": (64, 5),
    "mjx_ball": (256, 20),
    "mjx_hopper": (256, 20),
    "mjx_hopper_fixed": (256, 20),
    "mjx_humanoid": (16, 10),
    "mjx_humanoid_of_mjx": (16, 10),
    "mjx_pendulum": (256, 50),
    "optimistix_fixed_point": (256, 20),
    "optimistix_least_squares": (64, 5),
    "optimistix_newton": (64, 5),
}

ROWS = [
    Row("ball with summary, rollout", "ball", "rollout", _BALL, 0.8, share=0.999, note="JAX's loop ends with the last instance of the batch"),
    Row("ball, gradient", "ball", "gradient", _BALL, None, share=0.99, note="JAX: all 25 turns of the loop, with remat"),
    Row("Lotka-Volterra RK4, gradient", "lotka_volterra", "gradient", _sizes((4096, 1000), (256, 200), (4, 5)), 3),
    Row("Lotka-Volterra RK4, one instance, gradient", "lotka_volterra", "gradient", _sizes((1, 1000), (1, 200), (1, 5)), 0.3),
    Row("16 Lennard-Jones particles, gradient, f32", "particles", "gradient", _PARTICLES, 3),
    Row("16 Lennard-Jones particles, gradient, f64", "particles", "gradient", _PARTICLES, 3, policy="f64", tolerance=1e-9),
    Row("grid of masses, rollout", "grid", "rollout", _GRID, 1),
    Row("grid of masses, gradient", "grid", "gradient", _GRID, 1),
    Row("mixed operations, rollout", "mixed", "rollout", _MIXED, 2),
    Row("mixed operations, gradient", "mixed", "gradient", _MIXED, 2),
    Row("exp", "functions", "rollout", _sizes((1, 2000), (1, 500), (1, 3), function="exp", elements=(4096, 4096, 16)), 0.3, diagnostics="off"),
    Row("log", "functions", "rollout", _sizes((1, 2000), (1, 500), (1, 3), function="log", elements=(4096, 4096, 16)), 0.3, diagnostics="off"),
    Row("tanh", "functions", "rollout", _sizes((1, 2000), (1, 500), (1, 3), function="tanh", elements=(4096, 4096, 16)), 0.3, diagnostics="off"),
    Row("sin", "functions", "rollout", _sizes((1, 2000), (1, 500), (1, 3), function="sin", elements=(4096, 4096, 16)), 0.8, diagnostics="off"),
    Row("pow", "functions", "rollout", _sizes((1, 2000), (1, 500), (1, 3), function="pow", elements=(4096, 4096, 16)), None, diagnostics="off"),
    Row("network on cartpole, gradient of weights", "cartpole", "gradient", _sizes((4096, 200), (64, 50), (2, 3), sizes=_LAYERS), 1),
    Row("cloth, one instance, rollout", "cloth", "rollout", _sizes((1, 500), (1, 50), (1, 3), side=(32, 32, 4)), 1),
    Row("cloth, one instance, gradient", "cloth", "gradient", _sizes((1, 500), (1, 50), (1, 3), side=(32, 32, 4)), 1),
    Row("cloth, 64 instances, rollout", "cloth", "rollout", _sizes((64, 500), (8, 50), (2, 3), side=(32, 32, 4)), 2),
    Row("Robertson, implicit, gradient", "robertson", "gradient", _sizes((4096, 80), (64, 80), (2, 80), rtol=1e-4, atol=1e-8), 5, policy="f64", tolerance=1e-2, wrt=("k1", "k2", "k3")),
    Row("64 Lennard-Jones particles, rollout", "lennard_jones", "rollout", _sizes((256, 200), (8, 50), (1, 3), **_LENNARD_JONES), 1.5),
    Row("64 Lennard-Jones particles, gradient", "lennard_jones", "gradient", _sizes((32, 100), (8, 50), (1, 3), **_LENNARD_JONES), None),
    Row("64 Lennard-Jones particles with list, rollout", "lennard_jones", "rollout", _sizes((256, 200), (8, 50), (1, 3), **_LENNARD_JONES, **_LIST), 1.5),
    Row("cholesky and solve of 24 x 24, rollout", "linear_algebra", "rollout", _sizes((1024, 20), (64, 5), (2, 2), n=(24, 24, 4)), 1),
    Row("cholesky and solve of 24 x 24, gradient", "linear_algebra", "gradient", _sizes((1024, 20), (64, 5), (2, 2), n=(24, 24, 4)), 1),
    Row("MJX hopper, rollout", "foreign", "rollout", _sizes((1024, 100), (64, 10), (2, 2), name="mjx_hopper"), 1, note="unmodified"),
    Row("MJX hopper, one iteration, gradient", "foreign", "gradient", _sizes((1024, 100), (64, 10), (2, 2), name="mjx_hopper_fixed", watch="qpos"), 2, tolerance=0.05, note="unmodified; JAX has no gradient of more iterations; a start moved by 1e-6 moves this gradient by 0.017"),
    Row("Brax ant, rollout", "foreign", "rollout", _sizes((256, 50), (16, 5), (2, 1), name="brax_ant"), 1, tolerance=0.2, share=0.9, note="unmodified; contacts carry rounding errors on: a start moved by 1e-6 moves JAX's own result by 0.04; in f64 both agree to 1e-11"),
    Row("JAX-MD 64 particles, rollout", "foreign", "rollout", _sizes((256, 100), (32, 10), (2, 3), name="jaxmd_pairs"), 1, note="unmodified"),
    Row("JAX-MD 64 particles, no test told, rollout", "foreign", "rollout", _sizes((256, 100), (32, 10), (2, 3), name="jaxmd_pairs", tests="loops"), None, note='unmodified, with `tests="loops"`, as of 40,000 tests of pairs in a step'),
    Row("diffrax Kvaerno5, solves", "foreign", "rollout", _sizes((256, 1), (32, 1), (2, 1), name="diffrax_kvaerno5"), 3, note="unmodified"),
    # Solvers stop within 1e-6 of what they look for, at the latest.
    *(
        Row(f"{name} in f64, rollout", "foreign", "rollout", _sizes(full, (8, 2), (2, 1), name=name), None, policy="f64", tolerance=1e-5)
        for name, full in _WORLDS.items()
    ),
]
