"""Casts that do not round to nearest even, against Python's integers; what stochastic rounding mends."""

import numpy as np
import pytest
from philox import key_of, words

import simgrad as sg
from simgrad.program import ProgramBuilder

STEPS = 50
SEED = 11
IN_BF16 = sg.Policy("f32").role("state", format="bf16", rounding="stochastic")


@sg.world
def creep(x: sg.State(3), k: sg.Param = 0.01):
    return x + k


def run(client, x, policy=IN_BF16, **options):
    options = {"steps": STEPS, "seed": SEED, "record": ["x"], **options}
    return client.rollout(creep, initial={"x": x}, policy=policy, **options)


def rounded(x, word):
    """The f32 number x in bf16, up where `word` is less than the 32 bits behind the 16 that stay."""
    bits = int(np.float32(x).view(np.uint32))
    up = word < (bits & 0xFFFF) << 16
    return np.uint32((bits & 0xFFFF0000) + (up << 16)).view(np.float32)


def test_a_stochastic_cast_takes_the_documented_word(client):
    ids = [7, 3]
    r = run(client, np.full((2, 3), 4.0), steps=4, instance_ids=ids)
    assert r.program.text.count(" stochastic") == 1 and " draw=0 stochastic" in r.program.text
    for row, instance in enumerate(ids):
        x = np.full(3, 4.0, np.float32)
        for step in range(4):
            for element in range(3):
                exact = np.float32(x[element] + np.float32(0.01))
                word = words(key_of(SEED, instance), (0, step, 0, element)) >> 32
                x[element] = rounded(exact, word)
            np.testing.assert_array_equal(r.trajectory["x"][row, step + 1], x)


def test_the_mean_of_many_instances_moves_where_nearest_stands_still(client):
    """In bf16 4 + 0.01 is 4; the ulp there is 2^-5, so a step of 0.01 goes up with probability 0.32."""
    x = np.full((512, 3), 4.0)
    nearest = run(client, x, policy=sg.Policy("f32").role("state", format="bf16"))
    assert (nearest.state["x"] == 4.0).all()
    stochastic = run(client, x).state["x"]
    # Steps are Bernoulli draws: a deviation below 2^-6 sqrt(50); 1536 of them, five standard errors.
    assert abs(stochastic.mean() - 4.5) < 5 * 2**-6 * np.sqrt(STEPS / stochastic.size)
    assert len(np.unique(stochastic)) > 5


def test_a_draw_hangs_on_the_id_alone(client):
    x = np.random.default_rng(2).normal(size=(5, 3))
    all_of_them = run(client, x)
    alone = run(client, x[3:4], instance_ids=[3])
    np.testing.assert_array_equal(alone.state["x"], all_of_them.state["x"][3:4])
    pieces = run(client, x, chunk_steps=7)
    np.testing.assert_array_equal(pieces.state["x"], all_of_them.state["x"])
    other = run(client, x, seed=SEED + 1)
    assert (other.state["x"] != all_of_them.state["x"]).any()


def test_a_gradient_runs_the_draws_of_its_rollout(client):
    """Steps that the reverse pass computes again draw the same numbers: y hangs on every x."""

    @sg.world
    def squares(x: sg.State(3), y: sg.State(3), k: sg.Param = 0.3):
        moved = x + k
        return {"x": moved, "y": y + moved * moved}

    @squares.objective
    def end(y):
        return np.sum(y)

    initial = {"x": np.full((4, 3), 4.0), "y": np.zeros((4, 3))}
    options = dict(initial=initial, steps=40, seed=SEED, policy=IN_BF16)
    rollout = client.rollout(squares, **options)
    gradients = [
        client.gradient(squares, objective="end", wrt=["k"], **pieces, **options)
        for pieces in ({}, {"checkpoint_interval": 3, "chunk_steps": 7})
    ]
    for r in gradients:
        np.testing.assert_array_equal(r.state["y"], rollout.state["y"])
        np.testing.assert_array_equal(r.params["k"], gradients[0].params["k"])


def cast_world(rounding):
    b = ProgramBuilder("cast")
    x = b.state("x", (4,))
    b.next(x=b.cast(x, format="bf16", rounding=rounding))
    return sg.World(program=b.build())


@pytest.mark.parametrize(
    "rounding, expected",
    [
        ("nearest_even", [1.0, 1.015625, -1.0, -1.015625]),
        ("nearest_away", [1.0078125, 1.015625, -1.0078125, -1.015625]),
        ("toward_zero", [1.0, 1.0078125, -1.0, -1.0078125]),
    ],
)
def test_an_explicit_cast_rounds_as_it_says(client, rounding, expected):
    """Ties at odd multiples of 2^-8, where the ulp of bf16 is 2^-7."""
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, -1 - 3 * 2**-8])
    r = client.rollout(cast_world(rounding), steps=1, initial={"x": x}, policy="f64")
    np.testing.assert_array_equal(r.state["x"][0], expected)


def test_a_rounding_that_could_do_nothing_is_an_error(client):
    for role, preset in (("tape", "bf16_safe"), ("gradient", "bf16_safe"), ("state", "f64")):
        with pytest.raises(sg.InvalidArgument) as error:
            run(client, np.ones(3), policy=sg.Policy(preset).role(role, rounding="stochastic"))
        assert error.value.field == "spec.policy.roles[0].setting.rounding"
    with pytest.raises(sg.InvalidArgument, match="one of nearest_even"):
        run(client, np.ones(3), policy=sg.Policy("f32").role("state", rounding="up"))


def test_a_cast_of_a_site_that_could_do_nothing_is_an_error(client):
    @sg.world
    def net(x: sg.State[2], w: sg.Param[2, 2] = np.eye(2)):
        with sg.role("network", "net"):
            y = w @ x
        return 0.5 * y

    def fails(policy):
        with pytest.raises(sg.InvalidArgument) as error:
            client.rollout(net, steps=1, initial={"x": [1.0, 2.0]}, policy=policy)
        return error.value.field

    assert fails(sg.Policy("f64").site("net", rounding="stochastic")) == "spec.policy.sites[0].rounding"
    fp8 = sg.Policy("fp8_storage")
    for rounding in ("stochastic", "toward_zero", "nearest_away"):
        assert fails(fp8.site("net", rounding=rounding)) == "spec.policy.sites[0].rounding"
    assert fails(fp8.site("net", overflow="ieee")) == "spec.policy.sites[0].overflow"
    for policy in (fp8.site("net", overflow="saturate"), sg.Policy("f32").site("net", rounding="stochastic")):
        client.rollout(net, steps=1, initial={"x": [1.0, 2.0]}, policy=policy)


@sg.world
def two_parts(x: sg.State):
    with sg.role("solver", "fine"):
        y = x * 1.1
    with sg.role("solver", "coarse"):
        z = x * 1.1
    return y + 0 * z


def test_a_policy_for_a_site_holds_for_what_bears_its_name(client):
    """No loop and no test is called `coarse`."""

    def state(policy):
        return client.rollout(two_parts, steps=1, initial={"x": 1.0}, policy=policy).state["x"]

    assert state(sg.Policy("f32").site("coarse", format="bf16")) == np.float32(1.1)
    assert state(sg.Policy("f32").site("fine", format="bf16")) == np.float32(1.1015625)
    with pytest.raises(sg.InvalidArgument, match="has no site 'corse'; its sites: coarse, fine"):
        state(sg.Policy("f32").site("corse", format="bf16"))
