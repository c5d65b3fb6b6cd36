"""Hessian-vector products against closed forms, and what they say where the path changes."""

import numpy as np
import pytest

import simgrad as sg


@sg.world
def growth(x: sg.State[2], k: sg.Param = 0.5, push: sg.Control = 0.0):
    """One step of a polynomial: its Hessian is known."""
    return x + k * x**3 + push * k


@growth.objective
def end(x):
    return np.sum(x)


START = np.array([[0.5, -0.25], [1.0, 0.75], [0.1, 2.0]])


def test_products_are_those_of_the_closed_form(client):
    v = np.array([[1.0, 2.0], [0.5, -1.0], [0.0, 0.25]])
    made = client.hessian_vector(
        growth,
        {"initial": {"x": v}, "params": {"k": 2.0}},
        steps=1,
        initial={"x": START},
        params={"k": 0.3},
        objective="end",
        policy="f64",
    )
    # f = sum x + k x^3: d2f/dx2 = 6 k x, d2f/dx dk = 3 x^2.
    np.testing.assert_allclose(made.initial["x"], 6 * 0.3 * START * v + 3 * START**2 * 2.0, rtol=1e-8)
    np.testing.assert_allclose(made.params["k"], np.sum(3 * START**2 * v), rtol=1e-8)
    assert made.same_path.all() and made.evaluations == 3
    assert made.gradient.params["k"] == pytest.approx(np.sum(START**3))
    assert "3 of 3 instances on the same path" in repr(made)


def test_a_product_is_of_one_objective(client):
    with pytest.raises(TypeError, match="one objective"):
        client.hessian_vector(
            growth,
            {"params": {"k": 2.0}},
            steps=1,
            initial={"x": START},
            params={"k": 0.3},
            objective=["end"],
        )


def test_controls_move_for_each_step(client):
    push = np.array([[0.1, 0.2], [0.0, -0.1], [0.3, 0.0]])
    sent = dict(steps=2, initial={"x": START}, objective="end", policy="f64", params={"k": 0.3})
    made = client.hessian_vector(
        growth, {"controls": {"push": np.ones_like(push)}}, controls={"push": sg.PerStep(push)}, **sent
    )
    # The second step cubes y = z + k push[0]: d2f/dpush0 dpush0 = 6 k y k^2, summed over both numbers.
    y = START + 0.3 * START**3 + 0.3 * push[:, :1]
    expected = np.stack([np.sum(6 * 0.3 * y * 0.3**2, axis=1), np.zeros(3)], axis=1)
    np.testing.assert_allclose(made.controls["push"], expected, rtol=1e-7, atol=1e-9)


@sg.world
def kinked(x: sg.State, k: sg.Param = 1.0):
    return sg.where(sg.test("side", x * k > 1.0), k * x**2, -k * x**2)


@kinked.objective
def height(x):
    return x


def curvature(client, x, **options):
    """Of `kinked` along x, by a step that reaches across the branch from 1.0005 and from 1."""
    sent = dict(steps=1, initial={"x": x}, objective="height", step=1e-2)
    return client.hessian_vector(
        kinked, {"initial": {"x": np.ones(len(x))}}, **{**sent, "policy": "f64", **options}
    )


# The first is half a thousandth from the branch; the second stands on it: no step is small enough.
NEAR = np.array([1.0005, 1.0, 3.0])


@pytest.mark.parametrize("diagnostics", ["off", "summary"])
def test_a_step_across_a_branch_follows_the_path_of_the_centre(client, diagnostics):
    made = curvature(client, NEAR, diagnostics=diagnostics)
    assert made.forced and made.same_path.tolist() == [False, False, True]
    assert made.step == 1e-2 and made.evaluations == 3
    # The second takes the other branch: x k > 1 does not hold at 1.
    np.testing.assert_allclose(made.initial["x"], [2.0, -2.0, 2.0], rtol=1e-9)
    assert "1 of 3 instances on the same path, the others made to follow it" in repr(made)
    alone = curvature(client, NEAR[2:])
    assert alone.same_path.all() and "made to follow" not in repr(alone)


