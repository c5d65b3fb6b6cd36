"""Arithmetic of tiny worlds against counts of NumPy; of a pool and of kept rollouts against that of one server."""

import json

import numpy as np
import pytest
from live_server import LiveServer
from one_by_one import OneByOne
from same_bits import unequal

import simgrad as sg
from simgrad import command_line

SMALLEST_NORMAL_F16 = 2.0**-14


@sg.world
def drift(x: sg.State, k: sg.Param = 0.01):
    return x + k


@drift.objective
def end(x):
    return x


@sg.world
def squares(x: sg.State):
    return x * x


@sg.world
def total(x: sg.State[4096], s: sg.State):
    return {"x": x, "s": np.sum(x)}


@sg.world
def layer(x: sg.State[64], y: sg.State[4], w: sg.Param[4, 64]):
    return {"x": x, "y": w @ x}


@sg.world
def decays(x: sg.State, k: sg.Param = 0.7):
    return k * x


@decays.objective
def decay_end(x):
    return x


def bf16(x):
    """Rounds to bf16, to nearest even; numbers are finite and within its range."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)) << np.uint64(16)).astype(
        np.uint32
    ).view(np.float32)


class Additions:
    """Counts additions in bf16, and those that are absorbed."""

    def __init__(self):
        self.made = self.absorbed = 0

    def add(self, a, b):
        """The sum; numbers or arrays of bf16. One of f64 is exact before it is rounded to f32: no case here rounds twice
        otherwise than once."""
        added = bf16(np.asarray(a, np.float64) + np.asarray(b, np.float64))
        counts = (np.asarray(a) != 0) & (np.asarray(b) != 0)
        self.made += int(np.count_nonzero(counts))
        self.absorbed += int(np.count_nonzero(counts & ((added == a) | (added == b))))
        return added


class Products:
    """Counts products in f16, and those that leave its range."""

    def __init__(self):
        self.made = self.underflows = self.overflows = 0

    def multiply(self, a, b):
        exact = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        with np.errstate(over="ignore"):
            product = exact.astype(np.float16)
        self.made += product.size
        is_small = (exact != 0) & (np.abs(product) < SMALLEST_NORMAL_F16)
        self.underflows += int(np.count_nonzero(is_small & (product != exact)))
        self.overflows += int(np.count_nonzero(np.isfinite(exact) & np.isinf(product)))
        return product


def one(arithmetic, operation, phase="forward"):
    """The one row of an operation."""
    [row] = [r for r in arithmetic.operations if (r.operation, r.phase) == (operation, phase)]
    return row


def role(arithmetic, name, phase="forward"):
    [row] = [r for r in arithmetic.roles if (r.role, r.phase) == (name, phase)]
    return row


@pytest.fixture(scope="module")
def servers():
    running = [LiveServer("--threads=1", "--device=cpu") for _ in range(2)]
    yield running
    for server in running:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def pool(servers):
    # Three shards, however fast the servers seem.
    with sg.Pool([s.target for s in servers], timeout=60, most_instances=256) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(servers):
    with sg.Client(servers[0].target, timeout=60) as connected:
        yield connected


# ---- Counts ----


def test_every_addition_of_a_state_that_stands_still_is_absorbed(client):
    found = client.rollout(
        drift, steps=64, initial={"x": np.full(3, 4.0)}, policy="bf16_unsafe", stride=1, arithmetic=3
    ).arithmetic
    row = one(found, "add")
    assert (row.role, row.results, row.additions, row.absorbed) == ("dynamics", 192, 192, 192)
    assert row.absorbed_share == 1.0 and row.line.startswith("arithmetic_client_test.py:")
    assert role(found, "dynamics").additions == 192
    assert "absorption in 100% of 192 additions" in str(found)


@pytest.mark.parametrize("stride", [1, 5, 64, 100])
def test_additions_count_at_sampled_steps(client, stride):
    steps, x = 64, bf16(np.linspace(0.3, 6.0, 20))
    found = client.rollout(
        drift, steps=steps, initial={"x": x}, policy="bf16_unsafe", stride=stride, arithmetic=20
    ).arithmetic
    counted, others, k = Additions(), Additions(), bf16(0.01)
    for t in range(steps):
        is_sampled = (t + 1) % stride == 0 or t == steps - 1
        x = (counted if is_sampled else others).add(x, k)
    assert 0 < counted.absorbed < counted.made
    row = one(found, "add")
    assert (row.additions, row.absorbed) == (counted.made, counted.absorbed)


def test_products_of_f16_underflow_and_overflow(client):
    x = np.float16([0.7, 3.0, 0.5, 0.999, 1.001, 0.0, 40.0])
    found = client.rollout(squares, steps=12, initial={"x": x}, policy="f16_unsafe", stride=1, arithmetic=7).arithmetic
    counted = Products()
    for _ in range(12):
        x = counted.multiply(x, x)
    assert counted.underflows == 3 and counted.overflows == 2
    row = one(found, "mul")
    assert (row.results, row.underflows, row.overflows) == (counted.made, counted.underflows, counted.overflows)
    assert row.underflow_share == counted.underflows / counted.made


def test_a_sum_counts_the_terms_that_it_loses(client):
    x = bf16(np.random.default_rng(0).uniform(-0.1, 1.0, (2, 4096)))
    policy = sg.Policy("bf16_unsafe").role("dynamics", order="sequential", accumulator="bf16")
    found = client.rollout(
        total, steps=3, initial={"x": x, "s": np.zeros(2)}, policy=policy, stride=2, arithmetic=2
    ).arithmetic
    counted = Additions()
    for row in x:
        accumulated = row[0]
        for term in row[1:]:
            accumulated = counted.add(accumulated, term)
    assert counted.absorbed > 1000
    row = one(found, "sum")
    # Steps 1 and 2 of 0 to 2 are sampled.
    assert (row.results, row.additions, row.absorbed) == (4, 2 * counted.made, 2 * counted.absorbed)


def test_a_product_of_matrices_counts_the_links_of_its_chains(client):
    random = np.random.default_rng(4)
    w, x = bf16(random.normal(size=(4, 64))), bf16(random.normal(size=64))
    policy = sg.Policy("bf16_unsafe").role("dynamics", accumulator="bf16")
    found = client.rollout(
        layer, steps=1, initial={"x": x, "y": np.zeros(4)}, params={"w": w}, policy=policy, instances=1, arithmetic=1
    ).arithmetic
    made = absorbed = 0
    for row in np.float64(w) * np.float64(x):  # products are exact in f64
        chain = 0.0
        for product in row:
            linked, rounded = float(bf16(chain + product)), float(bf16(product))
            made += chain != 0.0 != rounded
            absorbed += chain != 0.0 != rounded and linked in (chain, rounded)
            chain = linked
    found_row = one(found, "matmul")
    assert (found_row.results, found_row.additions, found_row.absorbed) == (4, made, absorbed) and absorbed > 0


def test_a_wide_policy_loses_nothing(client):
    found = client.rollout(drift, steps=64, initial={"x": [4.0]}, policy="f64", stride=1, arithmetic=1).arithmetic
    assert [row.lost for row in found] == [0] * len(found) and role(found, "dynamics").additions == 64
    assert "nothing lost" in str(found)


# ---- Gradients ----


def sums(client, instances, **options):
    """The gradient of each instance by k is 1 in each of 300 steps: in bf16 their sum ends at 256."""
    policy = sg.Policy("bf16_unsafe").role("gradient", format="bf16", accumulator="bf16")
    work = dict(steps=300, initial={"x": np.zeros(instances)}, params={"k": 1.0}, objective="end", wrt=["k"])
    return client.gradient(drift, policy=policy, **work, **options)


@pytest.mark.parametrize("stride", [1, 7])
def test_accumulations_of_gradients_count_the_steps_that_they_lose(client, stride):
    g = sums(client, 2, stride=stride, arithmetic=2)
    assert g.params["k"] == 512.0
    counted, others, accumulated = Additions(), Additions(), 0.0
    for t in reversed(range(300)):
        is_sampled = (t + 1) % stride == 0 or t == 299
        accumulated = (counted if is_sampled else others).add(accumulated, 1.0)
    row = one(g.arithmetic, "accumulate", "adjoint")
    assert (row.role, row.line) == ("gradient", "k") and accumulated == 256.0
    assert (row.additions, row.absorbed) == (2 * counted.made, 2 * counted.absorbed) and counted.absorbed > 0


def test_cotangents_underflow_inside_the_step(client):
    g = client.gradient(
        decays, steps=60, initial={"x": [1.0, 2.0]}, policy="f16_unsafe", stride=1, arithmetic=2, objective="decay_end",
        wrt=["x"],
    )  # fmt: skip
    k, cotangent, counted = np.float16(0.7), np.ones(2, np.float16), Products()
    for _ in range(60):
        cotangent = counted.multiply(cotangent, k)
    row = one(g.arithmetic, "mul", "adjoint")
    assert row.role == "adjoint" and 0 < row.underflows < row.results
    assert (row.results, row.underflows) == (counted.made, counted.underflows)
    x, forward = np.float16([1.0, 2.0]), Products()
    for _ in range(60):
        x = forward.multiply(x, k)
    assert one(g.arithmetic, "mul").underflows == forward.underflows != counted.underflows


def gradient(client, instances=6, **options):
    x = np.random.default_rng(3).uniform(0.05, 1.5, instances)
    work = dict(steps=40, initial={"x": x}, policy="f16_unsafe", stride=3, objective="decay_end", wrt=["x", "k"])
    return client.gradient(decays, **{**work, "params": {"k": 0.7}, **options})


def test_the_forward_rows_of_a_gradient_are_those_of_the_rollout(client):
    g = gradient(client, arithmetic=4)
    x = np.random.default_rng(3).uniform(0.05, 1.5, 6)
    r = client.rollout(
        decays, steps=40, initial={"x": x}, params={"k": 0.7}, policy="f16_unsafe", stride=3, objective="decay_end", arithmetic=4
    )
    assert g.arithmetic.of_phase("forward") == r.arithmetic and r.arithmetic.operations
    assert {r.role for r in g.arithmetic.of_phase("adjoint").roles} >= {"adjoint", "gradient"}


def test_instances_beyond_the_first_change_nothing(client):
    few, many = gradient(client, 3, arithmetic=3), gradient(client, 50, arithmetic=3)
    assert many.arithmetic == few.arithmetic and few.arithmetic.operations
    assert gradient(client, 3, arithmetic=1000).arithmetic == few.arithmetic
    assert gradient(client, 3, arithmetic=2).arithmetic != few.arithmetic


def test_asking_changes_nothing_else(client):
    plain, asked = gradient(client), gradient(client, arithmetic=6)
    differing = unequal(plain, asked)
    assert differing and all(path.startswith("result.arithmetic") for path in differing)
    assert not plain.arithmetic
    assert gradient(client, arithmetic=6, diagnostics="off").arithmetic == asked.arithmetic
    assert gradient(client, arithmetic=6, chunk_steps=7, checkpoint_interval=3).arithmetic == asked.arithmetic


@pytest.mark.parametrize("wrong", [-1, 1025])
def test_a_wrong_number_of_instances_is_refused_by_its_field(client, pool, wrong):
    told = []
    for asked in (client, pool):
        with pytest.raises(sg.InvalidArgument) as refused:
            gradient(asked, 700, arithmetic=wrong)
        assert refused.value.field == "spec.diagnostics.arithmetic_instances"
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert client.info().limits.max_arithmetic_instances == 1024


# ---- Kept rollouts ----


def kept(client, instances=6, **options):
    x = np.random.default_rng(3).uniform(0.05, 1.5, instances)
    work = dict(steps=40, initial={"x": x}, params={"k": 0.7}, policy="f16_unsafe", stride=3, objective="decay_end")
    return client.rollout(decays, keep=True, **work, **options)


def test_the_reversal_of_a_kept_rollout_has_the_rows_of_its_own_pass(client):
    whole = gradient(client, arithmetic=4)
    r = kept(client, arithmetic=4)
    g = r.vjp(wrt=["x", "k"])
    assert g.reused and g.arithmetic == whole.arithmetic
    # A second reversal counts its own pass, not both.
    doubled = r.vjp({"state": {"x": np.full(6, 4.0)}}, wrt=["x"])
    assert doubled.arithmetic.of_phase("forward") == r.arithmetic
    assert doubled.arithmetic.of_phase("adjoint") != whole.arithmetic.of_phase("adjoint")
    assert not kept(client).vjp(wrt=["x"]).arithmetic


def test_a_replay_has_the_same_rows(client):
    r = kept(client, arithmetic=4)
    r.kept.handle = ""
    g = r.vjp(wrt=["x", "k"])
    assert g.replayed and g.arithmetic == gradient(client, arithmetic=4).arithmetic


# ---- Pools ----


@pytest.mark.parametrize("count", [3, 300, 700])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_pool_tells_the_same_as_one_server(alone, pool, count, shuffled):
    ids = np.random.default_rng(8).permutation(700) if shuffled else range(700)
    options = dict(instance_ids=ids, arithmetic=count)
    expected, found = gradient(alone, 700, **options), gradient(pool, 700, **options)
    assert ", " in found.request_id  # several servers, or shards, answered
    assert unequal(expected, found) == [] and found.arithmetic == expected.arithmetic
    assert {(r.phase, r.operation) for r in found.arithmetic.operations} >= {("forward", "mul"), ("adjoint", "mul")}
    assert role(found.arithmetic, "dynamics").results == expected.arithmetic.roles[0].results > 0


def test_a_pool_adds_accumulations(alone, pool):
    expected, found = sums(alone, 700, stride=9, arithmetic=300), sums(pool, 700, stride=9, arithmetic=300)
    assert ", " in found.request_id and found.arithmetic == expected.arithmetic
    of_all, of_one = (
        one(g.arithmetic, "accumulate", "adjoint") for g in (found, sums(alone, 1, stride=9, arithmetic=1))
    )
    assert of_all.line == "k" and of_all.absorbed == 300 * of_one.absorbed > 0


def test_a_pool_tells_shards_that_lose_nothing_too(alone, pool):
    """At 4 a step of 0.01 is absorbed, and from 0 on it moves x: the last shard loses nothing."""
    x = np.repeat([4.0, 0.0], 350)
    work = dict(steps=20, initial={"x": x}, policy="bf16_unsafe", stride=1, arithmetic=700)
    expected, found = (c.rollout(drift, **work).arithmetic for c in (alone, pool))
    assert found == expected and role(found, "dynamics").absorbed == 350 * 20
    assert one(found, "add").results == 700 * 20


def test_a_pool_reverses_what_it_kept(alone, pool):
    whole = gradient(alone, 700, arithmetic=300)
    r = kept(pool, 700, arithmetic=300)
    assert r.arithmetic == whole.arithmetic.of_phase("forward")
    g = r.vjp(wrt=["x", "k"])
    assert g.reused and not g.replayed and g.arithmetic == whole.arithmetic
    shards = json.loads(r.kept.handle)
    shards[1][2] = "0" * len(shards[1][2])  # a handle that its server does not know: it simulates that shard again
    r.kept.handle = json.dumps(shards)
    g = r.vjp(wrt=["x", "k"])
    assert g.replayed and g.arithmetic == whole.arithmetic


# ---- Elsewhere ----


def test_runs_of_a_comparison_have_the_rows_of_calls_of_their_own(client, server):
    x = np.random.default_rng(3).uniform(0.05, 1.5, 6)
    work = dict(steps=40, initial={"x": x}, params={"k": 0.7}, objective="decay_end", wrt=["x", "k"], stride=3, arithmetic=4)
    together = client.compare(decays, policies=("f32", "f16_unsafe"), **work)
    assert together.results["f16_unsafe"].arithmetic == gradient(client, arithmetic=4).arithmetic
    assert not any(row.lost for row in together.results["f32"].arithmetic)
    with OneByOne(server.target, timeout=60) as each:
        alone = each.compare(decays, policies=("f32", "f16_unsafe"), **work)
    for name, result in together.results.items():
        assert alone.results[name].arithmetic == result.arithmetic


def test_the_command_line_prints_the_rows(server, capsys):
    arguments = ["rollout", f"{__file__}:drift", "--steps", "64", "--initial", "x=4", "--policy", "bf16_unsafe"]
    asked = [*arguments, "--arithmetic", "1", "--target", server.target]
    assert command_line.main(asked) == 0
    assert "absorption in 100% of 2 additions" in capsys.readouterr().out  # of steps 31 and 63
    assert command_line.main([*asked, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["arithmetic"]["operations"][0]
    assert (row["operation"], row["additions"], row["absorbed"]) == ("add", 2, 2)
