"""Ordinary differential equations by name, with the problems that tests of solvers use."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

Rates = Callable[..., Sequence[Any]]


class System(NamedTuple):
    """f(y, **params) gives a sequence of rates; `start` and `end` are where its test problem begins and ends."""

    rates: Rates
    params: Mapping[str, float]
    start: tuple[float, ...]
    end: float


def _lotka_volterra(y: Any, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    return [a * y[0] - b * y[0] * y[1], d * y[0] * y[1] - c * y[1]]


def _van_der_pol(y: Any, epsilon: Any) -> list[Any]:
    return [y[1], ((1 - y[0] ** 2) * y[1] - y[0]) / epsilon]


def _robertson(y: Any, k1: Any, k2: Any, k3: Any) -> list[Any]:
    slow, fast, back = k1 * y[0], k2 * y[1] ** 2, k3 * y[1] * y[2]
    return [back - slow, slow - back - fast, fast]


SYSTEMS = {
    "lotka_volterra": System(
        _lotka_volterra, {"a": 1.5, "b": 1.0, "c": 3.0, "d": 1.0}, (1.0, 1.0), 10.0
    ),
    "van_der_pol": System(_van_der_pol, {"epsilon": 1e-6}, (2.0, 0.0), 2.0),
    "robertson": System(_robertson, {"k1": 0.04, "k2": 3e7, "k3": 1e4}, (1.0, 0.0, 0.0), 40.0),
}
