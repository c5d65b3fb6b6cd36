"""Gradients in f64 against central differences, through the client."""

import numpy as np
import pytest

import simgrad as sg

N, E, T = 3, 2, 40
# Central differences with step d = 1e-6 of a parameter, or 1e-6 of a state or control (all of order
# one). Truncation is d^2 / 6 times the third derivative, about 1e-12 where that is of order one in
# the scaled parameter; rounding 2^-52 |f| / d, about 1e-10, times the amplification over 40 steps.
# The promise is 1e-6 relative; gradients that are small beside the largest are compared with 1e-9
# of it.
STEP = 1e-6
RELATIVE, FLOOR = 1e-6, 1e-9


def inputs(**params):
    generator = np.random.default_rng(5)
    return {
        "initial": {
            "y": generator.uniform(0.05, 0.4, (N, E)),
            "v": generator.uniform(-1.5, 0.5, (N, E)),
        },
        "params": {
            "k": 1.3,
            "g": 9.81,
            "h": 0.01,
            "restitution": 0.7,
            "damping": 0.3,
            "alpha": 0.6,
            **params,
        },
        "controls": {"u": generator.uniform(-0.5, 0.5, (N, T, E))},
    }


WORLDS = {
    "penalty": (dict(contact="penalty"), dict(k=200.0)),
    "penalty explicit": (dict(contact="penalty", integrator="explicit"), dict(k=200.0)),
    "penalty softplus": (dict(contact="penalty", smoothing="softplus", eps=0.02), dict(k=200.0)),
    "projection": (dict(contact="projection", clamp=False), {}),
    "projection by element": (dict(contact="projection", clamp=False, scope="element"), {}),
    "projection explicit": (dict(contact="projection", clamp=False, integrator="explicit"), {}),
    "toi": (dict(contact="toi"), {}),
}


def evaluate(client, world, sent, objective, data, gradient=True):
    call = client.gradient if gradient else client.rollout
    return call(
        world, steps=T, **sent, data=data, objective=objective, policy="f64", diagnostics="off"
    )


def moved(sent, group, name, index, delta):
    array = np.array(sent[group][name], np.float64)
    array[index] += delta
    return {**sent, group: {**sent[group], name: array}}


def central_difference(client, world, sent, objective, data, place):
    """The difference quotient, and whether both ends took the path of the middle."""
    group, name, index = place
    step = STEP * abs(sent[group][name]) if group == "params" else STEP
    ends = [
        evaluate(client, world, moved(sent, *place, delta), objective, data, gradient=False)
        for delta in (step, -step)
    ]
    middle = evaluate(client, world, sent, objective, data, gradient=False)
    same = all((end.path_signatures == middle.path_signatures).all() for end in ends)
    return (ends[0].value - ends[1].value) / (2 * step), same


