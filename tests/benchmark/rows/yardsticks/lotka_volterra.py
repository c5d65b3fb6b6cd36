"""Prey and predators by the classical Runge-Kutta method."""

from typing import Any

H = 0.01


def step(state: Any, params: Any) -> Any:
    a, b, c, d = (params[n] for n in "abcd")
    x, y = state["prey"], state["predator"]

    def rates(x: Any, y: Any) -> tuple[Any, Any]:
        return a * x - b * x * y, d * x * y - c * y

    p1, q1 = rates(x, y)
    p2, q2 = rates(x + H / 2 * p1, y + H / 2 * q1)
    p3, q3 = rates(x + H / 2 * p2, y + H / 2 * q2)
    p4, q4 = rates(x + H * p3, y + H * q3)
    return {
        "prey": x + H / 6 * (p1 + 2 * p2 + 2 * p3 + p4),
        "predator": y + H / 6 * (q1 + 2 * q2 + 2 * q3 + q4),
    }


def cost(state: Any) -> Any:
    return state["prey"] ** 2 + state["predator"] ** 2
