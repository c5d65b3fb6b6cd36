"""Params declared weights: all instances share them, and the server sums their gradients within each step."""

import numpy as np
import pytest
from live_server import LiveServer
from result_bits import differences
from same_bits import unequal

import simgrad as sg
from simgrad.pool.aligned_sum import Node, merged, multiply, pairwise, round_to
from simgrad.v1 import program_pb2

SIZES = (4, 8, 1)
WORLD = sg.worlds.cartpole(SIZES)
NAMES = ("w1", "b1", "w2", "b2")
STATES = ("x", "speed", "angle", "spin")
# Parts of two blocks of 256 ids: all of 256 to 511, and 512 to 611.
FIRST, N, STEPS = 256, 356, 12
IDS = np.arange(FIRST, FIRST + N)
NARROW = sg.Policy("f32").role("gradient", format="bf16", accumulator="f32")
POLICIES = ["f64", "f32", "bf16_safe", "f16_safe", NARROW]


def params():
    """Weights that push in earnest, and biases that are not 0."""
    random = np.random.default_rng(5)
    biases = {"b1": random.normal(0, 0.1, 8), "b2": random.normal(0, 0.1, 1)}
    return {n: 2 * w for n, w in sg.worlds.cartpole_weights(SIZES, 5).items()} | biases


def start(rows=N):
    random = np.random.default_rng(1)
    return {n: random.uniform(-0.3, 0.3, rows) for n in STATES}


def work(**options):
    """A gradient of all instances, each with a weight of its own in the sum."""
    return dict(
        {
            "steps": STEPS,
            "policy": "f64",
            "initial": start(),
            "params": params(),
            "objective": "balance",
            "weights": np.linspace(0.5, 1.5, N),
            "first_instance": FIRST,
        },
        **options,
    )


def chosen(rows, **options):
    """The work of some rows, in their order, under their ids."""
    whole = work(**options)
    whole["initial"] = {n: np.asarray(x)[rows] for n, x in whole["initial"].items()}
    whole["weights"] = whole["weights"][rows]
    del whole["first_instance"]
    return dict(whole, instance_ids=IDS[rows].tolist())


def with_params(world):
    """The same world, whose weights are params like others."""
    program = program_pb2.Program()
    program.CopyFrom(world.program)
    for i in program.inputs:
        i.weights = False
    return sg.World(program=program)


def of_weights(gradient):
    """All that an answer tells of its weights, in comparable form."""
    return {
        n: (gradient.params[n].tobytes(), gradient.connected[n], gradient.zero_share[n], gradient.magnitudes[n])
        for n in NAMES
    }


@pytest.fixture(scope="module")
def two():
    """A pool of two servers with one thread each, which cuts at every multiple of 256 ids."""
    running = [LiveServer("--threads=1", "--device=cpu") for _ in range(2)]
    with sg.Pool([s.target for s in running], timeout=60, most_instances=256) as pool:
        yield pool
    for server in running:
        assert server.stop() == 0


# ---- What they are ----


def test_the_program_declares_them(client):
    lines = client.program(WORLD).text.splitlines()
    declared = {line.split(" = ")[0].split()[-1] for line in lines if line.startswith("weights ")}
    assert declared == {*NAMES} and any(line.startswith("param ") and " gravity = " in line for line in lines)
    assert client.program(WORLD).fingerprint != client.program(with_params(WORLD)).fingerprint


def test_an_array_for_each_instance_is_refused(client, two):
    each = np.zeros((N, 4, 8))
    told = []
    for asked in (client, two):
        with pytest.raises(sg.InvalidArgument, match="'w1' is declared weights.*as \\[4, 8\\]") as refused:
            asked.gradient(WORLD, **work(params={**params(), "w1": each}))
        told.append((refused.value.field, str(refused.value)))
    assert told[0] == told[1] and told[0][0] == "spec.params[0].tensor.shape"
    assert client.gradient(with_params(WORLD), **work(params={**params(), "w1": each})).params["w1"].shape == each.shape


# ---- The numbers ----


def test_the_gradient_is_that_of_params_but_for_the_order_of_sums(client):
    """Both add the same numbers, one per instance and step: each sum is within (12 + 9) 2^-53 of the sum
    of magnitudes, which may be some hundred times the gradient."""
    found, expected = (client.gradient(w, **work()) for w in (WORLD, with_params(WORLD)))
    for n in NAMES:
        scale = np.abs(expected.params[n]).max()
        np.testing.assert_allclose(found.params[n], expected.params[n], rtol=0, atol=1e-12 * scale)
        assert found.connected[n] == expected.connected[n] == N
    assert found.value == expected.value
    for n in ("gravity", "limit"):
        assert n not in found.params, "only what is sent is differentiated for"
    assert all(found.initial[n].tobytes() == expected.initial[n].tobytes() for n in STATES)


