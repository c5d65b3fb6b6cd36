"""One call of Compare: what it gives is, to the bit, what calls of their own give, at one server and at a pool."""

import numpy as np
import pytest
from ended_world import ENDED, ended
from live_server import LiveServer, eventually
from one_by_one import OneByOne
from same_bits import unequal
from uploads_test import Meter

import simgrad as sg
from simgrad.why.recorder import Recorder
from simgrad.why.variants import with_order
from simgrad.why.work import Calls, Variant, work_of

N = 40
RANDOM = np.random.default_rng(5)
# A multiple of 1.1 sums up to 0 but for rounding.
BALANCED = RANDOM.integers(-8, 8, (N, 4)) / 64.0
BALANCED[:, 3] = -BALANCED[:, :3].sum(axis=1)
BALANCED *= 1.1


@sg.world
def nested(x: sg.State[3], k: sg.Param = 1.1):
    """Loops in loops, with tests in each, and a choice in every turn of a scan."""

    def outer(i, y):
        def inner(z):
            over = sg.test("over", z > 0.6)
            return sg.where(over, 0.5 * z, 0.7 * z * k)

        low = sg.while_loop(inner, y[0] + 0.1 * i, until=lambda z: z < 0.2, max_iter=12, site="shrink")
        return y * 0.9 + low * np.array([0.1, 0.2, -0.1])

    def turn(total, row):
        best = np.argmax(row + total)
        return total + 0.1 * row[best], total

    y = sg.for_loop(3, outer, x)
    total, _ = sg.scan(turn, 0.0 * x[0], np.stack([y, y * k, y[::-1]]))
    return y + 0.3 * np.sum(x) - 0.2 * total


@nested.objective
def spread(x):
    return np.sum(x * x)


@sg.world
def backwards(x: sg.State[3], k: sg.Param = 1.0):
    """A scan that begins with its last element."""

    def turn(y, row):
        z = sg.while_loop(lambda z: 0.5 * z, row + y, until=lambda z: z < 0.3, max_iter=9, site="halve")
        return sg.where(sg.test("high", z > 0.2), 0.3 * z * k, z + 0.1), z

    last, rows = sg.scan(turn, 0.1 * x[0], x, reverse=True)
    return 1.7 * rows + 0.2 * last


@backwards.objective
def total(x):
    return np.sum(x)


@sg.world
def balanced(x: sg.State[4], k: sg.Param = 0.3):
    held = sg.test("inside", np.sum(x) > 0.0)
    order = np.argsort(x)
    return np.where(held, x * 0.5 - 0.11 * k, x * 1.25 + 0.1)[order]


@balanced.objective
def square(x):
    return np.sum(x * x)


@sg.world
def plain(x: sg.State, k: sg.Param = 0.7):
    """Decides nothing."""
    return k * x + 0.1


@plain.objective
def end(x):
    return x


PROJECTION = sg.World("boundary_projection", elements=9, tol=float.fromhex("0x1.06p-10"))
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])
WORLDS = {
    "nested": (nested, dict(steps=7, initial={"x": RANDOM.uniform(0.1, 1.0, (N, 3))}, objective="spread")),
    "backwards": (backwards, dict(steps=6, initial={"x": RANDOM.uniform(0.1, 1.0, (N, 3))}, objective="total")),
    "balanced": (balanced, dict(steps=5, initial={"x": BALANCED}, objective="square")),
    "plain": (plain, dict(steps=5, initial={"x": RANDOM.uniform(0, 1, N)}, objective="end")),
    "ball": (
        sg.World("bouncing_ball", contact="toi"),
        dict(steps=90, initial={"y": np.linspace(0.3, 1.0, N)[:, None], "v": [0.0]}, params={"restitution": 0.8}, objective="final_height"),
    ),
    "projection": (
        PROJECTION,
        dict(steps=4, initial={"y": START + np.arange(N)[:, None] * 2.0**-22}, params={"k": 0.5}, objective="final_penetration"),
    ),
}  # fmt: skip
POLICIES = ["f64", "f32", "bf16_unsafe"]


