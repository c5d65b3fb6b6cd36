"""A dynamic loss scale, whose state travels in request and answer."""

import re
import urllib.request

import numpy as np
import pytest

import simgrad as sg
from simgrad.policy import LossScaleState


@sg.world
def slide(x: sg.State, k: sg.Param = 1.0):
    return x + k


@slide.objective
def end(x):
    return 3.0 * x


def gradient(client, policy):
    return client.gradient(slide, steps=2, initial={"x": 1.0}, objective="end", policy=policy)


def states(client, policy, count, **rule):
    """(scale that ran, skipped, the state behind it) of `count` gradients in a row."""
    seen, state = [], None
    for _ in range(count):
        asked = policy.dynamic_loss_scale(state, **({} if state else rule))
        g = gradient(client, asked)
        state = g.loss_scale_state
        seen.append((g.loss_scale, g.skipped, state.scale, state.clean))
    return seen


def torch_rule(scale, clean, finite, growth, backoff, interval):
    """torch._amp_update_scale_ of PyTorch: products in f64, rounded to f32."""
    if not finite:
        return float(np.float32(scale * backoff)), 0
    if clean + 1 < interval:
        return scale, clean + 1
    with np.errstate(over="ignore"):
        grown = np.float32(scale * growth)
    return (float(grown) if np.isfinite(grown) else scale), 0


def test_the_count_of_clean_gradients_makes_no_other_program(client, server):
    """A training loop sends another state in each request, and is served by one lowered program."""

    def misses():
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
            line = re.search(r'^simgrad_program_cache_total{result="miss"} (\S+)$', page.read().decode(), re.M)
        return float(line[1])

    before, fingerprints, state = misses(), set(), LossScaleState(8.0, 0, "guarded", 2.0, 0.5, 100)
    for _ in range(5):
        g = gradient(client, sg.Policy("f32").dynamic_loss_scale(state))
        fingerprints.add(g.program.fingerprint)
        state = g.loss_scale_state
    assert state.clean == 5 and len(fingerprints) == 1
    assert misses() == before + 1


@pytest.mark.parametrize("role", ["gradient", "adjoint"])
def test_what_saturates_has_no_dynamic_scale(client, role):
    """Also where the scale is 1 now: it would grow."""
    policy = sg.Policy("f32").role(role, format="f16", overflow="saturate")
    with pytest.raises(sg.InvalidArgument, match="hides from a dynamic loss scale") as refused:
        gradient(client, policy.dynamic_loss_scale(LossScaleState(1.0, 0, "guarded", 2.0, 0.5, 100)))
    assert refused.value.field == "spec.policy.roles[0].setting.overflow"
    assert gradient(client, policy.loss_scale(1.0)).loss_scale == 1.0


def test_it_falls_until_the_cotangent_fits_and_grows_after_the_interval(client):
    """3 * 65536 and 3 * 32768 are beyond f16, 3 * 16384 is not: the cotangent in role adjoint."""
    seen = states(client, sg.Policy("f16_safe"), 6, interval=3)
    assert [scale for scale, *_ in seen] == [65536, 32768, 16384, 16384, 16384, 32768]
    assert [skipped for _, skipped, *_ in seen] == [True, True, False, False, False, True]
    assert seen[-1][2:] == (16384, 0)
    g = gradient(client, sg.Policy("f16_safe").dynamic_loss_scale())
    assert g.skipped and "the gradient is skipped" in " ".join(g.warnings)


def test_a_gradient_that_is_skipped_for_what_no_cast_saw_says_where(client):
    """3 * 3 * 2 * 65536 is beyond f16, and goes from a product straight into the gradient, which is f32."""

    @sg.world
    def squares(s: sg.State, p: sg.Param[3]):
        return s + np.sum(p * p)

    @squares.objective
    def total(s):
        return s

    g = client.gradient(
        squares,
        steps=2,
        initial={"s": 0.0},
        params={"p": [1.0, 2e-4, 3.0]},
        objective="total",
        policy="f16_safe",
    )
    assert g.skipped and g.certificates
    (warning,) = [w for w in g.warnings if "scaled gradient of p was not finite" in w]
    assert f"at loss scale {g.loss_scale:.0f}" in warning


