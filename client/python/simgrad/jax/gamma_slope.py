"""The derivative of a draw from the gamma distribution by its shape, by an integral of positive numbers.

A draw x of shape a keeps its probability P(a, x), so that dx / da = -(dP / da) / (dP / dx): JAX's derivative, too. With
psi the digamma function, and below = 1 where x <= a, else -1,

    d log x / da = below * integral over v > 0 of (psi(a) - log x + below v) exp(-below a v + x (1 - exp(-below v))).

The integral runs away from a, so that its exponential falls from 1. The substitution v = width exp(t - exp(-t)), of
x (exp(v) - 1) where x is above a, makes the rule of trapezoids converge exponentially (Takahasi and Mori, 1974).

Accuracy: 1e-12 for a from 2e-3 to 1e2, 2e-11 from 1e-3 to 1e5, relative to JAX's series in f64. No comparison is made, which
would be a site, and nothing leaves the format for shapes from 1e-3 to 1e4.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

_STEP = 0.12
_T = -3.6 + _STEP * np.arange(64)
_POINTS = np.exp(_T - np.exp(-_T))
_WEIGHTS = _STEP * _POINTS * (1 + np.exp(-_T))
# Coefficients of Stirling's series of digamma, by powers of 1 / y^2; eight turns of the recurrence lie before it.
_STIRLING = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFT = 8


def slope_of_log(shape: Any, x: Any, log_x: Any) -> Any:
    """The derivative of log x by the shape, of a draw x and its logarithm; x may be 0 where log x is finite."""
    a, x, log_x, psi = (y[..., None] for y in (shape, x, log_x, _digamma(shape)))
    below = jnp.sign(jnp.sign(a - x) + 0.5)
    v_below = _POINTS / jnp.maximum(a - x, jnp.minimum(a, jnp.sqrt(a)))
    dv_below = v_below * (_WEIGHTS / _POINTS)
    far = jnp.maximum(x, a)  # x, where it is read
    width = 1 / jnp.maximum(1 - a / far, 1 / jnp.maximum(1.0, jnp.sqrt(far)))
    moved = width * _POINTS
    v_above, dv_above = jnp.log1p(moved / far), width * _WEIGHTS / (far + moved)
    v, dv = (_chosen(below, *ends) for ends in ((v_below, v_above), (dv_below, dv_above)))
    exponent = _chosen(below, -a * v_below - x * jnp.expm1(-v_below), a * v_above - moved)
    return jnp.sum(below * (psi - log_x + below * v) * jnp.exp(exponent) * dv, axis=-1)


def _chosen(below: Any, if_below: Any, if_above: Any) -> Any:
    """One of two numbers that are finite, by a sign."""
    return 0.5 * (1 + below) * if_below + 0.5 * (1 - below) * if_above


def _digamma(x: Any) -> Any:
    """The digamma function of positive numbers."""
    y = x + _SHIFT
    square = 1 / (y * y)
    series = jnp.full_like(x, _STIRLING[-1])
    for c in _STIRLING[-2::-1]:
        series = c + square * series
    lower = sum(1 / (x + k) for k in range(_SHIFT))
    return jnp.log(y) - 0.5 / y - square * series - lower