def test_the_gradient_agrees_with_central_differences(client):
    g = client.gradient(WORLD, **work())
    random = np.random.default_rng(9)
    for n, value in params().items():
        direction = random.normal(0, 1, value.shape)
        up, down = (
            client.rollout(WORLD, **work(params={**params(), n: value + by * direction})).value
            for by in (1e-5, -1e-5)
        )
        found = float(np.sum(g.params[n] * direction))
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-6), n


@sg.world
def fed(x: sg.State, d: sg.Data[3], w: sg.Weights[3]):
    return x


@fed.stage_cost
def cost(d, w):
    return (w * d).sum()


SUMS = [("f64", "f64"), ("f32", "f64"), ("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")]


@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("format, accumulator", SUMS)
def test_sums_are_those_of_the_definition(client, format, accumulator, scale):
    """docs/numerics.md section 6. In each step instance i gives scale d[i] to w, which is exact: d has 7
    bits, and w[k] d[k] is a product in role objective."""
    random = np.random.default_rng(12)
    ids = np.sort(random.permutation(2000)[:700]).astype(np.uint64)
    d = random.integers(-127, 128, (700, STEPS, 3)) / 64.0
    weights = random.normal(1.0, 0.3, 700)
    policy = sg.Policy("f32").role("gradient", format=format, accumulator=accumulator)
    g = client.gradient(
        fed,
        steps=STEPS,
        policy=policy.loss_scale(scale),
        initial={"x": 0.0},
        params={"w": np.ones(3)},
        data={"d": sg.PerStep(d)},
        instance_ids=ids.tolist(),
        weights=weights,
        objective="cost",
    )
    blocks = []
    for number in np.unique(ids >> np.uint64(8)):
        rows = ids >> np.uint64(8) == number
        total = np.zeros(3)
        for t in reversed(range(STEPS)):
            leaves = multiply(format, weights[rows, None], scale * d[rows, t])
            entry = round_to(format, pairwise(ids[rows], leaves, accumulator))
            total = round_to(format, total + entry)
        blocks.append(Node(8, int(number), total))
    expected = round_to(format, merged(blocks, accumulator, 3))
    np.testing.assert_array_equal(g.params["w"].astype(np.float64), multiply(format, expected, np.array(1 / scale)))
    assert g.magnitudes["w"] == (np.abs(d[d != 0]).min(), np.abs(d).max())


# ---- The bits ----


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_order_of_a_request_changes_no_bit(client, policy):
    expected = client.gradient(WORLD, **work(policy=policy))
    shuffled = np.random.default_rng(3).permutation(N)
    for rows in (np.arange(N)[::-1], shuffled):
        g = client.gradient(WORLD, **chosen(rows, policy=policy))
        assert of_weights(g) == of_weights(expected)


@pytest.mark.parametrize("options", [{"checkpoint_interval": 1}, {"checkpoint_interval": 5}, {"chunk_steps": 4}], ids=str)
def test_checkpoints_and_chunks_change_no_bit(client, options):
    expected, found = (client.gradient(WORLD, **work(policy="bf16_safe", **o)) for o in ({}, options))
    assert of_weights(found) == of_weights(expected)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_pool_has_the_bits_of_one_server(client, two, policy):
    ask = lambda asked: asked.gradient(WORLD, **work(policy=policy, return_tree=True))
    whole, merged = ask(client), ask(two)
    assert len(merged.request_id.split(", ")) == 2
    assert unequal(whole, merged) == []
    assert {(t.level, t.index) for n in NAMES for t in whole.tree[n]} == {(8, 1), (8, 2)}


def test_a_pool_of_an_order_of_its_own_and_a_block_left_out_has_the_bits_of_one_server(client, two):
    """Ids 100 to 1023 in a shuffled order; no instance of the last block is finite."""
    ids = np.random.default_rng(7).permutation(np.arange(100, 1024))
    initial = start(len(ids))
    initial["x"][ids >= 768] = np.nan
    options = dict(initial=initial, reduction="finite_only", return_tree=True, clip_norm=0.5)
    sent = work(policy="f32", weights=None, instance_ids=ids.tolist(), **options)
    del sent["first_instance"]
    whole, merged = client.gradient(WORLD, **sent), two.gradient(WORLD, **sent)
    assert unequal(whole, merged) == [] and whole.left_out == 256
    assert {(t.level, t.index) for t in whole.tree["w1"]} == {(10, 0)}


