"""A world with a loop that stops by a formula, a branch, a scan and an accepted step, end to end."""

import numpy as np

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_I32

STEPS = 6
START = {"x": np.array([0.3, 2.5, -1.2])}


def integer(b, n):
    return b.literal(n, element=ELEMENT_TYPE_I32)


def world():
    """Halve x until it is below 0.2 or three times; then, above `high`, a sum of powers by a scan."""
    b = ProgramBuilder("control", level="decisions")
    x, k, high = b.state("x"), b.param("k", default=0.9), b.config("high", 0.15)
    (halved, _), _, _ = b.while_loop(
        "halve",
        [x, integer(b, 0)],
        lambda now, n: b.or_(b.lt(b.abs(now), 0.2), b.ge(n, integer(b, 3))),
        lambda c, e: [0.5 * c[0], c[1] + integer(b, 1)],
        max_iter=10,
    )

    def powers(y):
        [last], [terms] = b.scan(
            lambda c, e: ([c[0] * y], [c[0] * e[0]]),
            [b.literal(1.0)],
            [b.literal([1.0, 0.5, 0.25], (3,))],
        )
        return last + b.sum(terms)

    [y] = b.cond(b.gt(halved, high), powers, lambda y: k * y, args=[halved])
    b.next(x=b.accept("step", b.abs(y), "le", 10.0, y + k, x))
    b.objective("end", terminal=lambda states, exports: states["x"] * states["x"])
    return sg.World(program=b.build())


def simulate(x, k, steps):
    counters = 0
    for _ in range(steps):
        n = 0
        while not (abs(x) < 0.2 or n >= 3):
            x, n = 0.5 * x, n + 1
        counters += n >= 3
        y = x**3 + (1 + 0.5 * x + 0.25 * x * x) if x > 0.15 else k * x
        x = y + k if abs(y) <= 10 else x
    return x, counters


def test_it_agrees_with_plain_python(client):
    r = client.rollout(world(), steps=STEPS, initial=START, policy="f64", objective="end")
    expected = [simulate(x, 0.9, STEPS) for x in START["x"]]
    np.testing.assert_allclose(r.state["x"], [x for x, _ in expected], rtol=1e-14)
    loop = r.sites["halve"]
    assert loop.counter.sum() == sum(n for _, n in expected) > 0
    assert (loop.reasons.sum(axis=1) + loop.counter == loop.runs).all()
    kinds = {name: event.kind for name, event in r.events.items()}
    assert kinds == {"halve.1": "termination", "world.1": "event", "step": "acceptance"}


def test_its_gradients_agree_with_central_differences(client):
    g = client.gradient(
        world(), steps=STEPS, initial=START, params={"k": 0.9}, policy="f64", objective="end"
    )
    slopes = [
        (simulate(x, 0.9 + 1e-6, STEPS)[0] ** 2 - simulate(x, 0.9 - 1e-6, STEPS)[0] ** 2) / 2e-6
        for x in START["x"]
    ]
    np.testing.assert_allclose(g.params["k"], sum(slopes), rtol=1e-7)