@pytest.mark.parametrize("backoff, growth", [(0.5, 2.0), (0.7, 3.0)])
def test_mode_torch_is_that_of_pytorch(client, backoff, growth):
    rule = dict(growth=growth, backoff=backoff, interval=2)
    seen = states(client, sg.Policy("f16_safe"), 8, mode="torch", **rule)
    scale, clean = 65536.0, 0
    for ran, skipped, next_scale, next_clean in seen:
        assert ran == scale
        scale, clean = torch_rule(scale, clean, not skipped, growth, backoff, 2)
        assert (next_scale, next_clean) == (scale, clean)
    assert {skipped for _, skipped, *_ in seen} == {True, False}


def test_guarded_stays_at_one_where_torch_collapses(client):
    """A gradient of 6 * 3e38 is beyond f32: no scale mends it, and torch stops where it is finite scaled."""

    def last(mode):
        state = None
        for _ in range(20):
            asked = sg.Policy("f16_safe").dynamic_loss_scale(state, mode=mode)
            g = client.gradient(
                slide,
                steps=2,
                initial={"x": 1.0},
                objective="end",
                policy=asked,
                weights=[3e38],
                wrt=["k"],
            )
            state = g.loss_scale_state
        return state.scale, g.skipped, float(g.params["k"])

    assert last("guarded") == (1.0, True, np.inf)
    assert last("torch") == (0.125, False, np.inf)


def test_a_fixed_scale_has_no_state(client):
    g = gradient(client, "f16_safe")
    assert g.loss_scale_state is None
    with pytest.raises(sg.InvalidArgument) as error:
        gradient(client, sg.Policy().dynamic_loss_scale(mode="jax"))
    assert error.value.field == "spec.policy.loss_scale.dynamic.mode"


@pytest.mark.parametrize("scale", [2.0**-127, 1e-30, 1.0366833416708354, 3.0, 1e38, 2.0**127])
def test_a_fixed_scale_is_divided_out_by_the_inverse_of_the_specification(client, scale):
    """The gradient is multiplied by f32(1 / f64(scale))."""
    g = client.gradient(
        slide, steps=2, initial={"x": 1.0}, params={"k": 1.0}, objective="end", policy=sg.Policy("f64").loss_scale(scale)
    )
    inverse = np.float64(np.float32(1.0 / scale))
    assert g.params["k"] == (3.0 * scale + 3.0 * scale) * inverse and not g.skipped


@sg.world
def grow(x: sg.State, k: sg.Param = 1.0):
    return x * k


@grow.objective
def grown(x):
    return x


def test_mode_torch_ends_at_the_least_number_and_not_at_one_that_means_another(client):
    """A scale of 0 in a request is 65536."""
    state, seen = None, []
    for _ in range(4):
        policy = sg.Policy("f32").dynamic_loss_scale(state, **({} if state else {"mode": "torch", "backoff": 1e-30}))
        g = client.gradient(grow, steps=1, initial={"x": np.nan}, params={"k": 1.0}, objective="grown", policy=policy)
        state = g.loss_scale_state
        seen.append((g.skipped, state.scale))
    assert [skipped for skipped, _ in seen] == [True] * 4
    assert [scale for _, scale in seen[1:]] == [2.0**-149] * 3


def left_out(client, policy, reduction="finite_only"):
    """The derivative by k is 2 x: of 100 it is beyond f16 from a scale of 512 on."""
    return client.gradient(
        grow, steps=2, initial={"x": [1.0, 2.0, 100.0, 3.0]}, params={"k": 1.0}, objective="grown",
        policy=policy, reduction=reduction,
    )  # fmt: skip


