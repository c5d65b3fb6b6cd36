"""Particles with the Lennard-Jones potential 4 epsilon ((sigma/r)^12 - (sigma/r)^6), by velocity
Verlet.

Every pair is tested against the cutoff at every step: site `cutoff`, one decision per pair, of kind
membership. A hard cutoff drops the pair's energy and force there; its gradient does not see a pair
that enters or leaves, and the margins of the site say how near one was. With `onset` the potential is
multiplied by S(q) = (c - q)^2 (c + 2 q - 3 o) / (c - o)^3 of q = r^2 between o = onset^2 and
c = cutoff^2 (CHARMM), so that energy and force are continuous; site `onset`.

With `skin` a Verlet list says which pairs to look at (verlet_list.py): sites `rebuild` and `overflow`.

Units: those of sigma, epsilon and mass 1. Cost: all pairs at every step, with a list `capacity` pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world
from simgrad.worlds.arguments import positive, whole
from simgrad.worlds.verlet_list import AllPairs, VerletList


def lennard_jones(
    particles: int = 13,
    *,
    cutoff: float = 2.5,
    onset: float | None = None,
    box: float | None = None,
    dimensions: int = 3,
    h: float = 0.005,
    skin: float | None = None, capacity: int | None = None,  # fmt: skip
) -> FunctionWorld:
    """States x and v [particles, dimensions]; params sigma and epsilon.

    Args:
      cutoff: pairs farther apart do not interact.
      onset: where the switching function begins; None: a hard cutoff.
      box: edge of a periodic box, at least twice the cutoff and the skin; None: free space.
      skin: pairs nearer than cutoff + skin are listed, until a particle moved skin/2; None: no list.
      capacity: the most pairs that a list holds; None: all.
    Observables: potential and kinetic energy of the new state, `neighbours` (pairs within the cutoff).
    Objectives: energy (of z[T]), spread (mean |x|^2 of z[T]).
    """
    whole(1, particles=particles, dimensions=dimensions)
    positive(cutoff=cutoff)
    if onset is not None and not 0 < onset < cutoff:
        raise ValueError(f"onset {onset}: between 0 and the cutoff of {cutoff}")
    if box is not None and box < 2 * (cutoff + (skin or 0)):
        raise ValueError(f"box {box}: at least twice the cutoff of {cutoff} and the skin")
    if skin is None and capacity is not None:
        raise ValueError(f"capacity {capacity}: of the list, which there is with a skin")

    every = AllPairs(particles, box)
    neighbours = every if skin is None else VerletList(every, cutoff, skin, capacity)
    states: dict[str, Any] = neighbours.states(dimensions)

    def pair(q: Any, sigma: Any, epsilon: Any, tested: Any) -> tuple[Any, Any]:
        """Energy of pairs at squared distances q, and its derivative by q."""
        s6 = sigma**6 / q**3
        energy, slope = 4 * epsilon * (s6 * s6 - s6), -12 * epsilon * (2 * s6 * s6 - s6) / q
        if onset is None:
            return energy, slope
        o, c = onset**2, cutoff**2
        switch = (c - q) ** 2 * (c + 2 * q - 3 * o) / (c - o) ** 3
        switch_slope = 6 * (c - q) * (o - q) / (c - o) ** 3
        beyond = tested("onset", lambda q: q > o)
        switched = sgf.where(beyond, switch * energy, energy)
        return switched, sgf.where(beyond, switch * slope + switch_slope * energy, slope)

    def interactions(x: Any, sigma: Any, epsilon: Any, pairs: Any, test: Any = sgf.test) -> Any:
        def tested(site: str, holds: Any) -> Any:
            return pairs.tested(q, lambda q: test(site, holds(q), "membership"))

        d, q = pairs.separations(x)
        within = tested("cutoff", lambda q: q < cutoff**2)
        energy, slope = pair(q, sigma, epsilon, tested)
        force = sgf.where(within[:, None], -2 * slope[:, None] * d, 0)
        forces = np.zeros_like(x).at[pairs.first].add(force).at[pairs.second].add(-force)
        return np.sum(sgf.where(within, energy, 0)), forces, within

    @world(
        name="lennard_jones",
        x=State(particles, dimensions),
        v=State(particles, dimensions),
        force=State(particles, dimensions, default=0.0),
        sigma=Param(default=1.0),
        epsilon=Param(default=1.0),
        h=Config(default=h),
        **states,
    )
    def step(x: Any, v: Any, force: Any, sigma: Any, epsilon: Any, h: Any, **listed: Any) -> Any:
        half = v + 0.5 * h * force
        x = x + h * half
        listed, pairs = neighbours.follow(x, listed)
        potential, force, within = interactions(x, sigma, epsilon, pairs)
        v = half + 0.5 * h * force
        sgf.observe("potential", potential)
        sgf.observe("kinetic", 0.5 * np.sum(v * v))
        sgf.observe("neighbours", np.sum(within).astype(float))
        return {"x": x, "v": v, "force": force, **listed}

    @step.initial
    def start(x: Any, sigma: Any, epsilon: Any) -> dict[str, Any]:
        # Nothing outside of steps is a site.
        _, force, _ = interactions(x, sigma, epsilon, every, lambda site, held, kind: held)
        return {"force": force, **neighbours.build(x)}

    @step.objective
    def energy(potential: Any, v: Any) -> Any:
        return potential + 0.5 * np.sum(v * v)

    @step.objective
    def spread(x: Any) -> Any:
        return np.sum(x * x) / float(particles)

    return step
