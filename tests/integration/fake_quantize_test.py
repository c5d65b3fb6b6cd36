"""Numbers rounded to 8 bits under a scale: against ml_dtypes (tests/data/fake_quantize.py), and in role network."""

import json
import pathlib
import re

import numpy as np
import pytest

import simgrad as sg
from simgrad.program import ProgramBuilder

DATA = pathlib.Path(__file__).parent.parent / "data/fake_quantize.json"
CASES = json.loads(DATA.read_text())["cases"]
PRESETS = {"f64": "f64", "f32": "f32", "bf16": "bf16_unsafe", "f16": "f16_unsafe"}


def numbers(case, name):
    return np.array([float.fromhex(x) for x in case[name]]).reshape(case["shape"])


def weights(case):
    """Of a sum that no case overflows; exact in every format."""
    count = int(np.prod(case["shape"]))
    return np.reshape(2.0 ** -(3 + np.arange(count) % 5), case["shape"])


def quantizer(cases):
    """A state and, where it is given, a scale for each case; the objective is a weighted sum of all results."""
    inputs = {f"x{i}": sg.State(*case["shape"]) for i, case in enumerate(cases)}
    for i, case in enumerate(cases):
        if case["scale"]:
            kept = [n for a, n in enumerate(case["shape"]) if a not in case["axes"]]
            inputs[f"s{i}"] = sg.Param(*kept)

    @sg.world(name="quantizer", **inputs)
    def step(**given):
        made = {}
        for i, case in enumerate(cases):
            channels = [a for a in range(len(case["shape"])) if a not in case["axes"]]
            made[f"x{i}"] = sg.fake_quantize(
                given[f"x{i}"], case["format"], keep_axes=channels, scale=given.get(f"s{i}")
            )
        return made

    return step


def inputs_of(cases):
    params = {}
    for i, case in enumerate(cases):
        if case["scale"]:
            scale = np.array([float.fromhex(x) for x in case["scale"]])
            kept = [n for a, n in enumerate(case["shape"]) if a not in case["axes"]]
            params[f"s{i}"] = scale.reshape(kept)
    return {f"x{i}": numbers(case, "x")[None] for i, case in enumerate(cases)}, params


def is_finite(case):
    scale = [float.fromhex(x) for x in case["scale"] or ()]
    return np.isfinite(numbers(case, "x")).all() and np.isfinite(scale).all()


@pytest.mark.parametrize("role", PRESETS)
@pytest.mark.parametrize("finite", (True, False))
def test_what_is_left_is_what_ml_dtypes_leaves(client, role, finite):
    cases = [case for case in CASES if case["role"] == role and is_finite(case) == finite]
    assert len(cases) >= (30 if finite else 6)
    initial, params = inputs_of(cases)
    r = client.rollout(
        quantizer(cases), steps=1, initial=initial, params=params, policy=PRESETS[role]
    )
    for i, case in enumerate(cases):
        found, expected = r.state[f"x{i}"][0].astype(np.float64), numbers(case, "result")
        np.testing.assert_array_equal(found, expected, err_msg=case["name"])
        zeros = expected == 0
        np.testing.assert_array_equal(
            np.signbit(found[zeros]), np.signbit(expected[zeros]), err_msg=case["name"]
        )


@pytest.mark.parametrize("role", PRESETS)
def test_the_cotangent_passes_where_nothing_was_clamped(client, role):
    cases = [case for case in CASES if case["role"] == role and is_finite(case)]
    assert sum(case["kept"].count(0) for case in cases) >= 7
    world = quantizer(cases)
    initial, params = inputs_of(cases)
    r = client.gradient(
        world,
        steps=1,
        initial=initial,
        params=params,
        policy=PRESETS[role],
        cotangents={"state": {f"x{i}": weights(case)[None] for i, case in enumerate(cases)}},
    )
    for i, case in enumerate(cases):
        kept = np.reshape(case["kept"], case["shape"])
        np.testing.assert_array_equal(
            r.initial[f"x{i}"][0], weights(case) * kept, err_msg=case["name"]
        )
    assert not any(np.any(g) for g in r.params.values())


@sg.world(x=sg.State(5), k=sg.Param(5))
def left(x, k):
    return sg.fake_quantize(x * k, "e4m3") + sg.fake_quantize(x, "e5m2")


