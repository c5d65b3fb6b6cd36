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


# The names that the world of a system has itself, and what the decorator takes.
_TAKEN = ("y", "t", "h", "end", "name", "level")


def system_of(given: str | System) -> System:
    """A system by its name, or one of a user's own.

    Raises: ValueError for an unknown name, params with names that are taken, and a start without numbers.
    """
    if isinstance(given, str):
        if given not in SYSTEMS:
            raise ValueError(f"system {given!r}: one of {', '.join(SYSTEMS)}, or a System")
        return SYSTEMS[given]
    if taken := [name for name in _TAKEN if name in given.params]:
        raise ValueError(f"system: its params may not be named {', '.join(taken)}: the world takes {', '.join(_TAKEN)}")
    if not len(given.start):
        raise ValueError("system: its start has a number for each rate, at least 1")
    return given


def _lotka_volterra(y: Any, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    return [a * y[0] - b * y[0] * y[1], d * y[0] * y[1] - c * y[1]]


def _van_der_pol(y: Any, epsilon: Any) -> list[Any]:
    return [y[1], ((1 - y[0] ** 2) * y[1] - y[0]) / epsilon]


def _robertson(y: Any, k1: Any, k2: Any, k3: Any) -> list[Any]:
    slow, fast, back = k1 * y[0], k2 * y[1] ** 2, k3 * y[1] * y[2]
    return [back - slow, slow - back - fast, fast]


def _hires(y: Any, k1: Any, k2: Any, k3: Any, k4: Any, k5: Any, k6: Any, **k: Any) -> list[Any]:
    """Schaefer (1975), High Irradiance RESponse: how light steers the growth of a plant."""
    bound = k["bind"] * y[5] * y[7]
    freed = (k2 + k["part"] + k["decay"]) * y[6]
    return [
        k["supply"] - k1 * y[0] + k2 * y[1] + k6 * y[2],
        k1 * y[0] - (k2 + k3) * y[1],
        k2 * y[3] + k5 * y[4] - (k6 + k1) * y[2],
        k3 * y[1] + k1 * y[2] - (k4 + k2) * y[3],
        k2 * (y[5] + y[6]) - (k5 + k1) * y[4],
        k4 * y[3] + k1 * y[4] - k2 * y[5] + k["part"] * y[6] - bound,
        bound - freed,
        freed - bound,
    ]


_HIRES = {"k1": 1.71, "k2": 0.43, "k3": 8.32, "k4": 0.69, "k5": 0.035, "k6": 8.32}
_HIRES |= {"bind": 280.0, "part": 0.69, "decay": 0.69, "supply": 7e-4}

SYSTEMS = {
    "lotka_volterra": System(
        _lotka_volterra, {"a": 1.5, "b": 1.0, "c": 3.0, "d": 1.0}, (1.0, 1.0), 10.0
    ),
    "van_der_pol": System(_van_der_pol, {"epsilon": 1e-6}, (2.0, 0.0), 2.0),
    "robertson": System(_robertson, {"k1": 0.04, "k2": 3e7, "k3": 1e4}, (1.0, 0.0, 0.0), 40.0),
    "hires": System(_hires, _HIRES, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057), 321.8122),
}
