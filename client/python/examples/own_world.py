"""A world the server has never seen: a damped pendulum, stepped by an implicit midpoint rule.

usage: own_world.py [TARGET]      (default localhost:8001)
"""

import sys

import numpy as np

import simgrad as sg


@sg.world
def pendulum(
    angle: sg.State,
    speed: sg.State,
    gravity: sg.Param = 9.81,
    damping: sg.Param = 0.2,
    torque: sg.Control = 0.0,
    h: sg.Config = 0.01,
):
    def midpoint(a, w):
        # w' = w + h f((angle + a') / 2, (w + w') / 2)
        middle_speed = 0.5 * (speed + w)
        acceleration = torque - gravity * np.sin(0.5 * (angle + a)) - damping * middle_speed
        return angle + h * middle_speed, speed + h * acceleration

    with sg.role("solver"):
        a, w = sg.fixed_point(midpoint, (angle + h * speed, speed), tol=1e-10, max_iter=50)
    below = sg.test("past_vertical", a < 0)
    sg.observe("swing", np.where(below, -a, a))
    return {"angle": a, "speed": w}


@pendulum.objective
def final_energy(speed):
    return 0.5 * speed**2


def main(target: str = "localhost:8001") -> None:
    with sg.Client(target) as client:
        g = client.gradient(
            pendulum,
            steps=200,
            policy="f64",
            initial={"angle": 1.0, "speed": 0.0},
            params={"gravity": 9.81, "damping": 0.2},
            objective="final_energy",
            record=["swing"],
        )
    print("iterations per step (min, mean, max):", g.sites["midpoint"].iterations[0])
    past = g.events["past_vertical"]
    print(f"first step past the vertical: {past.first_step[0]} ({past.line})")
    print("d energy / d damping:", float(g.params["damping"]))
    print("d energy / d angle:", float(g.initial["angle"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
