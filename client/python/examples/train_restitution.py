"""Recovers the restitution of a bouncing ball from observed heights.

usage: train_restitution.py [TARGET]      (default localhost:8001)
"""

import sys

import numpy as np

import simgrad as sg

STEPS = 60  # 0.6 s: every ball touches the ground once
TRUE_RESTITUTION = 0.8


def main(target: str = "localhost:8001") -> float:
    ball = sg.World("bouncing_ball", contact="toi")
    y0 = np.random.default_rng(1).uniform(0.5, 1.0, (64, 1))
    start = {"y": y0, "v": np.zeros_like(y0)}
    with sg.Client(target) as client:
        observed = client.rollout(
            ball,
            steps=STEPS,
            initial=start,
            params={"restitution": TRUE_RESTITUTION},
            policy="f64",
            record=["y"],
        ).trajectory["y"]
        restitution = 0.5
        for iteration in range(40):
            g = client.gradient(
                ball,
                steps=STEPS,
                initial=start,
                params={"restitution": restitution},
                data={"y": observed[:, 1:]},
                objective="tracking",
                wrt=["restitution"],
                policy="f64",
                diagnostics="off",
                weights=np.full(len(y0), 1 / len(y0)),
            )
            restitution -= 0.05 * float(g.params["restitution"])
            if iteration % 10 == 0:
                print(f"iteration {iteration:2d}: loss {g.value:.3e}")
    print(f"restitution {restitution:.9f}, error {abs(restitution - TRUE_RESTITUTION):.1e}")
    return restitution


if __name__ == "__main__":
    main(*sys.argv[1:])
