"""A world the server has never seen: a damped pendulum, stepped by an implicit midpoint rule.

usage: own_world.py [TARGET]      (default localhost:8001)
"""

import sys

import simgrad as sg
from simgrad.program import ProgramBuilder


def damped_pendulum():
    b = ProgramBuilder("damped_pendulum")
    angle, speed = b.state("angle"), b.state("speed")
    gravity, damping = b.param("gravity", default=9.81), b.param("damping", default=0.2)
    torque, h, tol = b.control("torque", default=0.0), b.config("h", 0.01), b.config("tol", 1e-10)

    def test(a, w, change):
        return b.abs(change), tol

    def body(carried, exports):
        # Fixed-point iteration on the midpoint: w' = w + h f((angle + a') / 2, (w + w') / 2).
        a, w, _ = carried
        middle_speed = 0.5 * (speed + w)
        acceleration = torque - gravity * b.sin(0.5 * (angle + a)) - damping * middle_speed
        next_speed = speed + h * acceleration
        return angle + h * middle_speed, next_speed, next_speed - w

    with b.role("solver"):
        start = (angle + h * speed, speed, b.literal(1.0))
        (a, w, _), _, _ = b.while_loop("midpoint", start, test, body, max_iter=50)
    below = b.event("past_vertical", a, "lt", 0.0)
    b.observe("swing", b.select(below, -a, a))
    b.next(angle=a, speed=w)
    b.objective("final_energy", terminal=lambda z, exports: 0.5 * z["speed"] * z["speed"])
    return b.build()


def main(target: str = "localhost:8001") -> None:
    with sg.Client(target) as client:
        g = client.gradient(
            sg.World(program=damped_pendulum()),
            steps=200,
            policy="f64",
            initial={"angle": 1.0, "speed": 0.0},
            params={"gravity": 9.81, "damping": 0.2},
            objective="final_energy",
            record=["swing"],
        )
    print("iterations per step (min, mean, max):", g.sites["midpoint"].iterations[0])
    print("first step past the vertical:", g.events["past_vertical"].first_step[0])
    print("d energy / d damping:", float(g.params["damping"]))
    print("d energy / d angle:", float(g.initial["angle"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
