"""A world without a path, as its terminal cost decides by reals, and work in which bf16 leaves f64."""

import numpy as np

import simgrad as sg


@sg.world
def ended(x: sg.State[2], k: sg.Param = 1.0):
    move = -0.125 * k + np.array([-(2.0**-12), 0.0])
    return sg.where(sg.test("floor", x + move < 0), -0.5 * x, x + move)


@ended.objective
def rest(x):
    return np.sum(sg.where(x > 8.0, 8.0, x))


# x = 1 - 8 (1/8 + 2^-12) is below 0 at t = 7 in f64; bf16 does not see the small part, and is at 0.
ENDED = dict(steps=12, initial={"x": np.array([[1.0, 20.0], [2.0, 1.0]])}, params={"k": 1.0}, objective="rest")