@pytest.mark.parametrize("policy", ["f64", "bf16_safe"])
def test_a_kept_rollout_gives_the_bits_of_the_gradient(client, two, policy):
    random = np.random.default_rng(4)
    given = sg.Cotangents({"angle": random.normal(size=N)}, {"push": random.normal(size=(N, STEPS))})
    sent = work(policy=policy, record=["push"])
    weights = sent["weights"]
    keep = sg.Keep(state=["angle"], trajectory=["push"])
    for asked in (client, two):
        kept = asked.rollout(WORLD, keep=keep, **sent)
        made = kept.vjp(given)
        expected = client.gradient(WORLD, cotangents=given, **sent)
        assert differences(made, expected) == [] and of_weights(made) == of_weights(expected)
        assert made.reused and not made.replayed


# ---- Instances that are not finite ----


@pytest.mark.parametrize("policy", ["f64", "f32"])
@pytest.mark.parametrize("rows", [[37], [0, 255, 256]], ids=str)
def test_what_is_not_finite_counts_as_if_it_were_not_there(client, policy, rows):
    initial = start()
    initial["speed"][rows] = np.inf
    g = client.gradient(WORLD, **work(policy=policy, initial=initial, reduction="finite_only"))
    others = np.delete(np.arange(N), rows)
    assert g.left_out == len(rows) and not g.ok[rows].any()
    assert of_weights(g) == of_weights(client.gradient(WORLD, **chosen(others, policy=policy)))


@sg.world
def rooted(x: sg.State[3], w: sg.Weights[3, 3]):
    """The derivative of a root is infinite at 0, where the root itself is 0."""
    return np.sqrt(np.abs(x)) @ w


@rooted.objective
def end(x):
    return x.sum()


@pytest.mark.parametrize("kept", [False, True])
def test_an_instance_that_its_reversal_makes_non_finite_counts_as_if_it_were_not_there(client, kept):
    random = np.random.default_rng(8)
    x = random.uniform(0.5, 2.0, (300, 3))
    x[270] = 0.0
    sent = dict(steps=4, policy="f64", params={"w": random.uniform(0.2, 1.0, (3, 3))}, objective="end")
    if kept:
        g = client.rollout(rooted, initial={"x": x}, keep=True, **sent).vjp(reduction="finite_only")
    else:
        g = client.gradient(rooted, initial={"x": x}, reduction="finite_only", **sent)
    others = np.delete(np.arange(300), 270)
    expected = client.gradient(rooted, initial={"x": x[others]}, instance_ids=others.tolist(), **sent)
    assert g.left_out == 1 and [h.phase for h in g.health] == ["adjoint"]
    assert g.params["w"].tobytes() == expected.params["w"].tobytes()
    assert np.isfinite(g.params["w"]).all() and g.magnitudes["w"] == expected.magnitudes["w"]
    whole = client.gradient(rooted, initial={"x": x}, **sent)
    assert np.isnan(whole.params["w"]).any() and whole.skipped


# ---- What else asks for gradients ----


def test_a_split_of_the_error_is_by_instance(client):
    sent = work()
    del sent["policy"]
    comparison = client.compare(WORLD, policies=["f64", "bf16_unsafe"], split=True, **sent)
    parts = comparison.pairs["bf16_unsafe"].split
    assert parts["w1"].whole.shape == (N, 4, 8) and parts["w1"].size_of_rounding > 0


def test_a_second_derivative_takes_directions_of_weights(client):
    """The Hessian is symmetric: u'(H v) = v'(H u), each within the error of a central difference."""
    random = np.random.default_rng(2)
    u, v = ({n: random.normal(size=a.shape) for n, a in params().items()} for _ in range(2))
    of = lambda d: client.hessian_vector(WORLD, {"params": d}, **work(wrt=[f"param.{n}" for n in NAMES])).params
    hv, hu = of(v), of(u)
    one, other = (sum(float(np.sum(a[n] * b[n])) for n in NAMES) for a, b in ((u, hv), (v, hu)))
    assert one == pytest.approx(other, rel=1e-6)
