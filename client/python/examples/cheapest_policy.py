"""The cheapest formats for a Lennard-Jones fluid whose pairs shall enter and leave as they do in f64.

usage: cheapest_policy.py [TARGET]      (default localhost:8001)
"""

import sys

import numpy as np

import simgrad as sg

# Four particles on a square, kicked at random; pairs leave the cutoff on the way.
CORNERS = np.array([[0.0, 0.0], [1.1, 0.0], [0.0, 1.1], [1.1, 1.1]])
FLUIDS = 32


def main(target: str = "localhost:8001") -> sg.Tuned:
    world = sg.worlds.lennard_jones(4, cutoff=1.6, dimensions=2, h=0.01)
    kicks = 0.7 * np.random.default_rng(1).normal(size=(FLUIDS, 4, 2))
    with sg.Client(target) as client:
        tuned = client.tune(
            world,
            steps=25,
            initial={"x": np.tile(CORNERS, (FLUIDS, 1, 1)), "v": kicks},
            params={"epsilon": 1.0, "sigma": 1.0},
            objective="energy",
            formats=["f32", "bf16"],
            keep=0.9,
            bound=0.02,
        )
    print(tuned.table())
    print(tuned)
    return tuned


if __name__ == "__main__":
    main(*sys.argv[1:])