def test_an_instance_that_only_the_scale_takes_beyond_is_not_left_out_for_good(client):
    state, seen = None, []
    for _ in range(8):
        g = left_out(client, sg.Policy("f16_unsafe").dynamic_loss_scale(state))
        state = g.loss_scale_state
        seen.append((g.skipped, g.left_out, float(g.params["k"])))
    assert seen[0][:2] == (True, 4) and seen[-1] == (False, 0, 212.0)
    g = left_out(client, "f16_safe")
    assert g.skipped and g.left_out and any("instances are left out whose cotangents" in w for w in g.warnings)
    assert f"left out    {g.left_out} instances" in repr(g) or f"{g.left_out} instances" in repr(g)
    # Without a scale it is left out, as asked, and no smaller scale would keep it.
    bad = client.gradient(
        grow, steps=2, initial={"x": [1.0, np.nan]}, params={"k": 1.0}, objective="grown", policy="f16_safe",
        reduction="finite_only",
    )  # fmt: skip
    assert not bad.skipped and bad.left_out == 1


def test_a_pool_skips_where_one_server_does(server):
    with sg.Pool([server.target, server.target]) as pool, sg.Client(server.target) as client:
        for policy in ("f16_safe", sg.Policy("f16_unsafe").dynamic_loss_scale(), sg.Policy("f32").dynamic_loss_scale()):
            one, many = (left_out(c, policy) for c in (client, pool))
            assert (one.skipped, one.left_out, one.loss_scale_state) == (many.skipped, many.left_out, many.loss_scale_state)
            assert sorted(one.warnings) == sorted(many.warnings)
            np.testing.assert_array_equal(one.params["k"], many.params["k"])


def test_mode_torch_ends_at_the_least_number_in_a_pool_too(server):
    least = sg.policy.LossScaleState(2.0**-149, 0, "torch", 2.0, 0.5, 1000)
    with sg.Pool([server.target, server.target]) as pool:
        g = pool.gradient(
            grow, steps=1, initial={"x": [np.inf, 1.0]}, objective="grown", wrt=["k"], params={"k": 1.0},
            policy=sg.Policy("f32").dynamic_loss_scale(least),
        )  # fmt: skip
    assert g.skipped and g.loss_scale_state.scale == 2.0**-149


def test_a_guarded_scale_moves_by_powers_of_two(client):
    for rule in (dict(growth=1.5), dict(growth=3.0), dict(backoff=0.9)):
        (name,) = rule
        with pytest.raises(sg.InvalidArgument, match="keeps to powers of two") as error:
            gradient(client, sg.Policy("f32").dynamic_loss_scale(**rule))
        assert error.value.field == f"spec.policy.loss_scale.dynamic.{name}"
        gradient(client, sg.Policy("f32").dynamic_loss_scale(mode="torch", **rule))


def test_a_rule_beside_a_state_replaces_the_states_and_what_is_no_rule_is_refused():
    state = sg.policy.LossScaleState(1024.0, 3, "guarded", 2.0, 0.5, 7)
    policy = sg.Policy().dynamic_loss_scale(state, mode="torch", growth=4.0, interval=3)
    assert policy == sg.Policy().dynamic_loss_scale(sg.policy.LossScaleState(1024.0, 3, "torch", 4.0, 0.5, 3))
    for rule in (dict(growth=0.0), dict(interval=0), dict(backoff=1.0)):
        with pytest.raises(ValueError, match="above 1, between 0 and 1, at least 1"):
            sg.Policy().dynamic_loss_scale(**rule)
    with pytest.raises(TypeError, match="state is the loss_scale_state of a gradient, not 'torch'"):
        sg.Policy().dynamic_loss_scale("torch")


def test_a_gradient_that_saturates_takes_no_scale(client):
    policy = sg.Policy("f32").role("gradient", format="f16", overflow="saturate")
    gradient(client, policy)
    for scaled_policy in (policy.loss_scale(8.0), policy.dynamic_loss_scale()):
        with pytest.raises(sg.InvalidArgument, match="hides that the loss scale takes it beyond") as error:
            gradient(client, scaled_policy)
        assert error.value.field == "spec.policy.roles[0].setting.overflow"
