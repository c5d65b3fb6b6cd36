"""Keeps a hopper of MJX up by torques of its knee: gradients go through MJX's contact solver.

usage: train_hopper.py [TARGET [ITERATIONS]]      (default localhost:8001 10; needs MJX)
"""

import pathlib
import sys

import mujoco
import numpy as np
from mujoco import mjx

import simgrad as sg
import simgrad.jax

HOPPER = pathlib.Path(__file__).with_name("hopper.xml")


def main(target: str = "localhost:8001", iterations: str = "10") -> list[float]:
    model = mjx.put_model(mujoco.MjModel.from_xml_path(str(HOPPER)))
    world = simgrad.jax.world(
        lambda state, control: mjx.step(model, state.replace(ctrl=control)),
        state=mjx.make_data(model),
        control=np.zeros(1),
        # Metres of the hip below that of a straight leg in the end, and a price of torques.
        objective={"low": {"terminal": lambda s: -s.qpos[1], "stage": lambda s, u: 0.001 * u @ u}},
    )
    for site in world.sites:
        print(f"{site.line} decides: {site.text}")
    bend = np.linspace(0.4, 0.6, 8)  # radians, of eight thighs; each knee bends back by twice that
    start = {"qpos": np.stack([0 * bend, 0.8 * np.cos(bend) - 0.8, bend, -2 * bend], axis=1)}
    torques, losses = np.zeros((50, 1)), []  # one series for all, of a quarter of a second
    with sg.Client(target) as client:
        for iteration in range(int(iterations)):
            g = client.gradient(
                world,
                steps=len(torques),
                initial=start,
                controls=sg.PerStep(torques),
                weights=np.full(len(bend), 1 / len(bend)),
                objective="low",
                policy="f64",
            )
            losses.append(g.value)
            torques -= 0.5 * g.controls / max(1, np.linalg.norm(g.controls))
            print(f"iteration {iteration:2d}: {g.value:.4f}")
    for site in g.sites.values():
        print(f"{site.line} turned {site.iterations_mean.mean():.2f} times a step")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
