"""One elementary function of an array that moves a little at each step."""

from typing import Any

import numpy as np

import simgrad as sg

OBJECTIVE = ""


def world(function: str, elements: int) -> sg.World:
    @sg.world(x=sg.State(elements), y=sg.State(elements), power=sg.Param(elements))
    def functions(x: Any, y: Any, power: Any) -> Any:
        made = sg.builder(x).pow(x, power) if function == "pow" else getattr(np, function)(x)
        return {"x": x + 0.001, "y": 0.5 * y + made}

    return functions
