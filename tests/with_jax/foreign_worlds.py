"""Worlds that no one here wrote: steps of simulators from PyPI, as their libraries have them.

Each is a Case: a step with an example of its state, and states to start from. Nothing in it knows
of simgrad.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Case:
    """A step to lower.

    Attributes:
      step: step(state) or step(state, control). state, control: examples.
      start: of a generator of random numbers, a state and a control to start from.
      implicit: the library differentiates a solution, not the iterations that found it.
      options: of simgrad.jax.world. watch: the leaf that a loss sums, by its name.
    """

    step: Callable[..., Any]
    state: Any
    start: Callable[[np.random.Generator], tuple[Any, Any]]
    watch: str
    control: Any = None
    implicit: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


# ---- MJX ----

PENDULUM = """<mujoco><worldbody><body><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size=".02" fromto="0 0 0 0 0 -1"/></body></worldbody></mujoco>"""
BALL = """<mujoco><option timestep=".005"/><worldbody><geom type="plane" size="5 5 .1"/>
<body pos="0 0 .12"><freejoint/><geom type="sphere" size=".1"/></body></worldbody></mujoco>"""
HOPPER = """<mujoco><option timestep=".005" iterations="4" ls_iterations="4"/><worldbody>
<geom type="plane" size="5 5 .1"/><body pos="0 0 .8"><joint type="slide" axis="1 0 0"/>
<joint type="slide" axis="0 0 1"/><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size=".05" fromto="0 0 0 0 0 -.4"/><body pos="0 0 -.4">
<joint name="k" type="hinge" axis="0 1 0"/>
<geom type="capsule" size=".05" fromto="0 0 0 0 0 -.4"/></body></body></worldbody>
<actuator><motor joint="k" gear="50"/></actuator></mujoco>"""


def _mjx(model: Any) -> Case:
    import mujoco
    from mujoco import mjx

    device = mjx.put_model(model)
    example = mjx.forward(device, mjx.make_data(device))

    def step(state: Any, control: Any) -> Any:
        return mjx.step(device, state.replace(ctrl=control))

    def start(rng: np.random.Generator) -> tuple[Any, Any]:
        data = mujoco.MjData(model)
        speed = rng.normal(size=model.nv) * 0.3
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv) * 0.09, 1.0)
        state = example.replace(qpos=jnp.asarray(data.qpos), qvel=jnp.asarray(speed))
        return state, jnp.asarray(rng.normal(size=model.nu))

    return Case(step, example, start, "qpos", control=jnp.zeros(model.nu))


def _mjx_of(text: str) -> Case:
    import mujoco

    return _mjx(mujoco.MjModel.from_xml_string(text))


def _mjx_file(package: str, path: str) -> Case:
    import importlib

    import mujoco

    folder = pathlib.Path(importlib.import_module(package).__path__[0])
    return _mjx(mujoco.MjModel.from_xml_path(str(folder / path)))


@case
def mjx_pendulum() -> Case:
    return _mjx_of(PENDULUM)


@case
def mjx_ball() -> Case:
    return _mjx_of(BALL)


@case
def mjx_hopper() -> Case:
    return _mjx_of(HOPPER)


@case
def mjx_hopper_fixed() -> Case:
    """With one iteration MJX has no loop of the solver, and JAX a gradient."""
    return _mjx_of(HOPPER.replace('iterations="4" ls', 'iterations="1" ls'))


@case
def mjx_humanoid() -> Case:
    return _mjx_file("brax", "envs/assets/humanoid.xml")


@case
def mjx_humanoid_of_mjx() -> Case:
    return _mjx_file("mujoco.mjx", "test_data/humanoid/humanoid.xml")


# ---- Brax ----


def _brax(name: str, backend: str, watch: str) -> Case:
    from brax import envs

    environment = envs.get_environment(name, backend=backend)
    reset = jax.jit(environment.reset)

    def start(rng: np.random.Generator) -> tuple[Any, Any]:
        state = reset(jax.random.PRNGKey(int(rng.integers(1 << 30))))
        return state, jnp.asarray(rng.uniform(-0.1, 0.1, size=environment.action_size))

    example = reset(jax.random.PRNGKey(0))
    control = jnp.zeros(environment.action_size)
    kept = {"formats": "keep"}  # its contacts add 1e-8 to a count in f32, also in x64
    return Case(environment.step, example, start, watch, control=control, options=kept)


@case
def brax_pendulum() -> Case:
    return _brax("inverted_pendulum", "generalized", "pipeline_state.q")


@case
def brax_hopper() -> Case:
    return _brax("hopper", "spring", "pipeline_state.x_i.pos")


@case
def brax_ant() -> Case:
    return _brax("ant", "positional", "pipeline_state.x_i.pos")


# ---- JAX-MD ----


@case
def jaxmd_pairs() -> Case:
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(5.0)
    init, apply = simulate.nve(energy.lennard_jones_pair(displacement), shift, 1e-3)
    return _fluid(init, apply, np.arange(4) * 1.25)


def _fluid(init: Any, apply: Any, ticks: np.ndarray) -> Case:
    lattice = np.stack(np.meshgrid(*[ticks] * 3), -1).reshape(-1, 3)

    def start(rng: np.random.Generator) -> tuple[Any, Any]:
        places = jnp.asarray(lattice + rng.normal(size=lattice.shape) * 0.02)
        return init(jax.random.PRNGKey(int(rng.integers(1 << 30))), places, kT=1.0), None

    return Case(apply, start(np.random.default_rng(0))[0], start, "position")


@case
def jaxmd_neighbours() -> Case:
    from jax_md import energy, simulate, space

    box = 7.0
    displacement, shift = space.periodic(box)
    lattice = np.stack(np.meshgrid(*[np.arange(6) * box / 6] * 3), -1).reshape(-1, 3) + 0.3
    neighbours, forces = energy.lennard_jones_neighbor_list(
        displacement, box, r_onset=1.5, r_cutoff=2.0, dr_threshold=0.2
    )
    first = jnp.asarray(lattice + np.random.default_rng(0).normal(size=lattice.shape) * 0.02)
    allocated = neighbours.allocate(first)
    init, apply = simulate.nve(forces, shift, 1e-3)

    def step(state: Any) -> Any:
        moving, near = state
        near = near.update(moving.position)
        return apply(moving, neighbor=near), near

    def start(rng: np.random.Generator) -> tuple[Any, Any]:
        places = jnp.asarray(lattice + rng.normal(size=lattice.shape) * 0.02)
        near = allocated.update(places)
        key = jax.random.PRNGKey(int(rng.integers(1 << 30)))
        return (init(key, places, kT=1.0, neighbor=near), near), None

    return Case(step, start(np.random.default_rng(0))[0], start, "0.position")


# ---- diffrax, optimistix, jaxopt: a whole solve is one step ----


def _pure(step: Callable[[Any], Any], example: Any, draw: Callable[..., Any], **more: Any) -> Case:
    def start(rng: np.random.Generator) -> tuple[Any, Any]:
        return {"y": jnp.asarray(draw(rng))}, None

    return Case(lambda s: {"y": step(s["y"])}, {"y": example}, start, "y", **more)


def _hunting(t: Any, y: Any, args: Any) -> Any:
    return jnp.stack([1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]])


def _diffrax(solver: Any) -> Case:
    import diffrax

    def step(y: Any) -> Any:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(_hunting),
            solver,
            *(0.0, 10.0, 0.1),
            y,
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
            max_steps=4096,
        )
        return found.ys[-1]

    return _pure(step, jnp.array([1.0, 1.0]), lambda rng: rng.uniform(0.5, 2, 2))


@case
def diffrax_tsit5() -> Case:
    import diffrax

    return _diffrax(diffrax.Tsit5())


@case
def diffrax_kvaerno5() -> Case:
    import diffrax

    return _diffrax(diffrax.Kvaerno5())


def _towards(y: Any, a: Any) -> Any:
    return jnp.cos(y) * 0.7 + a


@case
def optimistix_newton() -> Case:
    import optimistix

    matrix = np.random.default_rng(0).normal(size=(6, 6))

    def residual(y: Any, x: Any) -> Any:
        return y**3 + jnp.asarray(matrix) @ y - x

    def step(x: Any) -> Any:
        solver = optimistix.Newton(rtol=1e-10, atol=1e-10)
        return optimistix.root_find(residual, solver, x, args=x, max_steps=64, throw=False).value

    return _pure(step, jnp.ones(6) * 0.3, lambda rng: rng.normal(size=6))


@case
def optimistix_fixed_point() -> Case:
    import optimistix

    def step(x: Any) -> Any:
        solver = optimistix.FixedPointIteration(rtol=1e-10, atol=1e-10)
        found = optimistix.fixed_point(_towards, solver, x, args=x, max_steps=256, throw=False)
        return found.value

    return _pure(step, jnp.ones(6) * 0.3, lambda rng: rng.normal(size=6))


@case
def optimistix_least_squares() -> Case:
    import optimistix

    times = jnp.linspace(0, 1, 20)

    def residual(y: Any, x: Any) -> Any:
        model = y[0] * jnp.exp(-y[1] * times)
        return model - x[0] * jnp.exp(-(x[1] ** 2) * times) - 0.01 * times

    def step(x: Any) -> Any:
        solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
        return optimistix.least_squares(
            residual, solver, x, args=x, max_steps=64, throw=False
        ).value

    return _pure(step, jnp.array([1.0, 1.5]), lambda rng: rng.uniform(1, 2, 2))


@case
def jaxopt_fixed_point() -> Case:
    import jaxopt

    solver = jaxopt.FixedPointIteration(fixed_point_fun=_towards, maxiter=200, tol=1e-10)

    def step(x: Any) -> Any:
        return solver.run(x, x).params

    return _pure(step, jnp.ones(6) * 0.3, lambda rng: rng.normal(size=6), implicit=True)


@case
def jaxopt_lbfgs() -> Case:
    import jaxopt

    def cost(y: Any, x: Any) -> Any:
        valley = jnp.sum(100 * (y[1:] - y[:-1] ** 2) ** 2)
        return jnp.sum((y - x) ** 2) + jnp.sum(jnp.cos(y)) + valley

    solver = jaxopt.LBFGS(cost, maxiter=50, tol=1e-6, jit=True)

    def step(x: Any) -> Any:
        return solver.run(x, x).params

    return _pure(step, jnp.ones(6) * 0.3, lambda rng: rng.normal(size=6) * 0.3, implicit=True)
