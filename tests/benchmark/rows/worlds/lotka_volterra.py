"""Prey and predators by the classical Runge-Kutta method."""

from typing import Any

import simgrad as sg

OBJECTIVE = "squares"


def world() -> sg.World:
    @sg.world
    def lotka_volterra(
        prey: sg.State,
        predator: sg.State,
        a: sg.Param,
        b: sg.Param,
        c: sg.Param,
        d: sg.Param,
        h: sg.Config = 0.01,
    ) -> Any:
        def rates(x: Any, y: Any) -> tuple[Any, Any]:
            return a * x - b * x * y, d * x * y - c * y

        p1, q1 = rates(prey, predator)
        p2, q2 = rates(prey + h / 2 * p1, predator + h / 2 * q1)
        p3, q3 = rates(prey + h / 2 * p2, predator + h / 2 * q2)
        p4, q4 = rates(prey + h * p3, predator + h * q3)
        return {
            "prey": prey + h / 6 * (p1 + 2 * p2 + 2 * p3 + p4),
            "predator": predator + h / 6 * (q1 + 2 * q2 + 2 * q3 + q4),
        }

    @lotka_volterra.objective
    def squares(prey: Any, predator: Any) -> Any:
        return prey * prey + predator * predator

    return lotka_volterra
