"""A generated step of operations of all kinds on 16 elements."""

from typing import Any

import numpy as np
from mixed_operations import mixed_operations

import simgrad as sg

OBJECTIVE = "squares"


def world(operations: int, seed: int) -> sg.World:
    @sg.world(x=sg.State(16), y=sg.State(16))
    def mixed(x: Any, y: Any) -> Any:
        return mixed_operations(np, x, y, operations, seed)

    @mixed.objective
    def squares(x: Any) -> Any:
        return np.sum(x * x)

    return mixed
