"""Masses on springs to their neighbours in a square, by slices."""

from typing import Any

import numpy as np

import simgrad as sg

OBJECTIVE = "squares"


def world(side: int) -> sg.World:
    row, column = np.zeros((1, side)), np.zeros((side, 1))

    @sg.world(
        u=sg.State(side, side), v=sg.State(side, side), k=sg.Param(), h=sg.Config(default=0.01)
    )
    def grid(u: Any, v: Any, k: Any, h: Any) -> Any:
        down, right = u[1:] - u[:-1], u[:, 1:] - u[:, :-1]
        pull = np.concatenate([down, row]) - np.concatenate([row, down])
        pull = pull + np.concatenate([right, column], 1) - np.concatenate([column, right], 1)
        v = v + h * (k * pull - 0.1 * (u * u * u))
        return {"u": u + h * v, "v": v}

    @grid.objective
    def squares(u: Any) -> Any:
        return np.sum(u * u)

    return grid
