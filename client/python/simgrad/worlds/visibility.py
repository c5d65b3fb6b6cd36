"""How much of a unit square a moving disc covers, by random points.

Each step moves the disc by h velocity, throws new points into the square, evenly spread, and counts
those at a distance d below the radius from the centre: site `covered`, one decision per point, of
kind membership. As the square has area 1, the share of points that are covered is an estimate of the
area A that disc and square have in common.

Hard edge: a point counts 1 or 0. The mean is A, without bias. But no point's count changes by a
small move of the disc, so the gradient is 0 in every run, whatever the derivative of A is.
Soft edge: a point counts sigmoid((radius - d) / width). The gradient is that of this mean, which is
A + pi^2/6 width^2 A'' + O(width^4), with A'' by the radius. So value and gradient have a bias of
second order in the width, while the variance of the gradient grows as 1 / width.

Both edges see the same points: differences between them, and between runs of one seed, have little
noise. Cost: `points` draws, distances and sigmoids per step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world
from simgrad.worlds.arguments import whole


def visibility(points: int = 256, *, h: float = 0.1) -> FunctionWorld:
    """State centre [2]; params velocity [2], radius, and width (of the soft edge).

    Args:
      points: how many are thrown in a step, for each instance.
    Observables: hard, soft (estimates of the area after the move). Objectives: hard_coverage and
    soft_coverage, the same summed over steps. Draws hang on the `seed` of a request.
    """
    whole(1, points=points)

    @world(
        name="visibility",
        centre=State(2, default=0.5),
        velocity=Param(2, default=0.0),
        radius=Param(default=0.25),
        width=Param(default=0.05),
        h=Config(default=h),
    )
    def step(centre: Any, velocity: Any, radius: Any, width: Any, h: Any) -> dict[str, Any]:
        centre = centre + h * velocity
        distance = np.linalg.norm(sgf.uniform((points, 2)) - centre, axis=1)
        covered = sgf.test("covered", distance < radius, "membership")
        sgf.observe("hard", sgf.where(covered, 1.0, 0.0).mean())
        sgf.observe("soft", sgf.builder().sigmoid((radius - distance) / width).mean())
        return {"centre": centre}

    @step.stage_cost
    def hard_coverage(hard: Any) -> Any:
        return hard

    @step.stage_cost
    def soft_coverage(soft: Any) -> Any:
        return soft

    return step