def test_an_instance_hangs_on_no_other(client):
    """One of them is larger than all others by 2^20."""
    x = np.random.default_rng(3).normal(size=(7, 5)) * np.exp2(np.arange(7)[:, None] * 3.5)
    k = np.random.default_rng(4).normal(size=5)
    together = client.rollout(left, steps=2, initial={"x": x}, params={"k": k})
    for i in range(7):
        alone = client.rollout(left, steps=2, initial={"x": x[i : i + 1]}, params={"k": k})
        assert alone.state["x"].tobytes() == together.state["x"][i : i + 1].tobytes()


def test_the_program_says_format_and_axes(client):
    text = client.program(left, policy="bf16_unsafe").text
    assert re.search(r":bf16\[5\] = fake_quantize %\d+ axes=\[0\] format=e4m3 ", text)
    assert re.search(r":bf16\[5\] = fake_quantize %\d+ axes=\[0\] format=e5m2 ", text)


def test_what_is_wrong_is_named(client):
    def made(**arguments):
        return sg.world(x=sg.State(2, 3))(lambda x: sg.fake_quantize(x, **arguments)).to_proto()

    for axes in (2, -3, (0, 2), 1.0, "1", (0.0,)):
        told = rf"fake_quantize_test.py:\d+: keep_axes .*: axes of an array of shape \(2, 3\) are from -2 to 1"
        with pytest.raises(ValueError, match=told):
            made(keep_axes=axes)
    with pytest.raises(ValueError, match=r"scale of shape \(2,\) does not widen to \(3,\)"):
        made(keep_axes=1, scale=[1, 2])
    for format in ("bf16", "fp8"):
        with pytest.raises(ValueError, match=f"format '{format}': one of e4m3, e5m2$"):
            made(format=format)
    with pytest.raises(TypeError, match="axis"):
        made(axis=1)  # what it was called when the operation's `axes` meant the others
    for format, told in (("bf16", "e4m3 or e5m2, not bf16"), ("fp8", "unknown format 'fp8'; one of e4m3, e5m2$")):
        b = ProgramBuilder("other")
        b.next(x=b.fake_quantize(b.state("x", (2, 3))))
        program = b.build()
        program.step.ops[0].format = format
        with pytest.raises(sg.InvalidArgument, match=told) as caught:
            client.rollout(sg.World(program=program), steps=1, initial={"x": np.ones((2, 3))})
        assert caught.value.field.endswith(".format")


def test_axes_that_are_kept_are_those_that_the_operation_does_not_share():
    def axes_of(**arguments):
        world = sg.world(x=sg.State(2, 3, 4))(lambda x: sg.fake_quantize(x, **arguments))
        return list(world.to_proto().program.step.ops[0].axes)

    assert axes_of() == axes_of(keep_axes=()) == [0, 1, 2]
    assert axes_of(keep_axes=1) == axes_of(keep_axes=np.int64(-2)) == axes_of(keep_axes=(1,)) == [0, 2]
    assert axes_of(keep_axes=(0, 2)) == [1]


@pytest.mark.parametrize(
    ("axes", "named"),
    [((0, 0), "axis 0"), ([1, -2], "axis 1"), ((2, 0, 2, -3), "axes 2, 0")],
)
def test_an_axis_that_is_kept_twice_is_refused_by_name(axes, named):
    with pytest.raises(ValueError) as caught:
        sg.world(x=sg.State(2, 3, 4))(lambda x: sg.fake_quantize(x, keep_axes=axes)).to_proto()
    message = str(caught.value)
    assert message.startswith("fake_quantize_test.py:")
    assert f": keep_axes {axes!r} names {named} of an array of shape (2, 3, 4) more than once" in message


# ---- Role network with a scale ----

