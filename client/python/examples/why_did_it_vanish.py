"""Why did my gradient vanish? Two policies, one sentence, and a report in one file.

usage: why_did_it_vanish.py [TARGET [REPORT.html]]      (default localhost:8001 why.html)
"""

import pathlib
import sys

import numpy as np

import simgrad as sg


@sg.world
def squeeze(x: sg.State[9], k: sg.Param = 0.5, tol: sg.Config = float.fromhex("0x1.06p-10")):
    """Pushes penetrations out until their sum is below a tolerance."""
    return sg.while_loop(
        lambda x: x + 0.5 * k * np.maximum(-x, 0),
        x,
        until=lambda x: np.sum(np.maximum(-x, 0)) < tol,
        max_iter=25,
        site="push_out",
    )


@squeeze.objective
def penetration(x):
    return np.mean(np.maximum(-x, 0) ** 2)


# Their exact sum is the tolerance; in bf16 the eight small ones are lost.
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])


def main(target: str = "localhost:8001", report: str = "why.html") -> sg.Comparison:
    with sg.Client(target) as client:
        result = client.compare(
            squeeze,
            steps=4,
            initial={"x": np.tile(START, (64, 1))},
            params={"k": 0.5},
            objective="penetration",
            policies=["f32", "bf16_unsafe", "bf16_safe"],
        )
    pathlib.Path(report).write_text(result.html(), encoding="utf-8")
    print(result)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
