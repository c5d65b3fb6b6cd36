"""The built-in ball, with projection."""

from typing import Any

import simgrad as sg

OBJECTIVE = "final_height"


def world(**settings: Any) -> sg.World:
    return sg.World("bouncing_ball", contact="projection", clamp=False, tol=1e-4)
