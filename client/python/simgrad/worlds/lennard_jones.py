"""Particles with the Lennard-Jones potential 4 epsilon ((sigma/r)^12 - (sigma/r)^6), by velocity
Verlet.

Every pair is tested against the cutoff at every step: site `cutoff`, one decision per pair, of kind
membership. A hard cutoff drops the pair's energy and force there; its gradient does not see a pair
that enters or leaves, and the margins of the site say how near one was. With `onset` the potential is
multiplied by S(q) = (c - q)^2 (c + 2 q - 3 o) / (c - o)^3 of q = r^2 between o = onset^2 and
c = cutoff^2 (CHARMM), so that energy and force are continuous; site `onset`.

Units: those of sigma, epsilon and mass 1. Cost: all pairs at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world


def lennard_jones(
    particles: int = 13,
    *,
    cutoff: float = 2.5,
    onset: float | None = None,
    box: float | None = None,
    dimensions: int = 3,
    h: float = 0.005,
) -> FunctionWorld:
    """States x and v [particles, dimensions]; params sigma and epsilon.

    Args:
      cutoff: pairs farther apart do not interact.
      onset: where the switching function begins; None: a hard cutoff.
      box: edge of a periodic box, at least twice the cutoff; None: free space.
    Observables: potential and kinetic energy of the new state, `neighbours` (pairs within the cutoff).
    Objectives: energy (of z[T]), spread (mean |x|^2 of z[T]).
    """
    if onset is not None and not 0 < onset < cutoff:
        raise ValueError(f"onset {onset}: between 0 and the cutoff of {cutoff}")
    if box is not None and box < 2 * cutoff:
        raise ValueError(f"box {box}: at least twice the cutoff of {cutoff}")
    first, second = np.triu_indices(particles, 1)

    def separations(x: Any) -> tuple[Any, Any]:
        d = x[first] - x[second]
        if box is not None:
            d = d - box * np.rint(d / box)  # of the nearest image
        return d, np.sum(d * d, axis=1)

    def pair(q: Any, sigma: Any, epsilon: Any, test: Any) -> tuple[Any, Any]:
        """Energy of pairs at squared distances q, and its derivative by q."""
        s6 = sigma**6 / q**3
        energy, slope = 4 * epsilon * (s6 * s6 - s6), -12 * epsilon * (2 * s6 * s6 - s6) / q
        if onset is None:
            return energy, slope
        o, c = onset**2, cutoff**2
        switch = (c - q) ** 2 * (c + 2 * q - 3 * o) / (c - o) ** 3
        switch_slope = 6 * (c - q) * (o - q) / (c - o) ** 3
        beyond = test("onset", q > o, "membership")
        return (
            sgf.where(beyond, switch * energy, energy),
            sgf.where(beyond, switch * slope + switch_slope * energy, slope),
        )

    def interactions(
        x: Any, sigma: Any, epsilon: Any, test: Any = sgf.test
    ) -> tuple[Any, Any, Any]:
        d, q = separations(x)
        within = test("cutoff", q < cutoff**2, "membership")
        energy, slope = pair(q, sigma, epsilon, test)
        force = sgf.where(within[:, None], -2 * slope[:, None] * d, 0)
        forces = np.zeros_like(x).at[first].add(force).at[second].add(-force)
        return np.sum(sgf.where(within, energy, 0)), forces, within

    @world(
        name="lennard_jones",
        x=State(particles, dimensions),
        v=State(particles, dimensions),
        force=State(particles, dimensions, default=0.0),
        sigma=Param(default=1.0),
        epsilon=Param(default=1.0),
        h=Config(default=h),
    )
    def step(x: Any, v: Any, force: Any, sigma: Any, epsilon: Any, h: Any) -> dict[str, Any]:
        half = v + 0.5 * h * force
        x = x + h * half
        potential, force, within = interactions(x, sigma, epsilon)
        v = half + 0.5 * h * force
        sgf.observe("potential", potential)
        sgf.observe("kinetic", 0.5 * np.sum(v * v))
        sgf.observe("neighbours", np.sum(within).astype(float))
        return {"x": x, "v": v, "force": force}

    @step.initial
    def start(x: Any, sigma: Any, epsilon: Any) -> dict[str, Any]:
        # Nothing outside of steps is a site.
        return {"force": interactions(x, sigma, epsilon, lambda site, held, kind: held)[1]}

    @step.objective
    def energy(potential: Any, v: Any) -> Any:
        return potential + 0.5 * np.sum(v * v)

    @step.objective
    def spread(x: Any) -> Any:
        return np.sum(x * x) / float(particles)

    return step
