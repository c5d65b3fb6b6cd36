"""Section 5, first part: what the missing iteration does to training."""

from dataclasses import dataclass, field

import numpy as np
from depressurization import SETTINGS, STEPS
from page import heading, paragraph, table
from tqdm import tqdm

import simgrad as sg

INSTANCES = 4096
# Few enough that bf16 does not yet round alpha k to 1, where no penetration is left to learn from.
ITERATIONS = 16
START_K = 0.5
# The loss is C (1 - k / 2)^2 with C about 1e-7, so its curvature is C / 2: a rate of 4e6 takes a
# fifth of a Newton step.
RATE = 4e6


@dataclass
class Run:
    """One training run: what the figure shows."""

    k: float = START_K
    losses: list[float] = field(default_factory=list)
    solver_iterations: list[float] = field(
        default_factory=list
    )  # mean over instances, at the first step
    connected: list[int] = field(default_factory=list)  # instances in which k was used


def batch() -> np.ndarray:
    """Instances at and just above the boundary: the small terms vary, a bf16 sum loses all of
    them."""
    _, large, small = SETTINGS["bf16"]
    generator = np.random.default_rng(7)
    smalls = small * (1 + generator.uniform(0, 2, (INSTANCES, 8)))
    return -np.concatenate([np.full((INSTANCES, 1), large), smalls], axis=1)


def train(client: sg.Client, preset: str) -> Run:
    world = sg.World("boundary_projection", elements=9, tol=SETTINGS["bf16"][0])
    start, weights, run = batch(), np.full(INSTANCES, 1 / INSTANCES), Run()
    for _ in tqdm(range(ITERATIONS), desc=f"training k, {preset}", unit="step"):
        g = client.gradient(
            world,
            steps=STEPS,
            initial={"y": start},
            params={"k": run.k},
            wrt=["k"],
            objective="final_penetration",
            weights=weights,
            policy=preset,
        )
        run.losses.append(g.value)
        run.solver_iterations.append(float(g.sites["projection"].iterations_mean[0]))
        run.connected.append(g.connected["k"])
        run.k -= RATE * float(g.params["k"])
    return run


def show(client: sg.Client) -> dict[str, Run]:
    heading("5. What it does to training")
    paragraph(
        f"""{INSTANCES} instances at or just above the boundary, and {ITERATIONS} gradient steps on
        k, three times with the same learning rate. f32 and bf16 with a safe test fall together.
        Unsafe bf16 stays where it was: in no instance does the executed path use k, so there is
        nothing to follow, and no error is raised anywhere."""
    )
    runs = {preset: train(client, preset) for preset in ("f32", "bf16_unsafe", "bf16_safe")}
    table(
        ["policy", "first loss", "last loss", "k", "iterations at step 0", "k connected"],
        [
            [
                preset,
                f"{run.losses[0]:.4e}",
                f"{run.losses[-1]:.4e}",
                f"{run.k:.4f}",
                f"{run.solver_iterations[0]:g}",
                f"{min(run.connected)} of {INSTANCES}",
            ]
            for preset, run in runs.items()
        ],
    )
    return runs