E4M3 = np.array(
    [m * 2.0**-9 for m in range(8)]
    + [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
)


def under_a_scale(x):
    """The e4m3 numbers nearest to x / 2^k, ties to an even digit, times 2^k; from the list of all of them."""
    amax = np.abs(x).max()
    k = 0 if amax == 0 else int(np.ceil(np.log2(amax / 448)))
    k += 1 if amax > 448 * 2.0**k else 0
    k -= 1 if amax and amax <= 448 * 2.0 ** (k - 1) else 0
    scaled = np.abs(x) / 2.0**k
    above = np.searchsorted(E4M3, scaled).clip(1, len(E4M3) - 1)
    low, high = E4M3[above - 1], E4M3[above]
    middle = (low + high) / 2
    up = (scaled > middle) | ((scaled == middle) & (above % 2 == 0))
    return np.copysign(np.where(up, high, low), x) * 2.0**k


def product(a, b):
    """A chain of fma in f32; sums of a few products of 4-digit numbers are exact in f64."""
    total = np.zeros(np.shape(a)[:-1] + np.shape(b)[1:], np.float32)
    for k in range(np.shape(a)[-1]):
        total = np.float32(a[..., k, None].astype(np.float64) * b[k] + total)
    return total


def network(state, weights, biases):
    layer = state
    for w, b in zip(weights, biases):
        layer = product(under_a_scale(layer), under_a_scale(w)) + np.float32(under_a_scale(b))
        layer = np.float32(np.tanh(layer.astype(np.float64)))
    return layer


@pytest.mark.parametrize("size, state", [(1000.0, 1e-3), (1e-4, 3000.0), (1.0, 1.0), (1e-4, 1.0)])
def test_a_network_in_fp8_keeps_weights_of_any_size(client, size, state):
    """Without a scale weights of 1000 are clamped at 448, and those of 1e-4 are 0."""
    sizes = (4, 8, 1)
    random = np.random.default_rng(6)
    params = {
        "w1": size * random.normal(size=(4, 8)),
        "b1": size * state * random.normal(size=8),
        "w2": random.normal(size=(8, 1)),
        "b2": 0.1 * random.normal(size=1),
    }
    start = {n: np.float64(np.float32(state * random.normal(size=3))) for n in STATES}
    r = push_of(client, sizes, params, start, "fp8_storage")
    layers = np.float32(np.stack([start[n] for n in STATES], axis=1))
    for row, found in zip(layers, r):
        [expected] = network(row, [params["w1"], params["w2"]], [params["b1"], params["b2"]])
        assert found == pytest.approx(10 * expected, rel=1e-6)
    exact = push_of(client, sizes, params, start, "f64")
    # Three digits of each weight are gone; without the scale another network was left.
    assert np.abs(r - exact).max() < 0.35 * np.abs(exact).max()


STATES = ("x", "speed", "angle", "spin")


def push_of(client, sizes, params, start, policy):
    world = sg.worlds.cartpole(sizes)
    r = client.rollout(
        world, steps=1, initial=start, params=params, policy=policy, record=["push"]
    )
    return r.trajectory["push"][:, 0].astype(np.float64)


@sg.world(x=sg.State(4), w=sg.Param(4, 4))
def layer(x, w):
    with sg.role("network"):
        return np.tanh(x @ w)


def test_a_role_says_its_scale_and_so_do_answer_and_text(client):
    plain = sg.Policy("f32").role("network", format="e4m3")
    scaled = plain.role("network", scale="amax")
    assert client.program(layer, policy=plain).policy.roles["network"].scale == "none"
    described = client.program(layer, policy=scaled)
    assert described.policy.roles["network"].scale == "amax"
    assert described.policy.roles["network"].overflow == "saturate"
    assert described.text.count(" fake_quantize ") == 2  # of x and of w
    assert described.text.count("e4m3[") == 0  # values are in f32
    preset = client.program(layer, policy="fp8_storage")
    assert preset.text.count(" fake_quantize ") == 2
    assert client.program(layer, policy="bf16_safe").text.count("fake_quantize") == 0


@pytest.mark.parametrize(
    "policy, field",
    [
        (sg.Policy("f32").role("network", scale="amax"), "roles[0].setting.scale"),
        (sg.Policy("f32").role("tape", format="e4m3", scale="amax"), "roles[0].setting.scale"),
        (sg.Policy("fp8_storage").role("network", scale="max"), "roles[0].setting.scale"),
        (sg.Policy("fp8_storage").role("network", overflow="ieee"), "roles[0].setting.overflow"),
        (
            sg.Policy("fp8_storage").role("network", rounding="stochastic"),
            "roles[0].setting.rounding",
        ),
    ],
)
def test_a_scale_that_cannot_be_is_refused_by_its_field(client, policy, field):
    with pytest.raises(sg.InvalidArgument) as caught:
        client.program(layer, policy=policy)
    assert caught.value.field.endswith(f"policy.{field}")
