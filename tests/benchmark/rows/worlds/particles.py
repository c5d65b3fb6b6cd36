"""Lennard-Jones particles, every pair at every step, softened so that no start is far from others."""

from typing import Any

import numpy as np

import simgrad as sg

OBJECTIVE = "squares"


def world(particles: int) -> sg.World:
    softening = np.ones((particles, particles)) + 1e6 * np.eye(particles)

    @sg.world(x=sg.State(particles, 3), v=sg.State(particles, 3), h=sg.Config(default=1e-4))
    def all_pairs(x: Any, v: Any, h: Any) -> Any:
        d = x[:, None, :] - x[None, :, :]
        inverse = 1.0 / (np.sum(d * d, axis=2) + softening)
        s6 = inverse * inverse * inverse
        f = 24.0 * (inverse * (2.0 * (s6 * s6) - s6))
        v = v + h * np.sum(f[:, :, None] * d, axis=1)
        return {"x": x + h * v, "v": v}

    @all_pairs.objective
    def squares(x: Any) -> Any:
        return np.sum(x * x)

    return all_pairs
