"""Differential equations y' = f(y; parameters), stiff ones too, by implicit adaptive steps.

TR-BDF2 (Bank et al. 1985; Hosea and Shampine 1996): with d = 1 - 1/sqrt(2) and w = sqrt(2)/4,
Y2 = y + d h (k1 + k2) and Y3 = y + h (w k1 + w k2 + d k3), each k = f(Y). It is of second order,
L-stable and stiffly accurate. The difference from a formula of third order, through the matrix of
Newton's iteration, is the error; a step with error above 1 (in units of atol + rtol |y|) is tried
again with a smaller h. Each step of the world is one try, so `steps` must suffice to reach `end`,
where h is 0 and nothing changes: look at t.

Stages are found by simplified Newton iterations, site `newton`, with a Jacobian by differences at
the start of the step, over a third of a number's digits and no less than `atol`. It is differentiated
where it filters the error, which lengths of steps follow, and not in Newton's iteration. Acceptance
is the site `accepted`. The gradient is that of the steps that were taken, their lengths included.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import Config, FunctionWorld, Param, State, world
from simgrad.worlds.arguments import positive
from simgrad.worlds.systems import System, system_of

_D, _W = 1 - 1 / np.sqrt(2), np.sqrt(2) / 4
# The weights of k1, k2 and k3, less those of third order.
_ERROR = (_W - (1 - _W) / 3, _W - (3 * _W + 1) / 3, _D - _D / 3)
_SAFETY, _LEAST, _MOST = 0.9, 0.2, 5.0  # how h follows the error


def kinetics(
    system: str | System = "robertson",
    *,
    end: float | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    newton_tol: float | None = None,
    first_step: float = 1e-6,
) -> FunctionWorld:
    """States y [species], t and h, of which requests may send none; params those of the system.

    Args:
      system: a name of SYSTEMS, or a System of one's own.
      newton_tol: where Newton stops, by the change of any number; None: atol / 1000.
    Observables: error (of the try), accepted. Objectives: first, last (of y). Gradients through fast
    jumps, as those of van_der_pol, need a tighter rtol than values (docs/python.md).
    """
    chosen = system_of(system)
    species, tol = len(chosen.start), atol / 1000 if newton_tol is None else newton_tol
    positive(first_step=first_step, rtol=rtol, atol=atol, newton_tol=tol)
    stop = float(chosen.end if end is None else end)
    if not stop >= 0:
        raise ValueError(f"end {stop}: not below 0, where the time begins")
    one = np.eye(species)

    def rates(y: Any, params: Mapping[str, Any]) -> Any:
        made = [sgf.builder(y).value(rate) for rate in chosen.rates(y, **params)]
        if len(made) != species:
            raise ValueError(f"system: {len(made)} rates, and {species} in `start`: one rate for each number")
        return np.stack(made)

    def jacobian(y: Any, at: Any, params: Mapping[str, Any]) -> Any:
        b, columns = sgf.builder(y), []
        part = b.cbrt(b.next_after(1.0, 2.0) - 1.0)  # a third of the digits of whatever format this is in
        for i in range(species):
            by = np.maximum(part * abs(y[i]), atol)
            columns.append((rates(y + by * one[i], params) - at) / by)
        return np.stack(columns, axis=1)

    params: dict[str, Any] = {name: Param(default=value) for name, value in chosen.params.items()}

    @world(
        name=system if isinstance(system, str) else "kinetics",
        y=State(species, default=chosen.start),
        t=State(default=0.0),
        h=State(default=first_step),
        end=Config(default=stop),
        **params,
    )
    def step(y: Any, t: Any, h: Any, end: Any, **params: Any) -> dict[str, Any]:
        now = np.minimum(h, end - t)

        def stage(base: Any, guess: Any) -> Any:
            def newton(value: Any) -> Any:
                residual = value - base - _D * now * rates(value, params)
                return value - np.linalg.solve(sgf.stop_gradient(matrix), residual)

            return sgf.fixed_point(newton, guess, tol=tol, max_iter=20)

        with sgf.role("solver"):
            k1 = rates(y, params)
            matrix = one - _D * now * jacobian(y, k1, params)
            k2 = rates(stage(y + _D * now * k1, y + 2 * _D * now * k1), params)
            base = y + _W * now * (k1 + k2)
            trial = stage(base, base + _D * now * k2)
            combined = sum(weight * k for weight, k in zip(_ERROR, (k1, k2, rates(trial, params))))
            difference = np.linalg.solve(matrix, now * combined)
        error = np.max(abs(difference) / (atol + rtol * np.maximum(abs(y), abs(trial))))
        held = sgf.test("accepted", error <= 1.0, "acceptance")
        wanted = np.clip(_SAFETY / np.cbrt(np.maximum(error, 1e-6)), _LEAST, _MOST)
        sgf.observe("error", error)
        sgf.observe("accepted", held.astype(float))
        return {
            "y": np.where(held, trial, y),
            "t": np.where(held, t + now, t),
            "h": np.where(held & (t + now >= end), h, now * np.where(np.isfinite(error), wanted, _LEAST)),
        }

    @step.objective
    def first(y: Any) -> Any:
        return y[0]

    @step.objective
    def last(y: Any) -> Any:
        return y[-1]

    return step
