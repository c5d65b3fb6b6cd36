"""What nothing uses has no cotangent: parts of matrices, runs of a fixed point, and what stands in their place."""

import numpy as np
import pytest

import simgrad as sg


def slopes(client, step, p, **more):
    """The gradient by p of the number that `step` gives, in one instance."""

    @sg.world
    def world(x: sg.State, p: sg.Param[len(p)]):
        return {"x": step(sg.builder(), p)}

    @world.objective
    def end(x):
        return x

    g = client.gradient(
        world, steps=1, initial={"x": 0.0}, params={"p": p}, objective="end", wrt=["p"], policy="f64", **more
    )
    return g.params["p"]


def two_matrices(p):
    return np.reshape(p, (2, 1, 1))


@pytest.mark.parametrize(
    ("step", "p", "expected"),
    [
        # T^-1 of the matrix 2 alone; that of 0 is infinite.
        (lambda b, p: b.triangular_solve(two_matrices(p), 1.0 + 0.0 * two_matrices(p))[0, 0, 0], (2.0, 0.0), (-0.25, 0.0)),
        # The root of 4; -1 has none.
        (lambda b, p: b.cholesky(two_matrices(p))[0, 0, 0], (4.0, -1.0), (0.25, 0.0)),
        # The first column of b is p0 x = 1; the second is infinite.
        (lambda b, p: b.solve(np.reshape(p[0], (1, 1)), np.stack([1.0, 1 / p[1]])[None])[0, 0], (2.0, 0.0), (-0.25, 0.0)),
        (
            lambda b, p: b.triangular_solve(np.reshape(p[0], (1, 1)), np.stack([1.0, 1 / p[1]])[None])[0, 0],
            (2.0, 0.0),
            (-0.25, 0.0),
        ),
        # A column of b, and a row of a, that are infinite beside the one that is used.
        (lambda b, p: (np.reshape(p[0], (1, 1)) @ np.stack([1.0, 1 / p[1]])[None])[0, 0], (3.0, 0.0), (1.0, 0.0)),
        (lambda b, p: (np.stack([p[0], 1 / p[1]])[:, None] @ np.reshape(p[0], (1, 1)))[0, 0], (3.0, 0.0), (6.0, 0.0)),
        # Prefixes that are used, from either end.
        (lambda b, p: b.cumsum(np.stack([p[0], 1 / p[1]]), [0])[0], (1.0, 0.0), (1.0, 0.0)),
        (lambda b, p: b.cumsum(np.stack([1 / p[1], p[0]]), [0], reverse=True)[1], (1.0, 0.0), (1.0, 0.0)),
        (lambda b, p: b.cumsum(np.stack([p[0], p[1], p[0]]), [0])[1], (1.0, 5.0), (1.0, 1.0)),
    ],
    ids=["triangular", "cholesky", "solve", "columns", "product_column", "product_row", "cumsum", "reversed", "middle"],
)  # fmt: skip
def test_a_part_that_nothing_uses_is_not_multiplied(client, step, p, expected):
    np.testing.assert_array_equal(slopes(client, step, p), expected)


def test_a_remainder_takes_the_quotient_that_the_forward_pass_took(client):
    """1 / 0.1 rounds up to 10, and the remainder is that of the quotient 9."""
    for operation in ("mod", "rem"):
        found = slopes(client, lambda b, p, name=operation: getattr(b, name)(p[0], p[1]), (1.0, 0.1))
        np.testing.assert_array_equal(found, (1.0, -9.0))
    np.testing.assert_array_equal(slopes(client, lambda b, p: b.mod(p[0], p[1]), (-0.5, 2.0)), (1.0, 1.0))
    np.testing.assert_array_equal(slopes(client, lambda b, p: b.rem(p[0], p[1]), (-5.0, 2.0)), (1.0, 2.0))


def test_a_fill_of_minus_zero_is_the_same_in_every_kind_of_code(client):
    """Little work is the reference's, much is that of compiled code."""

    @sg.world
    def padded(x: sg.State[2]):
        return {"x": sg.builder().pad(x, [0], [3], fill=-0.0)[1:]}

    for instances, steps in ((1, 1), (256, 4000)):
        answer = client.rollout(padded, steps=steps, instances=instances, initial={"x": [1.0, 1.0]})
        assert np.signbit(answer.state["x"]).all(axis=0)[1], (instances, steps)


@sg.world
def guarded(y: sg.State, k: sg.Param = 0.1):
    with sg.role("solver"):
        x = sg.fixed_point(lambda x: k * x * x + 1.0, y, tol=1e-6, max_iter=50, site="point")
    return {"y": np.where(sg.test("on", y < 0.5), x, y)}


@guarded.objective
def cost(y):
    return y * y


@pytest.mark.parametrize("solver", ["unrolled", "lu", "iteration", "gmres"])
def test_a_fixed_point_that_a_branch_leaves_out_has_no_derivative(client, solver):
    """From 0.1 it converges and is used; from 20 it goes to infinity, and is not."""
    loops = {} if solver == "unrolled" else {"point": sg.Implicit(solver)}

    def ask(y):
        return client.gradient(
            guarded,
            steps=1,
            policy="f64",
            initial={"y": y},
            objective="cost",
            wrt=["k"],
            loops=loops,
        )

    used, dead, both = ask([0.1]), ask([20.0]), ask([0.1, 20.0])
    assert dead.params["k"] == 0.0 and not dead.skipped
    assert dead.connected["k"] == 0 and dead.gated_by["k"] == "on"
    assert used.connected["k"] == 1 and used.params["k"] != 0.0
    assert both.params["k"] == used.params["k"] and both.connected["k"] == 1
    if solver in ("iteration", "gmres"):
        (solves,) = both.adjoint_solves.values()
        assert solves.solves == 1  # the dead instance solved nothing


@pytest.mark.parametrize("solver", ["lu", "iteration", "gmres"])
def test_a_fixed_point_of_many_numbers_is_used_where_one_of_them_is(client, solver):
    """The other numbers have cotangents of 0 in the same linear system."""

    @sg.world
    def vector(y: sg.State[2, 3], k: sg.Param = 0.1):
        with sg.role("solver"):
            x = sg.fixed_point(lambda x: k * np.sum(x) * x + 1.0, y, tol=1e-13, max_iter=200, site="point")
        used = sg.where(sg.test("on", y[0, 0] < 0.5), x[1, 2], 1.0)
        return {"y": y * 0.0 + used}

    @vector.objective
    def total(y):
        return np.sum(y)

    def ask(y, **loops):
        return client.gradient(
            vector, steps=1, policy="f64", initial={"y": np.full((2, 3), y)}, params={"k": 0.02},
            objective="total", wrt=["k"], loops=loops,
        )  # fmt: skip

    unrolled, found = ask(0.1).params["k"], ask(0.1, point=sg.Implicit(solver)).params["k"]
    assert unrolled != 0.0 and found == pytest.approx(unrolled, rel=1e-7)
    dead = ask(50.0, point=sg.Implicit(solver))
    assert dead.params["k"] == 0.0 and dead.connected["k"] == 0 and not dead.adjoint_solves.get("point.adjoint", 0)
