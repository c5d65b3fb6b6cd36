"""What chooses by reals is a site with a margin; a loop tells its deciding test; gradients their zeros."""

import numpy as np
import pytest

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


def test_lines_of_choices_are_those_of_what_the_server_counts(client):
    @sg.world
    def w(x: sg.State[3], A: sg.Param[3, 3], B: sg.Param[4, 4]):
        y = np.linalg.solve(A, x)
        d = np.linalg.det(B)
        with sg.role("solver", "mine"):
            first = np.argmin(x)
            i = x[0].astype("i32")
            k = np.argmax(x)
        return {"x": y + 0 * d + 0 * x[i % 3] + 0 * x[k] + 0 * x[first]}

    top = w._function.__code__.co_firstlineno
    params = {"A": np.diag([1.0, 2, 3]), "B": np.diag([50.0, 60, 70, 80])}
    r = client.rollout(w, steps=1, initial={"x": np.array([1.0, 2, 3.5])}, params=params, policy="f64")
    lines = {name: event.line.rpartition(":")[2] for name, event in r.events.items()}
    assert lines["lu"] == str(top + 2) and lines["lu#1"] == str(top + 3)
    assert lines["mine"] == str(top + 5)
    assert lines["mine#1"] == str(top + 6) and lines["mine#2"] == str(top + 7)  # a conversion, and what stands behind it


def test_a_vjp_takes_no_lines_of_sites(client):
    @sg.world
    def w(x: sg.State[3]):
        @sg.custom_vjp
        def f(y):
            return y * 0.5

        @f.defvjp
        def _(args, res, ct):
            (y,) = args
            return 0.5 * ct + 0 * y[np.argmax(y)] + 0 * np.where(sg.test("q", y > 0.1), 1.0, 0.0)

        y = f(x)
        k = np.argmax(x)
        return {"x": np.where(sg.test("q", x > 1.0), y, x) + 0.01 * x[k]}

    @w.objective
    def total(x):
        return np.sum(x)

    top = w._function.__code__.co_firstlineno
    g = client.gradient(w, steps=2, initial={"x": np.array([1.0, 2.0, 3.5])}, policy="f64", objective="total")
    lines = {name: event.line.rpartition(":")[2] for name, event in g.events.items()}
    assert lines == {"argmax": str(top + 12), "q": str(top + 13)}


def test_two_tables_of_the_most_elements_fit_beside_other_literals(client):
    count = client.info().limits.max_elements
    there = np.random.default_rng(3).permutation(count).astype(np.int32)
    back = np.argsort(there).astype(np.int32)

    @sg.world
    def w(i: sg.State(4, dtype="i32")):
        return {"i": sg.literal(back)[(sg.literal(there)[i] + 7) % count]}

    start = np.array([0, 1, 1000, count - 1], np.int32)
    r = client.rollout(w, steps=1, initial={"i": start})
    np.testing.assert_array_equal(r.state["i"][0], back[(there[start] + 7) % count])


def test_a_table_of_numpy_takes_a_computed_index_as_a_literal(client):
    table = np.array([3.0, 1.0, 4.0])

    def world_of(f):
        @sg.world
        def w(x: sg.State[3], t: sg.Step):
            return {"x": x + f(x, t % 3)}

        return w

    r = client.rollout(world_of(lambda x, i: sg.literal(table)[i]), steps=4, initial={"x": np.zeros(3)}, policy="f64")
    assert r.state["x"].tolist() == [[11.0, 11.0, 11.0]]

    def filled(x, i):
        f = np.zeros(3)
        f[0] = x[1]
        return f

    for wrong, said in (
        (lambda x, i: table[i], r"sg\.literal\(table\)\[i\] takes a computed index"),
        (lambda x, i: np.take(table, i), r"sg\.literal\(table\)\[i\] takes a computed index"),
        (lambda x, i: np.reciprocal(x.astype(int)), "np.reciprocal takes reals"),
        (filled, r"x\.at\[i\]\.set\(y\)"),
    ):
        with pytest.raises(TypeError, match=said):
            client.rollout(world_of(wrong), steps=1, initial={"x": np.zeros(3)})


