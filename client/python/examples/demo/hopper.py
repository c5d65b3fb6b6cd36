"""Section 4: a hopper of MJX, as MJX has it. A Python that has MJX runs this file by itself.

usage: hopper.py TARGET
"""

import contextlib
import io
import os
import pathlib
import subprocess
import sys

import numpy as np
from page import heading, paragraph, table

import simgrad as sg

# The Pythons that may have it: this one, and that of scripts/setup-jax.
PYTHONS = [sys.executable, str(pathlib.Path(__file__).parents[4] / ".venv-jax/bin/python")]
TORQUE = 0.13  # of the knee, in units of the motor
FALLING, TOUCHING = 10, 12  # steps: the foot touches in the last one, and two more
MODEL = pathlib.Path(__file__).parents[1] / "hopper.xml"
# x and z of the hip, from where a straight leg stands; angles of hip and knee. The foot is 2 cm up.
START = {"qpos": np.array([0.0, 0.8 * np.cos(0.3) - 0.78, 0.3, -0.6])}


def show(client: sg.Client) -> None:
    heading("4. A hopper that MJX steps")
    python = next(filter(has_mjx, PYTHONS), None)
    if python is None:
        paragraph("""There is no JAX with MJX here, so this section is left out. scripts/setup-jax
            installs both where there is PyPI.""")
        return
    sys.stdout.flush()
    subprocess.run([python, __file__, client.target], check=True, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def has_mjx(python: str) -> bool:
    if not os.access(python, os.X_OK):
        return False
    done = subprocess.run(
        [python, "-c", "import mujoco.mjx, simgrad.jax"], capture_output=True, env=environment()
    )
    return done.returncode == 0


def hopper() -> sg.World:
    import mujoco

    with contextlib.redirect_stdout(io.StringIO()):  # MJX says there that Warp is missing
        from mujoco import mjx

    import simgrad.jax

    model = mjx.put_model(mujoco.MjModel.from_xml_path(str(MODEL)))
    return simgrad.jax.world(
        lambda state, control: mjx.step(model, state.replace(ctrl=control)),
        state=mjx.make_data(model),
        control=np.zeros(1),
        objective={"low": lambda state: -state.qpos[1]},
        name="hopper",
    )


def work(steps: int, torque: float = TORQUE) -> dict:
    torques = sg.PerStep(np.full((steps, 1), torque))
    return dict(steps=steps, initial=START, controls=torques, objective="low")


def main(target: str) -> None:
    world = hopper()
    paragraph(f"""mjx.step comes unmodified, as {world.report().operation_count} operations. Its
        contact solver loops until its own tests stop it. These lines of MJX repeat or stop it:""")
    deciding = [s for s in world.sites if s.what == "loop" or s.kind == "termination"]
    table(["line", "what", "source"], [[s.line, s.what, s.text[:64]] for s in deciding])
    with sg.Client(target) as client:
        show_gradient(client, world)
        show_policies(client, world)


def show_gradient(client: sg.Client, world: sg.World) -> None:
    by = 1e-5
    g = client.gradient(world, policy="f64", **work(TOUCHING))
    up = client.rollout(world, policy="f64", **work(TOUCHING, TORQUE + by)).value
    down = client.rollout(world, policy="f64", **work(TOUCHING, TORQUE - by)).value
    paragraph(f"""jax.grad refuses such a loop. Here the gradient of the hip's depth, by a torque of
        the knee in all of {TOUCHING} steps and through the contact, is {g.controls.sum():.10f}. A
        central difference gives {(up - down) / (2 * by):.10f}.""")


def show_policies(client: sg.Client, world: sg.World) -> None:
    rows = []
    for steps in (FALLING, TOUCHING):
        for policy in ("f64", "bf16_unsafe"):
            g = client.gradient(world, policy=policy, **work(steps))
            turns = " ".join(str(n) for n in g.sites["solver.solve.2"].iterations_max)
            rows.append([steps, policy, f"{g.value:.5f}", f"{g.controls.sum():.5f}", turns])
    table(["steps", "policy", "depth (m)", "gradient", "turns of the solver by step"], rows)
    why = client.compare(world, policies=["f64", "bf16_unsafe"], **work(FALLING)).why
    paragraph(f"""{why} Two steps on, with the foot on the ground, depth and gradient are NaN.""")


if __name__ == "__main__":
    main(*sys.argv[1:])