@pytest.fixture(scope="module")
def old(server):
    with OneByOne(server.target, timeout=120) as client:
        yield client


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("name", WORLDS)
def test_a_comparison_is_that_of_calls_of_their_own(client, old, name, gradient):
    world, work = WORLDS[name]
    asked = dict(work, policies=POLICIES, orders=["reversed"], gradient=gradient)
    mine, theirs = client.compare(world, **asked), old.compare(world, **asked)
    assert unequal(mine, theirs) == []
    assert repr(mine) == repr(theirs) and mine.html() == theirs.html()
    parted = [pair.forks.count for pair in mine.pairs.values()]
    assert (max(parted) > 0) == (name != "plain") and mine.calls == theirs.calls - 3
    assert all(result.path is None for result in mine.results.values())


@pytest.mark.parametrize("name", ["nested", "balanced", "plain", "projection"])
def test_a_split_is_that_of_calls_of_their_own(client, old, name):
    world, work = WORLDS[name]
    asked = dict(work, policies=["f64", "bf16_unsafe"], split=True)
    mine, theirs = client.compare(world, **asked), old.compare(world, **asked)
    assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - 1
    assert all(result.path is not None for result in mine.results.values())


@pytest.mark.parametrize("name", [name for name in WORLDS if name != "backwards"])  # which sums nothing
def test_a_sensitivity_is_that_of_calls_of_their_own(client, old, name):
    world, work = WORLDS[name]
    for policy in ("f32", "bf16_unsafe"):
        asked = dict(work, policy=policy, runs=4)
        mine, theirs = client.sensitivity(world, **asked), old.sensitivity(world, **asked)
        assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - 4 and mine.differing >= 2
    assert mine.parted.any() == (name != "plain")


@pytest.mark.parametrize(
    "options",
    [
        dict(record=["x"], weights=RANDOM.normal(size=N), clip_norm=1e-3, return_tree=True, stride=2),
        dict(instance_ids=np.arange(7, 7 + 3 * N, 3), wrt=["k"], reduction="finite_only", program="text"),
        dict(first_instance=300, loops={"shrink": sg.Truncated(2)}, chunk_steps=2, checkpoint_interval=3),
        dict(objective="", cotangents={"state": {"x": RANDOM.normal(size=(N, 3))}}, seed=9),
    ],
)
def test_options_are_those_of_all_runs(client, old, options):
    world, work = WORLDS["nested"]
    asked = {**work, "params": {"k": RANDOM.uniform(0.9, 1.1, N)}, "policies": POLICIES, **options}
    mine, theirs = client.compare(world, **asked), old.compare(world, **asked)
    assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - 2
    for a, b in zip(mine.results.values(), theirs.results.values()):
        assert a.program.text == b.program.text


@pytest.mark.parametrize("keep", [False, True])
def test_rollouts_have_the_options_of_rollouts(client, old, keep):
    """A server keeps rollouts of calls of their own alone."""
    world, work = WORLDS["balanced"]
    options = dict(gradient=False, record=["x"], weights=RANDOM.normal(size=N), keep=keep, **({} if keep else {"margins": ["inside"]}))
    asked = {**work, "policies": POLICIES, **options}
    mine, theirs = client.compare(world, **asked), old.compare(world, **asked)
    for result in (*mine.results.values(), *theirs.results.values()):
        assert (result.kept is not None) == keep and keep == (not result.margins)
        result.kept = None
    assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - (0 if keep else 2)


def test_the_text_of_a_run_is_that_of_its_variant(client, old):
    world, work = WORLDS["nested"]
    found = client.compare(world, **work, policies=POLICIES)
    asked = {p: client.gradient(world, **work, policy=p, path=True, program="text") for p in POLICIES}
    for name, run in found.results.items():
        assert run.program.fingerprint == asked[name].program.fingerprint and run.program.text == asked[name].program.text
    assert len({run.program.text for run in found.results.values()}) == 3


