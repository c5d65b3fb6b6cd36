"""A Cholesky factor of a matrix that depends on the state, and a solution with it, at each step."""

from typing import Any

import numpy as np

import simgrad as sg

OBJECTIVE = "squares"


def world(n: int) -> sg.World:
    @sg.world(x=sg.State(n), base=sg.Param(n, n), b=sg.Param(n))
    def linear_algebra(x: Any, base: Any, b: Any) -> Any:
        write = sg.builder(x)
        factor = np.linalg.cholesky(0.5 * (base + base.T) + np.eye(n) * (x * x))
        half = write.triangular_solve(factor, (b + x).reshape(n, 1))
        return write.triangular_solve(factor, half, transposed=True).reshape(n)

    @linear_algebra.objective
    def squares(x: Any) -> Any:
        return np.sum(x * x)

    return linear_algebra