def test_a_path_that_is_given_is_followed_by_all_three(client):
    other = client.rollout(
        kinked, steps=1, initial={"x": np.full(3, 0.5)}, objective="height", policy="f64", path=True
    ).path
    made = curvature(client, NEAR, path=other)
    assert made.forced and made.same_path.tolist() == [False, False, False]
    np.testing.assert_allclose(made.initial["x"], -2.0, rtol=1e-9)
    np.testing.assert_allclose(made.gradient.initial["x"], -2.0 * NEAR, rtol=1e-15)


def test_where_no_path_can_be_followed_the_step_is_made_smaller_and_what_stays_across_is_told(client):
    # Forced runs are refused where roundings are random.
    random = sg.Policy("f64").role("objective", format="f32", rounding="stochastic")
    made = curvature(client, NEAR, policy=random)
    assert not made.forced and made.same_path.tolist() == [True, False, True]
    assert made.step == 1e-2 / 8**3 and made.evaluations == 9
    np.testing.assert_allclose(made.initial["x"][[0, 2]], 2.0, rtol=1e-7)
    assert abs(made.initial["x"][1]) > 100  # a jump by a step is no curvature
    near = curvature(client, NEAR[:1], policy=random)
    # 1e-2 and an eighth of it cross the branch; the next does not.
    assert near.same_path.all() and near.step == 1e-2 / 64 and near.evaluations == 7


def test_a_path_that_is_no_request_any_more_is_not_followed(start):
    x, options = np.linspace(0.1, 0.4, 1400), {"steps": 60, "step": 1e-6}
    with sg.Client(start("--max_request_bytes=65536").target, timeout=60) as client:
        made = curvature(client, x, **options)  # its path takes a byte for each instance and step
        assert not made.forced and made.same_path.all() and made.evaluations == 3
        assert curvature(client, x[:100], **options).forced
        taken = client.rollout(kinked, steps=60, initial={"x": x}, path=True).path
        with pytest.raises(sg.ResourceExhausted, match="path.forced.decisions: the request has"):
            client.rollout(kinked, steps=60, initial={"x": x}, path=taken)


@pytest.mark.parametrize(
    ("vector", "told"),
    [
        ({"state": {"x": START}}, r"vector\['state'\]: one of initial, params, controls"),
        ({"initial": {"y": START}}, "no such input is sent in initial"),
        ({"initial": {"x": START[0]}}, r"has shape \(2,\), the input \(3, 2\)"),
        ({"initial": {"x": 0 * START}}, "a number that is not zero"),
        ({}, "a number that is not zero"),
    ],
)
def test_a_vector_that_does_not_fit_is_told(client, vector, told):
    with pytest.raises(ValueError, match=told):
        client.hessian_vector(growth, vector, steps=1, initial={"x": START}, objective="end")


@pytest.mark.parametrize("format", ["f64", "f32", "tf32", "f16", "bf16"])
def test_the_step_is_known_for_every_format_of_the_dynamics(client, format):
    made = client.hessian_vector(
        growth,
        {"params": {"k": 1.0}},
        steps=1,
        initial={"x": START},
        params={"k": 0.3},
        objective="end",
        policy=sg.Policy("f32").role("dynamics", format=format),
    )
    assert made.step > 0 and np.isfinite(made.params["k"]).all()


def test_what_a_world_sends_by_itself_can_be_moved(client):
    @sg.world
    def squared(x: sg.State[2], k: sg.Param[2] = np.array([1.0, 2.0])):
        return x * k * k

    @squared.objective
    def total(x):
        return np.sum(x)

    product = client.hessian_vector(
        squared, steps=1, initial={"x": [3.0, 5.0]}, objective="total", policy="f64", vector={"params": {"k": [1.0, 0.5]}}
    )
    np.testing.assert_allclose(product.params["k"], [6.0, 5.0], rtol=1e-8)
