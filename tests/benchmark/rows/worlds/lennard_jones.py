"""simgrad.worlds.lennard_jones in a periodic box, of all pairs or with a list."""

from typing import Any

import simgrad as sg

OBJECTIVE = "spread"


def world(particles: int, cutoff: float, h: float, width: int = 0, **listed: Any) -> sg.World:
    box = 1.2 * round(particles ** (1 / 3))
    return sg.worlds.lennard_jones(particles, cutoff=cutoff, box=box, h=h, **listed)
