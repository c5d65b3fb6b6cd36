"""Rollouts that a server keeps: reversed without simulating again, and replayed where they are lost."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
from live_server import eventually
from result_bits import differences

import simgrad as sg

STEPS = 40
BALL = sg.World("bouncing_ball", contact="projection", clamp=False)
WORK = dict(
    steps=STEPS,
    initial={"y": np.linspace(0.1, 1.0, 6)[:, None], "v": [-1.0]},
    params={"k": 1.0},
    policy="bf16_safe",
    objective="final_height",
    record=["v"],
)
FOR_BOTH = sg.Keep(state=["y"], trajectory=["v"])


def cotangents(seed):
    random = np.random.default_rng(seed)
    return sg.Cotangents({"y": random.normal(size=(6, 1))}, {"v": random.normal(size=(6, STEPS + 1, 1))})


def assert_same(one, other):
    assert differences(one, other) == []
    assert (one.gated_by, one.zero_share) == (other.gated_by, other.zero_share)
    assert one.magnitudes == other.magnitudes
    assert one.program.fingerprint == other.program.fingerprint
    assert repr(one.states_range) == repr(other.states_range)


def test_a_vjp_has_the_bits_of_the_gradient_and_does_not_simulate_again(client):
    kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
    assert kept.kept.handle and kept.kept.seconds > 0
    weights = np.arange(1.0, 7.0)
    made = kept.vjp(cotangents(0), weights=weights, wrt=["k", "state.y"])
    expected = client.gradient(
        BALL, cotangents=cotangents(0), weights=weights, wrt=["k", "state.y"], **WORK
    )
    assert_same(made, expected)
    assert made.reused and not made.replayed
    assert "forward" not in made.seconds or made.seconds["forward"] == 0


def test_several_cotangents_in_one_call_give_a_gradient_each(client):
    kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
    made = kept.vjps([cotangents(seed) for seed in range(3)])
    assert len(made) == 3
    for seed, each in enumerate(made):
        assert_same(each, client.gradient(BALL, cotangents=cotangents(seed), **WORK))
    assert made[0].params["k"] != made[1].params["k"]
    assert kept.vjps([]) == []


def test_the_objective_alone_needs_no_cotangent(client):
    kept = client.rollout(BALL, keep=True, **WORK)
    assert_same(kept.vjp(), client.gradient(BALL, **WORK))


def test_a_program_text_is_that_of_the_gradient(client):
    kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
    expected = client.gradient(BALL, cotangents=cotangents(0), program="text", **WORK)
    assert kept.vjp(cotangents(0)).program.text == expected.program.text


def test_a_lost_handle_is_replayed_to_the_same_bits(start):
    server = start("--kept_run_ttl=1s")
    with sg.Client(f"127.0.0.1:{server.port}") as client:
        kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
        assert kept.kept.handle
        eventually(lambda: server.has_dropped(1))
        made = kept.vjp(cotangents(1))
        assert made.replayed and not made.reused
        assert_same(made, client.gradient(BALL, cotangents=cotangents(1), **WORK))
        assert kept.kept.handle == ""


def test_what_is_not_kept_is_replayed(start):
    server = start("--kept_run_bytes=1")
    with sg.Client(f"127.0.0.1:{server.port}") as client:
        kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
        assert kept.kept.handle == ""
        made = kept.vjp(cotangents(2))
        assert made.replayed
        assert_same(made, client.gradient(BALL, cotangents=cotangents(2), **WORK))


def test_a_pool_knows_which_server_keeps_a_batch_that_is_not_cut(start):
    servers = [start(), start()]
    with sg.Pool([f"127.0.0.1:{server.port}" for server in servers]) as pool:
        for seed in range(4):  # they take turns
            kept = pool.rollout(BALL, keep=FOR_BOTH, **WORK)
            made = kept.vjp(cotangents(seed))
            assert made.reused and not made.replayed
            assert_same(made, pool.gradient(BALL, cotangents=cotangents(seed), **WORK))


def test_what_is_wrong_is_named_by_its_field(client):
    kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
    with pytest.raises(sg.InvalidArgument) as wrong:
        kept.vjp({"state": {"nothing": np.ones((6, 1))}})
    assert wrong.value.field.startswith("cotangents[0].final_state[0]")
    with pytest.raises(sg.InvalidArgument) as wrong:
        client.rollout(BALL, keep=sg.Keep(state=["nothing"]), **WORK)
    assert wrong.value.field == "keep.cotangent_final_state[0]"
    with pytest.raises(sg.InvalidArgument) as wrong:
        kept.vjp(cotangents(0), loops={"nothing": sg.Truncated(1)})
    assert wrong.value.field == "loops[0].site"
    with pytest.raises(sg.FailedPrecondition, match="keep=True"):
        client.rollout(BALL, **WORK).vjp(cotangents(0))


def test_cotangents_of_several_kinds_give_a_gradient_each(client):
    """None is the objective alone, whether the server keeps the run or not."""
    kept = client.rollout(BALL, keep=FOR_BOTH, **WORK)
    of_states = sg.Cotangents({"y": np.ones((6, 1))})
    asked = [None, cotangents(0), of_states, None, cotangents(1)]
    expected = [client.gradient(BALL, cotangents=c, **WORK) for c in asked]
    for is_lost in (False, True):
        if is_lost:
            kept.kept.handle = ""
        made = kept.vjps(asked)
        assert [g.replayed for g in made] == [is_lost] * len(asked)
        for one, other in zip(made, expected):
            assert_same(one, other)


@pytest.mark.parametrize("how", ["one server", "lost", "pool"])
def test_a_vjp_has_the_weights_of_its_rollout_unless_it_is_given_others(client, start, how):
    weights, others = np.arange(1.0, 7.0), np.array([0.5, 0.0, -1.0, 2.0, 1.0, 3.0])
    with contextlib.ExitStack() as stack:
        if how == "pool":
            client = stack.enter_context(sg.Pool([f"127.0.0.1:{start().port}" for _ in range(2)], most_instances=256))
        kept = copy.deepcopy(client.rollout(BALL, keep=FOR_BOTH, weights=weights, **WORK))
        assert kept.value == pytest.approx((weights * kept.values).sum())
        if how == "lost":
            kept.kept.handle = ""
        for given, means in (({}, weights), (dict(weights=others), others), (dict(weights=None), None)):
            made = [kept.vjp(**given), *kept.vjps([cotangents(0), None], **given)]
            for one, sent in zip(made, (None, cotangents(0), None)):
                assert one.replayed == (how == "lost")
                assert_same(one, client.gradient(BALL, cotangents=sent, weights=means, **WORK))
        assert kept.vjp().value == kept.value != kept.vjp(weights=None).value
        with pytest.raises(TypeError, match="weights: numbers"):
            kept.vjp(weights="rollouts")
        plain = client.rollout(BALL, keep=True, **WORK)  # without weights there are ones
        assert plain.vjp().value == plain.value == plain.vjp(weights=np.ones(6)).value


def test_weights_that_change_in_place_are_not_those_of_the_rollout(client):
    weights = np.arange(1.0, 7.0)
    kept = client.rollout(BALL, keep=True, weights=weights, **WORK)
    weights[:] = 0.0
    assert_same(kept.vjp(), client.gradient(BALL, weights=np.arange(1.0, 7.0), **WORK))


@sg.world
def rooted(x: sg.State, k: sg.Param = 1.0):
    sg.test("above", x > 8.5)
    return {"x": np.sqrt(x - k)}


@pytest.mark.parametrize("how", ["one server", "lost", "pool"])
def test_an_error_about_a_reversal_has_what_the_rollout_told(client, start, how):
    work = dict(steps=3, initial={"x": [0.5, 9.0]}, record=["x"])
    sent = sg.Cotangents({"x": np.ones(2)})
    with contextlib.ExitStack() as stack:
        if how == "pool":
            client = stack.enter_context(sg.Pool([f"127.0.0.1:{start().port}" for _ in range(2)]))
        kept = client.rollout(rooted, keep=sg.Keep(state=["x"]), **work)
        if how == "lost":
            kept.kept.handle = ""
        with pytest.raises(sg.NonFiniteError) as caught:
            kept.vjp(sent, on_nonfinite="raise")
        with pytest.raises(sg.NonFiniteError) as expected:
            client.gradient(rooted, cotangents=sent, on_nonfinite="raise", **work)
        assert_same(caught.value.result, expected.value.result)
        made = caught.value.result
        assert made.state["x"][1] > 0 and made.path_signatures.size == 2 and made.events["above"].line
        assert made.replayed == (how == "lost") and str(caught.value) == str(expected.value)
        with pytest.raises(ValueError, match="on_nonfinite 'rise': one of report, raise"):
            kept.vjp(sent, on_nonfinite="rise")


def test_bits_stay_bits_where_a_run_is_replayed(client):
    kept = client.rollout(BALL, keep=True, raw=True, **{**WORK, "policy": "bf16_unsafe"})
    reused = kept.vjp()
    kept.kept.handle = ""
    replayed = kept.vjp()
    assert replayed.replayed and not reused.replayed
    assert differences(reused, replayed) == []
    assert replayed.state["y"].dtype == reused.state["y"].dtype == np.uint16
    assert replayed.trajectory["v"].dtype == np.uint16


def test_a_result_travels_between_processes_and_is_kept_no_more_there(client):
    kept = client.rollout(BALL, keep=True, **WORK)
    arrived = pickle.loads(pickle.dumps(kept))
    assert differences(kept, arrived) == [] and kept.kept is not None
    with pytest.raises(sg.FailedPrecondition, match="not kept"):
        arrived.vjp()
    assert copy.deepcopy(kept).kept is kept.kept
    with pytest.raises(sg.NonFiniteError) as caught:
        client.rollout(BALL, **{**WORK, "params": {"k": np.nan}}, on_nonfinite="raise")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value) and repr(error.certificates) == repr(caught.value.certificates)
    assert not error.result.ok.any()


def test_a_vjp_draws_where_the_kept_adjoint_did_not(client):
    """By k the cotangent of x is rounded by chance; by x alone it goes on as it is."""

    @sg.world
    def product(x: sg.State, k: sg.Param = 1.5):
        return {"x": x + k * 0.3}

    policy = sg.Policy("f32").role("adjoint", format="bf16", rounding="stochastic")
    work = dict(steps=8, initial={"x": np.linspace(0.1, 1.0, 6)}, policy=policy, seed=11)
    sent = sg.Cotangents({"x": np.random.default_rng(3).normal(size=6)})
    for kept_by, asked in (("state.x", "k"), ("k", "state.x"), ("k", "k")):
        kept = client.rollout(product, keep=sg.Keep(state=["x"], wrt=[kept_by]), **work)
        made = kept.vjp(sent, wrt=[asked])
        expected = client.gradient(product, cotangents=sent, wrt=[asked], **work)
        assert differences(made, expected) == [], (kept_by, asked)
