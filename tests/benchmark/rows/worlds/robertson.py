"""simgrad.worlds.kinetics("robertson")."""

import simgrad as sg

OBJECTIVE = "last"


def world(rtol: float, atol: float) -> sg.World:
    return sg.worlds.kinetics("robertson", rtol=rtol, atol=atol)
