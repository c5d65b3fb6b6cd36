"""Worlds as readable Python, each one file on simgrad.world.

world = sg.worlds.kinetics("lotka_volterra")
gas = sg.worlds.lennard_jones(particles=16, cutoff=2.5)
"""

from simgrad.worlds.bodies import bodies
from simgrad.worlds.cartpole import cartpole, cartpole_weights
from simgrad.worlds.chain import chain
from simgrad.worlds.kinetics import kinetics
from simgrad.worlds.lennard_jones import lennard_jones
from simgrad.worlds.systems import SYSTEMS, System
from simgrad.worlds.visibility import visibility

__all__ = [
    "SYSTEMS",
    "System",
    "bodies",
    "cartpole",
    "cartpole_weights",
    "chain",
    "kinetics",
    "lennard_jones",
    "visibility",
]
