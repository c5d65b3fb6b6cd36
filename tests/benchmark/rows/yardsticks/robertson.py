"""Robertson's reactions to t = 40 by diffrax: Kvaerno's method of order 3 (5 takes four times as long), adaptive, Newton inside."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp


def rates(t: Any, y: Any, k: Any) -> Any:
    slow, fast, back = k[0] * y[0], k[1] * y[1] ** 2, k[2] * y[1] * y[2]
    return jnp.stack([back - slow, slow - back - fast, fast])


def gradient(states: Any, params: Any, steps: int, rtol: float, atol: float) -> Any:
    def last(y: Any, k: Any) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(rates),
            diffrax.Kvaerno3(),
            0.0,
            40.0,
            1e-6,
            y,
            args=k,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
            max_steps=steps,
        )
        return solution.ys[0, 2]

    def total(params: Any) -> Any:
        k = jnp.stack([params["k1"], params["k2"], params["k3"]], axis=1)
        return jnp.sum(jax.vmap(last)(states["y"], k))

    value, by_params = jax.value_and_grad(total)(params)
    return {"value": value, **by_params}