def places(sent):
    for group in sent:
        for name, value in sent[group].items():
            shape = np.shape(value)
            chosen = {
                (): [()],
                (N, E): [(0, 0), (2, 1)],
                (N, T, E): [(0, 0, 0), (1, T // 2, 1), (2, T - 1, 0)],
            }
            for index in chosen[shape]:
                yield group, name, index


@pytest.mark.parametrize(
    "objective", ["final_height", "target_height", "tracking", "final_penetration"]
)
@pytest.mark.parametrize("name", WORLDS)
def test_gradients_of_every_input_agree_with_central_differences(client, name, objective):
    config, params = WORLDS[name]
    world, sent = sg.World("bouncing_ball", elements=E, **config), inputs(**params)
    data = {
        "tracking": {"y": np.linspace(0.3, 0.1, T * E).reshape(1, T, E).repeat(N, 0)},
        "target_height": {"target": np.full(E, 0.2)},
    }.get(objective, {})
    g = evaluate(client, world, sent, objective, data)
    got = {"initial": g.initial, "params": g.params, "controls": g.controls}
    largest = max(np.abs(array).max() for group in got.values() for array in group.values())
    compared = 0
    for group, input_name, index in places(sent):
        assert got[group][input_name].shape == np.shape(sent[group][input_name])
        expected, same_path = central_difference(
            client, world, sent, objective, data, (group, input_name, index)
        )
        if not same_path:
            continue
        compared += 1
        actual = float(got[group][input_name][index])
        tolerance = max(RELATIVE * abs(expected), FLOOR * max(largest, 1e-3))
        assert abs(actual - expected) <= tolerance, (group, input_name, index, actual, expected)
    assert compared >= 12  # of 13 places; at most one may sit on a boundary
    if objective != "final_penetration":
        assert largest > 1e-3


def test_the_path_signature_says_where_a_central_difference_is_meaningless(client):
    """Bisects an initial height to a change of the path: the value jumps there, the gradient does
    not see it."""
    world = sg.World("bouncing_ball", contact="projection", clamp=False)

    def roll(y0):
        return client.gradient(
            world,
            steps=60,
            initial={"y": [y0], "v": [0.0]},
            params={"k": 1.0},
            objective="final_height",
            policy="f64",
            diagnostics="off",
        )

    low, high = roll(0.50), roll(0.52)
    ends = [0.50, 0.52]
    assert low.path_signature != high.path_signature
    while ends[1] - ends[0] > 1e-9:
        middle = sum(ends) / 2
        r = roll(middle)
        if r.path_signature == low.path_signature:
            ends[0], low = middle, r
        else:
            ends[1], high = middle, r
    quotient = (high.value - low.value) / (ends[1] - ends[0])
    slope = float(low.initial["y"][0])
    assert low.path_signature != high.path_signature
    # The two sides are different programs: the jump between them dwarfs what the slope allows.
    assert abs(quotient) > 1e3 * max(abs(slope), abs(float(high.initial["y"][0])))
    # Beside the boundary the path does not change, and the quotient is the gradient again.
    below = roll(ends[0] - 1e-6)
    assert below.path_signature == low.path_signature
    assert (low.value - below.value) / 1e-6 == pytest.approx(slope, rel=1e-5)


def test_cotangents_give_what_the_objective_gives(client):
    """tracking is sum over t and mean over elements of (y[t+1] - d)^2: its cotangents are known."""
    world, sent = sg.World("bouncing_ball", elements=E, contact="toi"), inputs()
    observed = np.random.default_rng(2).uniform(0, 0.3, (N, T, E))
    by_name = evaluate(client, world, sent, "tracking", {"y": observed})
    y = client.rollout(world, steps=T, **sent, policy="f64", record=["y"]).trajectory["y"]
    cotangent = np.zeros_like(y)
    cotangent[:, 1:] = 2 * (y[:, 1:] - observed) / E
    by_hand = client.gradient(
        world, steps=T, **sent, policy="f64", cotangents={"trajectory": {"y": cotangent}}
    )
    for group in ("initial", "params", "controls"):
        for name, expected in getattr(by_name, group).items():
            # The same sums in another order: N T E = 240 terms of f64.
            scale = np.abs(expected).max()
            np.testing.assert_allclose(
                getattr(by_hand, group)[name], expected, rtol=1e-11, atol=1e-11 * scale
            )
    assert by_hand.value is None


def test_final_state_cotangents_pick_components(client):
    world, sent = sg.World("bouncing_ball", elements=E, contact="penalty"), inputs(k=200.0)
    pick = np.zeros((N, E))
    pick[1, 0] = 1.0
    g = client.gradient(
        world, steps=T, **sent, policy="f64", cotangents=sg.Cotangents(state={"y": pick})
    )
    assert np.count_nonzero(g.initial["y"]) == 1 and g.initial["y"][1, 0] != 0
    assert g.connected["y"] >= 1


def test_weights_multiply_the_cotangents_that_are_sent(client):
    """An instance's value is then the inner product of its final state with what was sent."""
    world, sent = sg.World("bouncing_ball", elements=E, contact="toi"), inputs(restitution=0.8)
    weights = np.array([1.0, 0.0, -2.0])  # powers of two: exact
    pick = np.zeros((N, E))
    pick[:, 0] = 1.0
    call = dict(steps=T, **sent, policy="f64", cotangents=sg.Cotangents(state={"y": pick}))
    plain = client.gradient(world, **call)
    weighted = client.gradient(world, **call, weights=weights)
    assert np.any(plain.initial["y"] != 0)
    np.testing.assert_array_equal(weighted.initial["y"], plain.initial["y"] * weights[:, None])


def test_weights_enter_shared_gradients_and_the_value(client):
    world, sent = sg.World("bouncing_ball", elements=E, contact="toi"), inputs()
    weights = np.array([1.0, 0.0, -2.0])
    whole = client.gradient(
        world, steps=T, **sent, objective="final_height", weights=weights, policy="f64"
    )
    assert whole.value == pytest.approx(float(weights @ whole.values), rel=1e-14)
    rollout = client.rollout(
        world, steps=T, **sent, objective="final_height", weights=weights, policy="f64"
    )
    assert rollout.value == whole.value
    single = [
        client.gradient(
            world,
            steps=T,
            initial={k: v[i] for k, v in sent["initial"].items()},
            params=sent["params"],
            controls={"u": sent["controls"]["u"][i : i + 1]},
            objective="final_height",
            policy="f64",
        ).params["restitution"]
        for i in range(N)
    ]
    assert float(whole.params["restitution"]) == pytest.approx(
        float(weights @ np.array(single)), rel=1e-13
    )


def test_wrt_limits_what_is_returned(client):
    g = client.gradient(
        sg.World("bouncing_ball", elements=E),
        steps=T,
        **inputs(),
        objective="final_height",
        wrt=["k", "state.y"],
    )
    assert list(g.params) == ["k"] and list(g.initial) == ["y"] and not g.controls