def runs_of(client, world, work, policies):
    """The runs of one call, and where they first differ."""
    gradient = {n: x for n, x in work.items() if n != "steps"}
    with Calls("compare", 60.0, None, False) as calls:
        plain_world, asked = work_of(client, world, calls, **gradient)
        variants = [Variant(str(k), plain_world, policy, work["steps"]) for k, policy in enumerate(policies)]
        found = Recorder(asked, True).run(variants)
        assert calls.count == 1
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_first_differences_are_those_of_the_paths_that_are_recorded(client, name):
    """With sites and elements of every instance, under policies that part early and late."""
    world, work = WORLDS[name]
    policies = [sg.Policy("f64"), sg.Policy("f32"), sg.Policy("bf16_unsafe"), with_order(sg.Policy("f32"), "reversed")]
    found = runs_of(client, world, work, policies)
    paths = [client.gradient(world, **work, policy=p, path=True).path for p in policies]
    told = set()
    for differs, path in zip(found.differs, paths[1:]):
        expected = paths[0].first_difference(path)
        assert differs.step.dtype == expected.step.dtype and differs.step.tolist() == expected.step.tolist()
        assert differs.site == expected.site and differs.index == expected.index
        told |= set(expected.site) - {""}
    assert len(told) >= {"nested": 3, "backwards": 2, "balanced": 1, "plain": 0, "ball": 1, "projection": 1}[name], told


