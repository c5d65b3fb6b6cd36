"""Spheres in a box, with contacts that push and rub, in any number of dimensions.

A step finds the contacts that touch (site `touch`: pairs, and spheres with walls) and solves twice
for their impulses. First for impacts, without forces: if plastic impacts would leave velocities w,
they become w + e (w - v) (Moreau 1988). Then with gravity, for what rests or slides. Then x += h v.
So the energy does not grow, however many the contacts: impacts take at least
(1 - e^2)/2 m |w - v|^2, and the rest m/2 |change of v|^2, which in free fall is m/2 (h g)^2.

Coulomb's law: the normal part n >= 0 of an impulse acts only where it stops an approach; the rest
stops the sliding if at most mu n can, else it is mu n against it. Projected Gauss-Seidel takes one
contact after the other: site `push` tells n > 0, site `cone` sliding. Loop `solver` ends when a
sweep changes no relative velocity by tol, and begins only where contacts approach by as much.

Spheres do not turn: friction rolls none, and what sticks rebounds along the tangent too. An impact
is seen at the first step with overlap, which stays (h times the speed). A sweep visits all pairs.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world
from simgrad.worlds.arguments import edges_of, positive, whole


def bodies(
    spheres: int = 2,
    *,
    dimensions: int = 2,
    box: float | Sequence[float] = 1.0,
    tol: float = 1e-10, max_iter: int = 200, h: float = 0.005,  # fmt: skip
) -> FunctionWorld:
    """States x and v [spheres, dimensions]; params mass and radius [spheres], gravity (against the
    last axis), friction (mu) and restitution (e, from 0 to 1).

    Args:
      box: edge, or edges, of the box, which begins at 0.
      tol: of a velocity, where the solver stops (1e-5 suits f32); max_iter: its sweeps.
    Observables: energy, touching (contacts). Objective: spread (mean |x|^2 of z[T]).
    """
    whole(1, spheres=spheres, dimensions=dimensions, max_iter=max_iter)
    positive(tol=tol)
    edges = edges_of(box, dimensions)
    # Spheres with walls at 0, with walls at the edges, and pairs. The walls are the last body.
    a, b = np.triu_indices(spheres, 1)
    walled = np.tile(np.repeat(np.arange(spheres), dimensions), 2)
    inward = np.kron([[1.0], [-1.0]], np.tile(np.eye(dimensions), (spheres, 1)))
    first = np.concatenate([walled, a]).astype(np.int32)
    second = np.concatenate([np.full_like(walled, spheres), b]).astype(np.int32)
    up = np.eye(dimensions)[-1] * (np.arange(spheres + 1) < spheres)[:, None]

    @world(
        name="bodies",
        x=State(spheres, dimensions),
        v=State(spheres, dimensions, default=0.0),
        mass=Param(spheres, default=1.0),
        radius=Param(spheres, default=0.1),
        h=Config(default=h),
        gravity=Param(default=9.81),
        friction=Param(default=0.3), restitution=Param(default=0.5),  # fmt: skip
    )
    def step(x: Any, v: Any, mass: Any, radius: Any, h: Any, **param: Any) -> dict[str, Any]:
        r, normals = radius[:, None], inward  # from the second to the first
        gaps: Any = np.concatenate([(x - r).reshape(-1), (edges - x - r).reshape(-1)])
        if spheres > 1:
            length = np.linalg.norm(x[a] - x[b], axis=1)
            gaps = np.concatenate([gaps, length - radius[a] - radius[b]])
            normals = np.concatenate([normals, (x[a] - x[b]) / length[:, None]])
        touching = sgf.test("touch", gaps <= 0, "membership")
        inverse = np.concatenate([1 / mass, np.zeros(1)])  # of the masses; walls do not move

        def contact(carried: Any, row: Any) -> Any:
            i, j, normal, held, before = row

            def press(w: Any, largest: Any) -> Any:
                ease = inverse[i] + inverse[j]
                wanted = before - (w[i] - w[j]) / ease
                along = wanted @ normal
                across = wanted - along * normal
                along = sgf.where(sgf.test("push", along > 0), along, 0.0)
                square, limit = across @ across, param["friction"] * along
                slides = sgf.test("cone", square > limit * limit)
                part = sgf.where(slides, limit / np.sqrt(sgf.where(slides, square, 1.0)), 1.0)
                impulse = along * normal + part * across
                d = impulse - before
                w = w.at[i].add(inverse[i] * d).at[j].add(-inverse[j] * d)
                return w, np.maximum(largest, ease * np.max(abs(d))), impulse

            w, largest, impulse = sgf.cond(held, press, lambda *kept: (*kept, before), *carried)
            return (w, largest), impulse

        def sweep(w: Any, impulses: Any, change: Any) -> Any:
            rows = (first, second, normals, touching, impulses)
            (w, change), impulses = sgf.scan(contact, (w, sgf.builder(w).literal(0.0)), rows)
            return w, impulses, change

        def solve(v: Any, phase: Any) -> Any:  # (1, 0): impacts; (0, 1): with gravity
            v = v - phase[1] * h * param["gravity"] * up
            approach = sgf.where(touching, np.sum((v[second] - v[first]) * normals, axis=1), 0.0)
            start: Any = (v, np.zeros_like(normals), np.max(approach))
            w, _, _ = sgf.while_loop(
                sweep, start, until=lambda w, q, c: c < tol, max_iter=max_iter, site="solver"
            )
            return w + phase[0] * param["restitution"] * (w - v), None

        with sgf.role("solver"):
            v = sgf.scan(solve, np.concatenate([v, np.zeros((1, dimensions))]), np.eye(2))[0][:-1]
        x = x + h * v
        sgf.observe("energy", mass @ (0.5 * np.sum(v * v, axis=1) + param["gravity"] * x[:, -1]))
        sgf.observe("touching", np.sum(touching).astype(float))
        return {"x": x, "v": v}

    @step.objective
    def spread(x: Any) -> Any:
        return np.sum(x * x) / float(spheres)

    return step
