"""Masses on a chain of springs that hangs from an anchor, by backward Euler.

A step ends at the positions y where 1/2 |y - (x + h v)|^2 + h^2/m U(y) is least (U: springs and
gravity); there v' = (y - x)/h is v + h a(y). Three loops find them. `newton` stops when no number of
the slope reaches `tol`, a length. `cg` stops when the linear system holds to a fraction `cg_tol` of its
right side. `search` halves the step until the sum falls by a part of what the slope promises. In the
linear system a compressed spring pushes across its axis only so much that it stays positive definite.

The gradient is that of the iterations that ran: the step's own as far as they converged. With a `tol`
below what the format resolves, loops run to their caps; 1e-10 suits f64, 1e-6 f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world
from simgrad.worlds.arguments import each_whole, whole


def chain(
    masses: int = 8,
    *,
    dimensions: int = 2,
    h: float = 0.01, tol: float = 1e-10, cg_tol: float = 1e-8,  # fmt: skip
    caps: tuple[int, int, int] = (50, 200, 20),
) -> FunctionWorld:
    """States x and v [masses, dimensions]; params stiffness, rest (length of a spring), mass, gravity
    (down the last axis) and anchor [dimensions]; config h, tol and cg_tol.

    Args:
      caps: of the iterations of newton, cg and search.
    Observables: energy (of the new state). Objectives: tip (height of the last mass).
    """
    whole(1, masses=masses, dimensions=dimensions)
    each_whole("caps", caps, ("newton", "cg", "search"))
    down, nothing = np.eye(dimensions)[-1], np.zeros((1, dimensions))

    def along(x: Any, start: Any = nothing) -> Any:
        """Vectors of the springs, the first of which hangs at `start`."""
        return x - np.concatenate([start, x[:-1]])

    def onto(pulls: Any) -> Any:
        """The force of springs with these pulls on each mass: the transpose of `along`."""
        return pulls - np.concatenate([pulls[1:], nothing])

    def lengths(springs: Any, rest: Any) -> Any:
        # Above 0, so that directions are finite.
        least = np.maximum(1e-7 * rest, 1e-30)
        return np.maximum(np.linalg.norm(springs, axis=1, keepdims=True), least)

    @world(
        name="chain",
        x=State(masses, dimensions),
        v=State(masses, dimensions),
        stiffness=Param(default=1000.0),
        rest=Param(default=0.1),
        mass=Param(default=0.1),
        gravity=Param(default=9.81),
        anchor=Param(dimensions, default=0.0),
        h=Config(default=h), tol=Config(default=tol), cg_tol=Config(default=cg_tol),  # fmt: skip
    )
    def step(x: Any, v: Any, h: Any, tol: Any, cg_tol: Any, **params: Any) -> dict[str, Any]:
        stiffness, rest, mass, gravity, anchor = params.values()
        hook, scale = anchor.reshape(1, dimensions), h * h * stiffness / mass
        free = x + h * v - h * h * gravity * down  # where masses without springs would be

        def newton(y: Any, g: Any) -> Any:
            springs = along(y, hook)
            length = lengths(springs, rest)
            unit, across = springs / length, np.maximum(1 - rest / length, -0.2 / scale)

            def product(p: Any) -> Any:
                axial = np.sum(unit * along(p), axis=1, keepdims=True) * unit
                return p + scale * onto(axial + across * (along(p) - axial))

            def cg(d: Any, r: Any, p: Any, rr: Any) -> Any:
                q = product(p)
                a = rr / np.sum(p * q)
                after = r - a * q
                left = np.sum(after * after)
                return d + a * p, after, after + left / rr * p, left

            gg = np.sum(g * g)
            small, begin = cg_tol * cg_tol * gg, (np.zeros_like(g), -g, -g, gg)
            d, *_ = sgf.while_loop(cg, begin, until=lambda *c: c[3] <= small, max_iter=caps[1])

            def falls(t: Any) -> Any:
                """The rise from y to y + t d, without a difference of large numbers, is low enough."""
                by, more = t * d, t * along(d)
                both = length + lengths(springs + more, rest)
                longer = np.sum(more * (2 * springs + more), axis=1, keepdims=True) / both
                elastic = scale / 2 * np.sum(longer * (both - 2 * rest))
                return np.sum(by * (y - free + by / 2)) + elastic <= 1e-4 * np.sum(g * by)

            t = sgf.while_loop(lambda t: t / 2, 1.0, until=falls, max_iter=caps[2], site="search")
            return y + t * d, slope(y + t * d)

        def slope(y: Any) -> Any:
            springs = along(y, hook)
            return y - free + scale * onto((1 - rest / lengths(springs, rest)) * springs)

        with sgf.role("solver"):
            start = free, slope(free)
            y, _ = sgf.while_loop(
                newton, start, until=lambda y, g: np.max(abs(g)) < tol, max_iter=caps[0]
            )
        v, stretch = (y - x) / h, lengths(along(y, hook), rest) - rest
        weight = mass * np.sum(v * v / 2 + gravity * down * y)
        sgf.observe("energy", weight + stiffness / 2 * np.sum(stretch**2))
        return {"x": y, "v": v}

    @step.objective
    def tip(x: Any) -> Any:
        return x[-1, -1]

    return step
