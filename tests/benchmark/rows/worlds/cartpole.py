"""simgrad.worlds.cartpole."""

from typing import Sequence

import simgrad as sg

OBJECTIVE = "balance"


def world(sizes: Sequence[int]) -> sg.World:
    return sg.worlds.cartpole(sizes)
