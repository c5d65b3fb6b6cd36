"""Recovers the restitution of a bouncing ball with servers that a Ray cluster runs.

usage: train_on_ray.py [SERVERS [GPUS OF EACH]]      (default 2 0; RAY_ADDRESS names the cluster)

Nodes beyond this machine need insecure=True or TLS in the call of Pool (docs/scale.md).
"""

import sys
from typing import Any

import numpy as np

import simgrad as sg
import simgrad.ray

STEPS = 60  # 0.6 s: every ball touches the ground once
TRUE_RESTITUTION = 0.8
BALLS = 2048


def train(client: sg.Client, iterations: int = 40) -> float:
    ball = sg.World("bouncing_ball", contact="toi")
    y0 = np.random.default_rng(1).uniform(0.5, 1.0, (BALLS, 1))
    work: dict[str, Any] = dict(steps=STEPS, initial={"y": y0, "v": np.zeros_like(y0)}, policy="f64")
    true = {"restitution": TRUE_RESTITUTION}
    observed = client.rollout(ball, params=true, record=["y"], **work).trajectory["y"]
    restitution = 0.5
    for iteration in range(iterations):
        g = client.gradient(
            ball,
            params={"restitution": restitution},
            data={"y": observed[:, 1:]},
            objective="tracking",
            wrt=["restitution"],
            diagnostics="off",
            weights=np.full(BALLS, 1 / BALLS),
            **work,
        )
        restitution -= 0.05 * float(g.params["restitution"])
        if iteration % 10 == 0:
            print(f"iteration {iteration:2d}: loss {g.value:.3e}, tries {g.tries}")
    return restitution


def main(servers: str = "2", gpus: str = "0") -> float:
    with sg.ray.Pool(servers=int(servers), num_gpus=float(gpus), max_restarts=-1) as pool:
        restitution = train(pool)
    print(f"restitution {restitution:.9f}, error {abs(restitution - TRUE_RESTITUTION):.1e}")
    return restitution


if __name__ == "__main__":
    main(*sys.argv[1:])
