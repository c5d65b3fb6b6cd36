"""What chooses by reals is a site with a margin; a loop tells its deciding test; gradients their zeros."""

import numpy as np

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_I32

STEPS = 3
X = np.array([[1.0, 3.0, 2.5], [4.0, 0.5, -1.0]])


def world():
    """Takes the largest of three numbers to the floor of a fourth place, and halves it below `low`."""
    b = ProgramBuilder("choices", level="decisions")
    x, k, low = b.state("x", (3,)), b.param("k", (2,)), b.config("low", 0.75)
    best = b.argmax(x, axes=0)
    value = b.gather(x, b.reshape(best, (1,)), axes=0)
    place = b.convert(b.reshape(value, ()), ELEMENT_TYPE_I32)
    named = b.choice("place", place, b.reshape(value, ()), 0.0)
    table = b.literal([1.0, 0.5, 0.25, 0.125, 0.0625], (5,))
    factor = b.gather(table, b.reshape(named, (1,)), axes=0)
    (halved, _), _, _ = b.while_loop(
        "halve",
        [b.reshape(value, ()), b.literal(0, element=ELEMENT_TYPE_I32)],
        lambda now, n: b.or_(b.lt(now, low), b.gt(now, 100.0)),
        lambda c, e: [0.5 * c[0], c[1] + b.literal(1, element=ELEMENT_TYPE_I32)],
        max_iter=20,
    )
    used = b.reshape(b.slice(k, (0,), (1,)), ())
    b.next(x=x * b.reshape(factor, ()) + halved * used)
    b.objective("end", terminal=lambda states, exports: b.sum(b.relu(states["x"] - 1.0)))
    return sg.World(program=b.build())


def run(client, **arguments):
    return client.gradient(
        world(),
        steps=STEPS,
        initial={"x": X},
        params={"k": np.array([0.1, 0.0])},
        policy="f64",
        objective="end",
        **arguments,
    )


def test_choices_are_sites_with_margins(client):
    r = run(client)
    assert set(r.events) >= {"argmax", "place", "halve.1", "halve.2"}
    assert r.events["argmax"].kind == r.events["place"].kind == "event"
    assert (r.events["argmax"].checks == len(X)).all()
    first = np.sort(X, axis=1)
    gaps = first[:, -1] - first[:, -2]
    assert r.events["argmax"].margin[0] == gaps.min()
    assert r.events["argmax"].margin_instance[0] == gaps.argmin()
    assert r.events["place"].margin[0] == first[:, -1].min()


def test_a_loop_with_a_predicate_tells_its_deciding_test(client):
    loop = run(client).sites["halve"]
    assert set(loop.margin_test) == {"halve.1"}


def test_gradients_tell_their_zeros_and_magnitudes(client):
    g = run(client)
    each = [run_alone(client, row) for row in X]
    assert g.zero_share["k"] == np.mean([not one.any() for one in each])
    sizes = np.abs(np.concatenate(each))
    sizes = sizes[sizes > 0]
    smallest, largest = g.magnitudes["k"]
    assert (smallest, largest) == ((sizes.min(), sizes.max()) if sizes.size else (np.inf, 0.0))


def run_alone(client, row):
    g = client.gradient(
        world(),
        steps=STEPS,
        initial={"x": row[None]},
        params={"k": np.array([0.1, 0.0])},
        policy="f64",
        objective="end",
    )
    return g.params["k"]


def test_a_loss_scale_beyond_the_adjoint_warns(client):
    b = ProgramBuilder("growth")
    x, k = b.state("x"), b.param("k")
    b.next(x=k * x)
    b.objective("end", terminal=lambda states, exports: states["x"])
    growth = sg.World(program=b.build())

    def warned(scale):
        g = client.gradient(
            growth,
            steps=4,
            initial={"x": np.array([1.0, 2.0])},
            params={"k": 1.5},
            policy=sg.Policy("f16_safe").loss_scale(scale),
            objective="end",
        )
        return g.skipped, g.warnings

    assert warned(64) == (False, [])
    # 2^15 is a number of f16; 1.5 times as much is one too, 2.25 times as much is none.
    skipped, warnings = warned(2**15)
    assert skipped and "overflowed f16" in warnings[0]
    skipped, warnings = warned(2**17)
    assert skipped and "is beyond f16" in warnings[0]
