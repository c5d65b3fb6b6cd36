"""A square of cloth that hangs from two corners: masses on springs, by a list of edges."""

from typing import Any

import numpy as np
from edges import edges_of

import simgrad as sg

OBJECTIVE = "height"


def world(side: int) -> sg.World:
    first, second = edges_of(side)
    free = np.ones((side * side, 1))
    free[[0, side - 1]] = 0
    down = np.array([0.0, 0.0, -9.81])

    @sg.world(
        x=sg.State(side * side, 3),
        v=sg.State(side * side, 3),
        stiffness=sg.Param(),
        damping=sg.Param(),
        rest=sg.Config(default=0.1),
        h=sg.Config(default=0.005),
    )
    def cloth(x: Any, v: Any, stiffness: Any, damping: Any, rest: Any, h: Any) -> Any:
        d = x[second] - x[first]
        length = np.sqrt(np.sum(d * d, axis=1, keepdims=True))
        pull = stiffness * (1.0 - rest / length) * d
        force = np.zeros_like(x).at[first].add(pull).at[second].add(-pull)
        v = v + h * free * (force + down - damping * v)
        return {"x": x + h * v, "v": v}

    @cloth.objective
    def height(x: Any) -> Any:
        return np.sum(x[:, 2])

    return cloth