def test_first_differences_of_many_instances_come_in_pieces(serve, client):
    n = 20_000
    world, work = WORLDS["balanced"]
    work = {**work, "initial": {"x": np.tile(BALANCED, (n // N, 1))}, "steps": 3}
    policies = [sg.Policy(name) for name in POLICIES]
    small = serve("--max_message_bytes=65536")
    found = runs_of(small, world, work, policies)
    expected = runs_of(client, world, work, policies)
    assert unequal(found, expected) == [] and 0 < (found.differs[1].step >= 0).sum() < n
    paths = [client.gradient(world, **work, policy=p, path=True).path for p in policies]
    assert [unequal(d, paths[0].first_difference(p)) for d, p in zip(found.differs, paths[1:])] == [[], []]


def test_sites_of_first_differences_count_the_instances(client):
    world, work = WORLDS["nested"]
    forks = client.compare(world, **work, policies=["f64", "bf16_unsafe"]).pairs["bf16_unsafe"].forks
    a, b = (client.gradient(world, **work, policy=p, path=True).path for p in ("f64", "bf16_unsafe"))
    expected = a.first_difference(b)
    assert (forks.step == expected.step).all() and forks.site == expected.site
    assert forks.first.index == expected.index[forks.first.instance]
    assert len(forks.sites()) >= 2


@sg.world
def stops(x: sg.State[2], k: sg.Param = 1.0):
    """Two solves in a step. In bf16 neither turns, and k is of no effect."""

    def run(total, start):
        y = sg.while_loop(lambda y: 0.5 * y * k, start, until=lambda y: y <= 1.001, max_iter=20, site="halve")
        return total + y, y

    return sg.scan(run, 0.0 * x[0], x)[1]


@stops.objective
def sum_of_both(x):
    return np.sum(x)


@pytest.mark.parametrize("third, said", [([1.0023, 0.3], "stops at step 0"), ([0.5, 1.0023], "all paths part at the loop `halve`")])
def test_whether_all_instances_decide_alike_is_told_by_rollouts_up_to_the_fork(client, old, third, said):
    """The first solve turns once in f64, the second never, or the other way round: traces of the step do not tell it."""
    x = np.array([[1.0022, 0.5], [1.002, 0.4], third])
    asked = dict(steps=3, initial={"x": x}, params={"k": np.ones(3)}, objective="sum_of_both", policies=["f64", "bf16_unsafe"])
    mine, theirs = client.compare(stops, **asked), old.compare(stops, **asked)
    assert unequal(mine, theirs) == [] and said in mine.why and "is zero in 3 of 3 instances" in mine.why
    # The runs, one instance in both and along the other's path, and both up to the fork.
    assert (mine.calls, theirs.calls) == (1 + 4 + 1, 2 + 4 + 2)


@sg.world
def passes(x: sg.State[2], k: sg.Param = 1.0):
    """Two tests in a step. In bf16 neither holds, and k is of no effect."""

    def run(total, row):
        y = sg.where(sg.test("above", row > 1.001), k * row, 1.0 * row)
        return total + y, y

    return sg.scan(run, 0.0 * x[0], x)[1]


@passes.objective
def sum_of_rows(x):
    return np.sum(x)


def test_as_many_tests_as_instances_are_not_one_in_each(client, old):
    """In f64 the first test holds in one instance, the second in the other: as often as one that holds in both."""
    asked = dict(steps=1, params={"k": np.ones(2)}, objective="sum_of_rows", policies=["f64", "bf16_unsafe"])
    for other, said in (([0.5, 1.002], "all paths part at the test `above`"), ([1.002, 0.5], "the test `above` (compare_call_test.py:")):
        asked["initial"] = {"x": np.array([[1.0022, 0.5], other])}
        mine, theirs = client.compare(passes, **asked), old.compare(passes, **asked)
        assert unequal(mine, theirs) == [] and f"zero in 2 of 2 instances: {said}" in mine.why


# ---- Inputs that variants have of their own ----


def added(default):
    @sg.world
    def world(x: sg.State, k: sg.Param[2] = default, u: sg.Control = 0.0):
        return sg.where(sg.test("high", x > 3.0), x - k[0], x + k[0]) + 0 * k[1] + u

    @world.objective
    def end(x):
        return x

    return world


def test_the_defaults_of_a_world_are_its_variants_own_inputs(client, old):
    worlds = {"other": added(np.array([2.5, 0.5])), "same": added(np.array([1.0, 0.5]))}
    asked = dict(steps=3, initial={"x": [1.0, 1.5]}, objective="end", policies=["f64", "f32"], worlds=worlds)
    mine, theirs = (c.compare(added(np.array([1.0, 0.5])), **asked) for c in (client, old))
    assert unequal(mine, theirs) == [] and mine.calls < theirs.calls
    assert (mine.results["other"].values != mine.results["f64"].values).all()
    # A variant may have more inputs than the reference, but not fewer.
    more, fewer = (added(7.0), {"array": added(np.array([2.5, 0.5]))}), (added(np.array([2.5, 0.5])), {"number": added(7.0)})
    for (reference, worlds), runs in ((more, 1), (fewer, 2)):
        asked.update(policies=["f64"], worlds=worlds, gradient=False)
        mine, theirs = (c.compare(reference, **asked) for c in (client, old))
        looked = sum(p.forks.first is not None for p in mine.pairs.values())
        assert unequal(mine, theirs) == [] and mine.calls - (theirs.calls - 2) == runs, looked


def test_lines_are_those_of_each_variants_own_world(client, old):
    @sg.world(name="low")
    def low(x: sg.State):
        return sg.where(sg.test("high", x > 3.0), x - 1.0, x + 1.0)

    @sg.world(name="low")
    def lower(x: sg.State):
        return sg.where(sg.test("high", x > 2.0), x - 1.0, x + 1.0)

    asked = dict(steps=3, initial={"x": [1.0, 1.5]}, policies=["f64"], worlds={"lower": lower}, gradient=False)
    mine, theirs = client.compare(low, **asked), old.compare(low, **asked)
    assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - 1
    assert len({result.events["high"].line for result in mine.results.values()}) == 2


def test_steps_and_configurations_are_variants(client, old):
    asked = dict(WORLDS["projection"][1], policies=["f32", "bf16_unsafe"], configs=[{"steps": 2}, {"tol": 1e-4, "steps": 6}, {"max_iter": 3}])
    mine, theirs = (c.compare(PROJECTION, **asked) for c in (client, old))
    assert unequal(mine, theirs) == [] and mine.calls == theirs.calls - 4
    assert [r.steps for r in mine.results.values()] == [4, 4, 2, 6, 4]


# ---- A pool, and what a server does not take ----


def test_a_pool_gives_the_comparison_of_one_server(client, server):
    another = LiveServer()
    n = 700
    work = dict(steps=5, initial={"x": np.tile(BALANCED, (n // N + 1, 1))[:n]}, objective="square")
    try:
        with sg.Pool([server.target, another.target], timeout=60, most_instances=512) as pool:
            mine, theirs = (c.compare(balanced, **work, policies=POLICIES) for c in (client, pool))
            assert unequal(mine, theirs) == [] and mine.calls < theirs.calls
            assert mine.pairs["bf16_unsafe"].forks.count > 0
            mine, theirs = (c.sensitivity(balanced, **work, runs=2) for c in (client, pool))
            assert unequal(mine, theirs) == [] and mine.calls < theirs.calls
    finally:
        another.stop()


def test_more_variants_than_a_server_takes_are_calls_of_their_own(client, old):
    most = client.info().limits.max_variants
    work = dict(steps=1, initial={"x": [0.5]}, policy="f32", stochastic=False, gradient=False)
    for runs, calls in ((most, 1), (most + 1, most + 2)):
        found = client.sensitivity(plain, **work, runs=runs)
        assert found.calls == calls and unequal(found, old.sensitivity(plain, **work, runs=runs)) == []


def test_paths_that_are_refused_are_done_without_in_one_call_more(client, old):
    """What a terminal cost decides is in no path."""
    work = dict(ENDED, policies=POLICIES)
    told = []
    mine = client.compare(ended, **work, progress=lambda *of: told.append(of))
    assert unequal(mine, old.compare(ended, **work)) == []
    assert mine.pairs["bf16_unsafe"].forks.unrecorded is None and mine.pairs["bf16_unsafe"].forks.count == 1
    assert mine.results["f64"].events["floor"].count.size
    done = [d for _, d, _ in told]
    assert done == sorted(done) and told[-1][1] == told[-1][2]


def test_a_path_that_one_variant_alone_is_refused_is_no_ones(client, old):
    """With a cap of 10^5 the turns of a loop have a path that is too large."""

    def solved(most):
        @sg.world
        def world(x: sg.State):
            def body(y):
                return sg.where(sg.test("high", y > 0.7), 0.5 * y, 0.9 * y)

            return x + 0.0 * sg.while_loop(body, x, until=lambda y: y < 0.3, max_iter=most, site="halve")

        return world

    asked = dict(steps=400, initial={"x": np.linspace(0.5, 2.0, 2000)}, policies=["f64", "bf16_unsafe"], gradient=False)
    asked["worlds"] = {"long": solved(100_000)}
    mine, theirs = (c.compare(solved(40), **asked) for c in (client, old))
    assert unequal(mine, theirs) == []
    assert [pair.forks.unrecorded for pair in mine.pairs.values()] == [None, None]
    [pair] = client.compare(solved(40), **{**asked, "worlds": None}).pairs.values()
    assert pair.forks.unrecorded is not None


# ---- Errors, and the end ----


def test_errors_name_the_variant(client):
    world, work = WORLDS["projection"]
    for told, field, more in (
        ("^bf17: variants\\[1\\]", "variants[1].policy.preset", dict(policies=["f32", "f64", "bf17"])),
        ("^f32 tol=-1: variants\\[0\\]", "variants[0].world.config[tol]", dict(policies=["f32"], configs=[{"tol": -1}])),
        ("^f32 steps=-2: variants\\[0\\]", "variants[0].steps", dict(policies=["f32"], configs=[{"steps": -2}])),
        ("unknown preset 'bf17'", "spec.policy.preset", dict(policies=["bf17", "f64"])),
    ):
        with pytest.raises(sg.InvalidArgument, match=told) as error:
            client.compare(world, **{**work, **more})
        assert error.value.field == field


def test_nothing_runs_where_a_variant_is_wrong(serve):
    client = serve()
    ran = 'simgrad_rollouts_total{mode="compare",outcome="ok",world="boundary_projection"}'
    world, work = WORLDS["projection"]
    with pytest.raises(sg.InvalidArgument):
        client.compare(world, **work, policies=["f32", "f64", "bf17"])
    client.compare(world, **work, policies=["f32", "f64"])
    eventually(lambda: client.server.series(ran) >= 2)  # an answer may be here before it is counted
    assert client.server.series(ran) == 2


def test_a_run_that_is_not_finite_raises_where_that_was_asked_for(client, old):
    work = dict(steps=4, initial={"x": [0.5, 1e300]}, objective="end", policies=["f64", "f32"], on_nonfinite="raise")
    errors = []
    for c in (client, old):
        with pytest.raises(sg.NonFiniteError) as error:
            c.compare(plain, **work)
        errors.append(error.value)
    errors[1].result.path = None  # one answer was not told that there will be others
    assert str(errors[0]) == str(errors[1]) and unequal(errors[0].result, errors[1].result) == []


def test_an_observer_that_raises_ends_the_work_at_the_server(serve):
    class Enough(Exception):
        pass

    def bar(phase, done, total):
        if done > 20_000:
            raise Enough

    world, work = WORLDS["ball"]
    client = serve()
    with pytest.raises(Enough):
        client.compare(world, **{**work, "steps": 3_000_000}, policies=POLICIES, progress=bar, gradient=False)
    eventually(lambda: client.server.series('simgrad_rpc_in_flight{grpc_method="Compare"}') == 0)
    ended = 'simgrad_rollouts_total{mode="compare",outcome="cancelled",world="bouncing_ball"}'
    assert client.server.series(ended) == 1


def test_a_deadline_names_the_variant_that_was_running(client):
    world, work = WORLDS["ball"]
    configs = [{"steps": 10_000_000}]
    with pytest.raises(sg.DeadlineExceeded, match="passed in call 1, of f64 steps=10000000, which had the rest of it: .* of 10000000 steps"):
        client.compare(world, **work, policies=["f64", "f32"], configs=configs, timeout=4)


def test_a_server_that_dies_in_the_middle_is_asked_for_the_whole_again(free_port, client):
    world, work = WORLDS["ball"]
    work = {**work, "steps": 6000}
    expected = client.compare(world, **work, policies=POLICIES, gradient=False)
    running = [LiveServer(f"--port={free_port}")]
    with sg.Client(f"localhost:{free_port}", timeout=120) as client:

        def bar(phase, done, total):
            if done > 7000 and len(running) == 1:  # in the second run
                running[0].process.kill()
                running[0].stop()
                running.append(LiveServer(f"--port={free_port}"))

        found = client.compare(world, **work, policies=POLICIES, gradient=False, progress=bar)
    assert running.pop().stop() == 0
    assert len(running) == 1 and {r.tries for r in found.results.values()} == {2}
    assert unequal(found, expected) == []


# ---- What it costs, and what it counts ----


def test_inputs_travel_once(server):
    y = np.linspace(0.3, 1.0, 20_000)[:, None]
    world, work = sg.World("bouncing_ball", contact="toi"), dict(steps=2, initial={"y": y, "v": [0.0]}, gradient=False)
    meter = Meter(server.port)
    sent = []
    try:
        for kind in (sg.Client, OneByOne):
            with kind(meter.target, upload=False, timeout=60) as client:
                client.info()
                before = meter.sent
                found = client.compare(world, **work, policies=["f64", "f32", "bf16_safe", "bf16_unsafe"])
                sent.append((meter.sent - before) / y.nbytes)
                assert all(pair.forks.count == 0 for pair in found.pairs.values())
    finally:
        meter.close()
    assert 1.0 < sent[0] < 1.1 and 4.0 < sent[1] < 4.4


def test_content_of_variants_is_uploaded_once_and_named(server):
    """A program, a table of the reference, and one that a variant has of its own."""
    table = np.linspace(0.0, 1.0, 60_000)

    def reads(table):
        @sg.world
        def world(x: sg.State, t: sg.Data[60_000] = table):
            return x + 1e-6 * np.sum(t)

        return world

    asked = dict(steps=1, initial={"x": [0.5]}, policies=["f64"], gradient=False)
    meter = Meter(server.port)
    try:
        with sg.Client(meter.target, upload=100_000) as client, sg.Client(server.target, upload=False) as whole:
            sent, found = [], []
            for _ in range(3):
                before = meter.sent
                found.append(client.compare(reads(table), **asked, worlds={"other": reads(2 * table)}))
                sent.append((meter.sent - before) / table.nbytes)
            expected = whole.compare(reads(table), **asked, worlds={"other": reads(2 * table)})
    finally:
        meter.close()
    assert 1.9 < sent[0] < 2.2 and max(sent[1:]) < 0.2, sent
    assert [unequal(each, expected) for each in found] == [[]] * 3


def test_the_server_counts_runs_and_flips(serve):
    client = serve()
    world, work = WORLDS["projection"]
    pair = client.compare(world, **work, policies=["f32", "bf16_unsafe"]).pairs["bf16_unsafe"]
    told = lambda result: client.server.series(f'simgrad_path_comparisons_total{{result="{result}"}}')
    assert told("diverged") == pair.forks.count > 0 and told("equal") == N - pair.forks.count
    flips = client.server.series('simgrad_path_flips_total{site="projection",world="boundary_projection"}')
    a, b = (client.gradient(world, **work, policy=p, path=True).path["projection"] for p in ("f32", "bf16_unsafe"))
    assert flips == (a != b).sum()
    assert client.server.series('simgrad_rollouts_total{mode="compare",outcome="ok",world="boundary_projection"}') == 2
