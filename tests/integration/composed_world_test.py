"""Worlds of sg.compose against the same loops by hand."""

import numpy as np
import pytest
from result_bits import differences

import simgrad as sg

STEPS = 30
GAIN = np.array([[-2.0, 0.5], [0.3, -1.0]])
START = {"x": np.array([[0.4, -0.2], [1.0, 0.5], [-0.7, 0.1]]), "v": np.array([0.1, -0.3])}


@sg.world
def spring(x: sg.State[2], v: sg.State[2], k: sg.Param = 3.0, push: sg.Control[2] = 0.0, drift: sg.Control = 0.0):
    sg.observe("length", np.sqrt(np.sum(x * x)))
    v = v + 0.05 * (push - k * x) + drift
    return {"x": x + 0.05 * v, "v": v}


@spring.objective
def end(x, push):
    return x @ x + 0.1 * (push @ push)


@spring.stage_cost
def effort(v, push, length):
    return push @ push + v[0] * length


@sg.controller
def law(x, v, length, gain: sg.Param[2, 2], bias: sg.Param = 0.25):
    return np.tanh(gain @ x - v) * length + bias


def in_numpy(gain=GAIN, bias=0.25, k=3.0):
    """States before every step and pushes of every step, and the two costs."""
    x, v = START["x"].copy(), np.broadcast_to(START["v"], (3, 2)).copy()
    xs, pushes, effort = [x], [], 0.0
    for _ in range(STEPS):
        length = np.sqrt((x * x).sum(1, keepdims=True))
        push = np.tanh(x @ gain.T - v) * length + bias
        effort = effort + (push**2).sum(1) + v[:, 0] * length[:, 0]
        v = v + 0.05 * (push - k * x)
        x = x + 0.05 * v
        xs.append(x)
        pushes.append(push)
    end = (x * x).sum(1) + 0.1 * (push * push).sum(1)
    return np.stack(xs, 1), np.stack(pushes, 1), {"end": end, "effort": effort}


def arguments(**params):
    return dict(steps=STEPS, policy="f64", initial=START, params={"gain": GAIN, **params})


def test_a_controller_counts_the_steps(client):
    @sg.controller
    def timed(v, step):
        return 0.1 * step - v

    closed = sg.compose(spring, timed, control="push")
    r = client.rollout(closed, steps=4, policy="f64", initial=START, record=["push", "v"])
    before = r.trajectory["v"][:, :-1]
    np.testing.assert_array_equal(r.trajectory["push"][:, :4], 0.1 * np.arange(4.0)[:, None] - before)


