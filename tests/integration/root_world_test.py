"""sg.root finds roots, and their derivative is that of the implicit function theorem."""

import numpy as np
import pytest

import simgrad as sg

P = np.array([[2.0, 0.7], [10.0, -1.2], [0.3, 0.1]])


def cubic(jacobian=None, tol=1e-13, **options):
    """State x with x^3 + x = p: a root for every p."""

    @sg.world(x=sg.State(default=1.0), p=sg.Param())
    def step(x, p):
        def balance(y):
            return y**3 + y - p

        return {"x": sg.root(balance, x, tol=tol, max_iter=60, jacobian=jacobian, **options)}

    @step.objective
    def where(x):
        return x * 1.0

    return step


def of_cubic(p):
    """The real root by Cardano, and its derivative by p."""
    d = np.sqrt(p * p / 4 + 1 / 27)
    x = np.cbrt(p / 2 + d) + np.cbrt(p / 2 - d)
    return x, 1 / (3 * x * x + 1)


@pytest.mark.parametrize("p", [3.0, 10.0, -0.3, 0.0])
@pytest.mark.parametrize("loops", [{}, {"balance": sg.Implicit("lu")}, {"balance": sg.Implicit("iteration")}])
def test_a_root_and_its_derivative_are_those_in_closed_form(client, p, loops):
    inputs = dict(steps=1, policy="f64", objective="where", loops=loops)
    inputs |= {"params": {"p": p}, "initial": {"x": [1.0]}}
    g = client.gradient(cubic(), **inputs)
    x, slope = of_cubic(p)
    assert g.value == pytest.approx(x, abs=1e-14)
    assert float(g.params["p"]) == pytest.approx(slope, rel=1e-11)
    assert float(g.initial["x"][0]) == pytest.approx(0, abs=1e-12)
    loop = g.sites["balance"]
    assert loop.reasons.sum(0)[1:].sum() == 0 and loop.iterations_max[0] <= 10


def test_the_derivative_is_exact_with_a_jacobian_that_is_not(client):
    """Twice the slope halves the error each time; the derivative knows the residual's own slope."""
    world = cubic(jacobian=lambda y: 2 * (3 * y * y + 1), tol=1e-9)
    work = dict(steps=1, policy="f64", objective="where", initial={"x": 0.3}, params={"p": 2.0})
    g = client.gradient(world, loops={"balance": sg.Implicit("lu")}, **work)
    assert g.sites["balance"].iterations_max[0] > 20
    assert float(g.params["p"]) == pytest.approx(0.25, rel=1e-8)
    # With the slope itself steps are Newton's.
    exact = client.rollout(cubic(jacobian=lambda y: 3 * y * y + 1), **work)
    assert exact.sites["balance"].iterations_max[0] <= 8


def test_the_jacobian_counts_as_a_constant(client):
    """A loose tolerance ends at an iterate that is no root: the derivative is that of the residual there alone."""
    world = cubic(jacobian=lambda y: 3 * y * y + 1, tol=0.3)
    work = dict(steps=1, policy="f64", objective="where", initial={"x": 0.3}, params={"p": 2.0})
    g = client.gradient(world, loops={"balance": sg.Implicit("lu")}, **work)
    x, change, iterates = 0.3, 1.0, []
    while change >= 0.3:
        iterates.append(x)
        x = x - (x**3 + x - 2) / (3 * x * x + 1)
        change = abs(x - iterates[-1])
    assert g.value == pytest.approx(x, rel=1e-14) and abs(x - 1) > 1e-3
    assert float(g.params["p"]) == pytest.approx(1 / (3 * iterates[-1] ** 2 + 1), rel=1e-12)


@pytest.mark.parametrize("policy, tol", [("f64", 1e-12), ("f32", 1e-5), ("bf16_safe", 3e-2)])
def test_differences_suit_the_format(client, policy, tol):
    r = client.rollout(cubic(tol=tol), steps=1, policy=policy, params={"p": 10.0}, objective="where")
    assert r.sites["balance"].reasons.sum(0)[1:].sum() == 0
    assert r.value == pytest.approx(2.0, rel=10 * tol)


def circle_and_line(x, y, p):
    return x @ x + y - p[0], np.stack([x[0] - x[1] - p[1], x[0] * y - 0.5])


@pytest.mark.parametrize("loops", [{}, {"meet": sg.Implicit()}])
def test_several_unknowns_come_back_in_their_form(client, loops):
    @sg.world(x=sg.State(2), y=sg.State(), p=sg.Param(2))
    def step(x, y, p):
        def meet(x, y):
            return circle_and_line(x, y, p)

        x, y = sg.root(meet, (x, y), tol=1e-13, max_iter=30)
        return {"x": x, "y": y}

    @step.objective
    def mixed(x, y):
        return x[0] + 2 * x[1] + 4 * y

    start = {"x": np.tile([1.0, 0.5], (3, 1)), "y": 0.4}
    params = P + [2.0, 0.0]
    g = client.gradient(
        step, steps=1, policy="f64", initial=start, params={"p": params}, objective="mixed", loops=loops
    )
    assert g.ok.all() and g.sites["meet"].reasons.sum(0)[1:].sum() == 0
    for x, y, p, found in zip(g.state["x"], np.ravel(g.state["y"]), params, g.params["p"]):
        first, rest = circle_and_line(x, y, p)
        np.testing.assert_allclose([first, *rest], 0, atol=1e-12)
        jacobian = np.array([[2 * x[0], 2 * x[1], 1], [1, -1, 0], [y, 0, x[0]]])
        by_p = np.array([[-1, 0], [0, -1], [0, 0]])
        expected = -np.array([1, 2, 4]) @ np.linalg.solve(jacobian, by_p)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_what_does_not_fit_is_told_with_its_line():
    def world(residual, jacobian=None):
        @sg.world(x=sg.State(2))
        def step(x):
            return sg.root(residual, x, tol=1e-9, max_iter=9, jacobian=jacobian)

        return step.program

    with pytest.raises(ValueError, match="root_world_test.py:.*the residual of sg.root has 3 numbers"):
        world(lambda x: np.stack([x[0], x[1], x[0]]))
    with pytest.raises(ValueError, match="root_world_test.py:.*Jacobian .* it returns 4"):
        world(lambda x: x - 1, lambda x: x)