def test_the_margin_of_a_cell_is_the_distance_to_its_edge(client):
    @sg.world
    def w(x: sg.State[4]):
        cells = [np.floor(x), np.ceil(x), np.round(x), np.trunc(x), x]
        cells += [np.clip(np.floor(x) - 1, 0, 3), np.minimum(2 * x, np.floor(x))]
        with sg.role("dynamics", "cells"):
            places = [c.astype("i32") for c in cells]
        table = sg.literal(np.arange(10.0))
        return {"x": x + 0 * sum(table[p] for p in places)}

    x = np.array([2.25, 0.5, 0.9375, 4.75])
    names = ["cells", *(f"cells#{k}" for k in range(1, 7))]
    r = client.rollout(w, steps=1, initial={"x": x}, policy="f64", margins=names)
    edge = x - np.round(x)
    whole = x - np.maximum(np.round(x), 1)
    # What is bounded by a number that is not whole is not whole either.
    other = np.minimum(2 * x, np.floor(x))
    other = other - np.maximum(np.round(other), 1)
    half = x - (np.floor(x) + 0.5)
    for name, expected in zip(names, (edge, edge, half, whole, whole, edge, other)):
        assert r.margins[name].reshape(-1).tolist() == expected.tolist(), name


@pytest.mark.parametrize("is_all", [True, False])
def test_a_loop_that_waits_for_all_elements_hangs_on_the_last(client, is_all):
    """Two elements are within the tolerance from the start, one by 8 ulps; the third decides."""

    @sg.world
    def shrink(x: sg.State[3]):
        until = (lambda z: np.all(z < 1)) if is_all else (lambda z: ~np.any(z >= 1))
        return sg.while_loop(lambda z: z * 0.1, x, until=until, max_iter=20, site="shrunk")

    loop = client.rollout(shrink, steps=1, initial={"x": [1 - 2.0**-50, 0.5, 15.0]}, policy="f64").sites["shrunk"]
    assert loop.iterations_max[0] == 2
    # 1.5 - 1 after a turn, and 0.15 - 1 after two.
    assert abs(loop.margin[0]) == 0.5


def test_a_key_of_integers_decides_before_the_reals_behind_it(client):
    @sg.world
    def sorted_by_both(x: sg.State[4], n: sg.State(4, dtype="i32")):
        order = sg.builder().argsort(n, x, axes=0)
        return {"x": x[order], "n": n[order]}

    def margins(n):
        x = [5.0, 1.0, 1.0 + 2.0**-50, 3.0]
        r = client.rollout(
            sorted_by_both, steps=1, initial={"x": x, "n": np.array(n, np.int32)}, policy="f64", margins=["argsort"]
        )
        return r.margins["argsort"][0, 0].tolist()

    assert margins([0, 1, 2, 3]) == [np.inf] * 4
    assert margins([0, 1, 1, 1]) == [np.inf, 2.0**-50, 2.0 - 2.0**-50, 2.0 - 2.0**-50]
    assert margins([0, 0, 0, 0]) == [2.0**-50, 2.0 - 2.0**-50, 2.0, 2.0]


@pytest.mark.parametrize("policy, digits", [("bf16_unsafe", 8), ("f16_unsafe", 11), ("f32", 24)])
def test_where_halves_are_no_numbers_the_next_one_rounds_otherwise(client, policy, digits):
    @sg.world
    def w(x: sg.State[5]):
        with sg.role("dynamics", "cell"):
            place = np.round(x).astype("i32")
        return {"x": x + 0 * sg.literal(np.arange(10.0))[place]}

    first = 2.0 ** (digits - 1)  # from here on all numbers are whole
    x = np.array([first - 1, first, first + 1, -first - 2, 2 * first + 2])
    r = client.rollout(w, steps=1, initial={"x": x}, policy=policy, margins=["cell"])
    assert r.margins["cell"].reshape(-1).tolist() == [-0.5, -1.0, -1.0, -1.0, -2.0]


def test_a_pivot_that_has_no_rival_is_no_choice(client):
    @sg.world
    def solved(x: sg.State[2], A: sg.Param[2, 2]):
        return {"x": np.linalg.solve(A, x)}

    # Nearly singular: the last pivot is 2^-20, and there is no other row.
    nearly = np.array([[2.0, 1.0], [0.5, 0.25 + 2.0**-20]])
    r = client.rollout(solved, steps=1, initial={"x": [1.0, 1.0]}, params={"A": nearly}, policy="f64")
    assert r.events["lu"].margin[0] == 1.5

    @sg.world
    def divided(x: sg.State[1], A: sg.Param[1, 1]):
        return {"x": np.linalg.solve(A, x)}

    r = client.rollout(divided, steps=1, initial={"x": [1.0]}, params={"A": [[2.0]]}, policy="f64")
    assert "lu" not in r.events and r.state["x"] == 0.5