@pytest.mark.parametrize("objective", ["end", "effort"])
def test_it_moves_and_costs_as_the_loop_by_hand(client, objective):
    closed = sg.compose(spring, law, control="push")
    r = client.rollout(closed, **arguments(), objective=objective, record=["x", "push"])
    states, pushes, costs = in_numpy()
    np.testing.assert_allclose(r.trajectory["x"], states, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(r.trajectory["push"], pushes, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(r.values, costs[objective], rtol=1e-12)


@pytest.mark.parametrize("objective", ["end", "effort"])
def test_the_gradient_of_its_weights_agrees_with_central_differences(client, objective):
    closed = sg.compose(spring, law, control="push")
    g = client.gradient(closed, **arguments(bias=0.25, k=3.0), objective=objective)
    assert g.params["gain"].shape == (2, 2) and g.connected["gain"] == 3
    random = np.random.default_rng(3)
    for name, value in {"gain": GAIN, "bias": 0.25, "k": 3.0}.items():
        direction = random.normal(size=np.shape(value))
        up, down = (
            in_numpy(**{name: value + by * direction})[2][objective].sum() for by in (1e-5, -1e-5)
        )
        found = float(np.sum(g.params[name] * direction))
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-7, abs=1e-9), name


def test_it_has_the_bits_of_a_world_with_the_controller_inside(client):
    @sg.world(name="spring")
    def whole(
        x: sg.State[2],
        v: sg.State[2],
        gain: sg.Param[2, 2],
        k: sg.Param = 3.0,
        bias: sg.Param = 0.25,
        drift: sg.Control = 0.0,
    ):
        length = sg.observe("length", np.sqrt(np.sum(x * x)))
        pull = k * x
        with sg.role("network"):
            push = np.tanh(gain @ x - v) * length + bias
        sg.observe("push", push)
        v = v + 0.05 * (push - pull) + drift
        return {"x": x + 0.05 * v, "v": v}

    whole.objective(end)
    whole.stage_cost(effort)
    closed = sg.compose(spring, law, control="push")
    policy = sg.Policy("f32").role("network", format="bf16")
    given = {**arguments(), "policy": policy, "controls": {"drift": np.full((3, STEPS), 0.01)}}
    for objective in ("end", "effort"):
        mine, hand = (
            client.gradient(w, **given, objective=objective, record=["push"]) for w in (closed, whole)
        )
        assert not differences(mine, hand, diagnostics=False)
        assert mine.program.policy.roles["network"].format == "bf16"


def test_a_built_in_world_is_composed_from_its_program(client):
    """With a controller of zeros it is the world itself, to the bit."""
    ball = sg.World("bouncing_ball", contact="toi", elements=2)
    start = {"y": np.array([[0.5, 0.3], [0.4, 0.6]]), "v": np.zeros(2)}
    given = dict(steps=40, policy="f64", initial=start, params={"k": 1.0}, record=["y"])
    source = sg.World(program=client.program(ball).source)
    closed = sg.compose(source, lambda y, v: 0.0 * (y + v), role="")
    free = client.rollout(ball, **given, controls={"u": np.zeros(2)})
    held = client.rollout(closed, **given)
    assert held.path_signature == free.path_signature
    np.testing.assert_array_equal(held.trajectory["y"], free.trajectory["y"])
    pushed = client.rollout(sg.compose(source, lambda y, v: 0.5 - v), **given)
    assert np.abs(pushed.trajectory["y"] - free.trajectory["y"]).max() > 0.01


def test_two_controllers_and_a_loop_inside_the_world(client):
    @sg.world
    def relaxed(x: sg.State, u: sg.Control = 0.0, w: sg.Control = 0.0):
        y = sg.for_loop(4, lambda i, y: 0.5 * (y + u), x)
        return sg.cond(y > 0.6, lambda: y - w, lambda: y + u * w)

    @relaxed.objective
    def last(x, u, w):
        return x + 10.0 * u + 100.0 * w

    closed = sg.compose(sg.compose(relaxed, lambda x: 0.7 * x, control="u"), lambda x, u: x * u)
    x0 = np.array([0.3, 0.9, 1.5])
    r = client.gradient(closed, steps=6, initial={"x": x0}, policy="f64", objective="last")

    def by_hand(x):
        for _ in range(6):
            u = 0.7 * x
            w, y = x * u, x
            for _ in range(4):
                y = 0.5 * (y + u)
            x = np.where(y > 0.6, y - w, y + u * w)
        return x + 10.0 * u + 100.0 * w

    np.testing.assert_allclose(r.values, by_hand(x0), rtol=1e-12)
    slope = (by_hand(x0 + 1e-6) - by_hand(x0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(r.initial["x"], slope, rtol=1e-7)


def test_a_loaded_world_runs_with_the_weights_that_were_saved(client, tmp_path):
    @sg.controller
    def fixed(x, v, gain: sg.Param[2, 2] = GAIN):
        return np.tanh(gain @ x - v)

    closed = sg.compose(spring, fixed, control="push")
    closed.save(tmp_path / "closed.txtpb")
    given = dict(steps=5, policy="f64", initial=START)
    mine, loaded = (client.rollout(w, **given) for w in (closed, sg.World.load(tmp_path / "closed.txtpb")))
    assert not differences(mine, loaded)
