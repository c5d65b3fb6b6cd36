"""Section 5, second part: a parameter recovered through impacts."""

import numpy as np
from page import paragraph, table
from tqdm import tqdm

import simgrad as sg

BALLS, STEPS, ITERATIONS = 64, 60, 60
TRUE, START = 0.8, 0.5
# Near the truth the loss is about 4 (error)^2 for these heights, so its curvature is 8; this takes
# 0.4 of a Newton step.
RATE = 0.05


def show(client: sg.Client) -> None:
    paragraph(
        f"""Training through impacts. {BALLS} balls fall from different heights and bounce; from
        their observed heights over {STEPS} steps the restitution is recovered, starting at
        {START}. The time of impact is part of the world (contact toi), so the gradient knows
        that it moves."""
    )
    world = sg.World("bouncing_ball", contact="toi")
    y0 = np.random.default_rng(11).uniform(0.5, 1.0, (BALLS, 1))
    start = {"y": y0, "v": np.zeros_like(y0)}
    observed = client.rollout(
        world, steps=STEPS, initial=start, params={"restitution": TRUE}, record=["y"], policy="f64"
    ).trajectory["y"][:, 1:]
    restitution, losses = START, []
    for _ in tqdm(range(ITERATIONS), desc="recovering restitution", unit="step"):
        g = client.gradient(
            world,
            steps=STEPS,
            initial=start,
            params={"restitution": restitution},
            data={"y": observed},
            objective="tracking",
            weights=np.full(BALLS, 1 / BALLS),
            wrt=["restitution"],
            policy="f64",
        )
        losses.append(g.value)
        restitution -= RATE * float(g.params["restitution"])
    table(
        ["truth", "start", "recovered", "error", "first loss", "last loss"],
        [
            [
                TRUE,
                START,
                f"{restitution:.12f}",
                f"{abs(restitution - TRUE):.1e}",
                f"{losses[0]:.3e}",
                f"{losses[-1]:.3e}",
            ]
        ],
    )
