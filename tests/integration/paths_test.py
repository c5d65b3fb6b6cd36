"""Paths as data: recorded, followed, saved, compared, and refused where they do not fit."""

import grpc
import numpy as np
import pytest

import simgrad as sg
from simgrad import errors, request
from simgrad.program import ProgramBuilder
from simgrad.v1 import simgrad_pb2, simgrad_pb2_grpc, tensor_pb2

STEPS = 12
RNG = np.random.default_rng(7)
Y = RNG.uniform(0.05, 0.4, (6, 4))
V = RNG.uniform(-2.0, 1.0, (6, 4))


def ball(tol=1e-3, max_iter=25, **config):
    return sg.World("bouncing_ball", contact="projection", elements=4, tol=tol, max_iter=max_iter, **config)


def run(client, policy="f32", world=None, steps=STEPS, y=Y, v=V, **options):
    return client.rollout(
        world or ball(), steps=steps, initial={"y": y, "v": v}, params={"k": 0.5}, policy=policy, **options
    )


def gradient(client, policy="f32", **options):
    return client.gradient(
        ball(),
        steps=STEPS,
        initial={"y": Y, "v": V},
        params={"k": 0.5},
        policy=policy,
        objective="final_penetration",
        **options,
    )


@pytest.fixture(scope="module")
def plain(client):
    return run(client)


@pytest.fixture(scope="module")
def taken(client):
    return {policy: run(client, policy, path=True) for policy in ("f64", "f32", "bf16_unsafe")}


def test_recording_changes_nothing_else(plain, taken):
    recorded = taken["f32"]
    assert plain.path is None
    for name, state in plain.state.items():
        assert state.tobytes() == recorded.state[name].tobytes()
    assert (plain.path_signatures == recorded.path_signatures).all()
    assert plain.sites.keys() == recorded.sites.keys() and plain.events.keys() == recorded.events.keys()
    assert plain.program.fingerprint != recorded.program.fingerprint
    assert "path taken" in recorded.program.text


def test_paths_of_a_scan_in_reverse_part_at_its_last_element(client):
    """0.9 and 1.1 fork the last test of `cause`, which is the first that runs, and with it `effect` in all others."""

    @sg.world
    def suffix(x: sg.State, d: sg.Data[4]):
        def turn(c, e):
            c = np.where(sg.test("cause", e > 1.0), c + 10.0, c)
            return c, np.where(sg.test("effect", c > 5.0), c, e)

        total, _ = sg.scan(turn, x, d, reverse=True)
        return {"x": total}

    one, other = (
        client.rollout(suffix, steps=1, initial={"x": [0.0]}, data={"d": [0.0, 0.0, 0.0, last]}, path=True).path
        for last in (0.9, 1.1)
    )
    assert (one["effect"] != other["effect"]).sum() == 4 and one["cause"].shape == (1, 1, 4)
    parted = one.first_difference(other)
    assert (parted.site, parted.index) == (["cause"], [(3,)])


def test_a_path_says_how_often_loops_ran(taken):
    r = taken["f32"]
    counts = r.path["projection"]
    assert counts.shape[:2] == (len(Y), STEPS)
    assert (counts.min(axis=(0, *range(2, counts.ndim))) == r.sites["projection"].iterations_min).all()
    assert (counts.max(axis=(0, *range(2, counts.ndim))) == r.sites["projection"].iterations_max).all()


@pytest.mark.parametrize("policy", ["f64", "f32", "bf16_unsafe"])
def test_a_run_forced_along_its_own_path_is_the_same_run(client, taken, policy):
    own = taken[policy]
    forced = run(client, policy, path=own.path)
    assert forced.path is None or forced.path.nbytes == 0
    for name, state in own.state.items():
        assert state.tobytes() == forced.state[name].tobytes()
    assert set(forced.forced) == set(own.path.columns)
    assert all((site.count == 0).all() for site in forced.forced.values())
    assert "path given" in forced.program.text


def test_a_run_forced_along_anothers_path_iterates_as_that_did(client, taken):
    for mine, other in (("bf16_unsafe", "f64"), ("f64", "bf16_unsafe")):
        path = taken[other].path
        parted = taken[mine].path.first_difference(path)
        assert (parted.step >= 0).any(), "the policies were to part"
        forced = run(client, mine, path=path)
        site, theirs = forced.sites["projection"], taken[other].sites["projection"]
        assert (site.iterations_min == theirs.iterations_min).all()
        assert (site.iterations_mean == theirs.iterations_mean).all()
        assert (site.iterations_max == theirs.iterations_max).all()
        first = parted.step[parted.step >= 0].min()
        told = forced.forced[parted.site[np.flatnonzero(parted.step == first)[0]]]
        assert all((site.count[:first] == 0).all() for site in forced.forced.values())
        assert told.count[first] > 0
        assert np.isnan(told.margin_ulps[:first]).all() and np.isfinite(told.margin_ulps[first])
        assert (told.first_step >= 0).any()


@sg.world
def newton(y: sg.State):
    """The root of 1 + y^2, by at most 20 turns."""
    z, k = sg.while_loop(lambda z, k: (z - (z * z - 1 - y * y) / (2 * z), k + 1), (np.ones_like(y), np.int32(0)),
                         until=lambda z, k: (abs(z * z - 1 - y * y) < 1e-3) | (k >= 20), max_iter=30, site="newton")  # fmt: skip
    return {"y": 0.9 * y + 0.01 * z}


def test_a_loop_whose_formula_compares_once_has_margins_where_it_leaves_a_path(client):
    y = 0.3
    rolled = [client.rollout(newton, steps=1, policy=policy, initial={"y": [y]}, path=True) for policy in ("f64", "bf16_unsafe")]
    few, many = (int(r.path["newton"][0, 0]) for r in rolled)
    assert few < many, "bf16 was to go on where f64 stops"
    told = client.rollout(newton, steps=1, policy="f64", initial={"y": [y]}, path=rolled[1].path).forced["newton"]
    z, margins = 1.0, []
    for turn in range(many):
        if turn >= few:
            margins.append(abs(z * z - 1 - y * y) - 1e-3)  # it would have stopped
        z -= (z * z - 1 - y * y) / (2 * z)
    assert told.count[0] == len(margins) == many - few
    assert told.margin[0] == pytest.approx(max(margins), rel=1e-9)  # all are below 0
    told = client.rollout(newton, steps=1, policy="bf16_unsafe", initial={"y": [y]}, path=rolled[0].path).forced["newton"]
    assert told.count[0] == 1 and told.margin[0] > 0 and np.isfinite(told.margin_ulps[0])


def test_a_fork_at_the_entry_of_a_loop_has_the_margin_of_its_entry(client):
    """0.999 does not enter, 1 - which it is in bf16 - does; the loop's own test asks for 1e-9."""
    b = ProgramBuilder("entry")
    x = b.state("x")
    (last,), _, _ = b.while_loop(
        "newton",
        [x],
        lambda x: (x, b.value(1e-9), b.value(1.0)),
        lambda carried, _: [carried[0] * 0.25],
        max_iter=10,
        comparison="lt",
        has_entry=True,
    )
    b.next(x=last)
    world = sg.World(program=b)
    compared = client.compare(
        world, steps=1, initial={"x": [0.999]}, policies=["f64", "bf16_unsafe"], gradient=False
    )
    fork = compared.pairs["bf16_unsafe"].forks.first
    assert (fork.reference.iterations, fork.other.iterations) == (0, 10)
    assert fork.reference.exact and fork.reference.margin == pytest.approx(-1e-3)
    assert fork.other.exact and fork.other.margin == 0.0


def test_gradients_follow_paths(client, taken):
    own = gradient(client, path=True)
    assert own.path == taken["f32"].path
    forced = gradient(client, path=own.path)
    assert forced.params["k"].tobytes() == own.params["k"].tobytes()
    assert forced.initial["y"].tobytes() == own.initial["y"].tobytes()
    other = gradient(client, path=taken["bf16_unsafe"].path)
    assert other.values.tobytes() != own.values.tobytes()


def test_a_path_of_instances_alone_fits_them(client, taken):
    chosen = [4, 1]
    r = run(client, y=Y[chosen], v=V[chosen], path=taken["f32"].path.take(chosen))
    assert r.state["y"].tobytes() == taken["f32"].state["y"][chosen].tobytes()


def test_a_path_is_kept_in_a_file(tmp_path, taken):
    path = taken["f32"].path
    path.save(tmp_path / "path.of.f32")
    kept = sg.Path.load(tmp_path / "path.of.f32")
    assert kept == path and len(kept) == len(path) > 0
    assert {k: v.tolist() for k, v in kept.columns.items()} == {
        k: v.tolist() for k, v in path.columns.items()
    }
    np.savez(tmp_path / "other.npz", structure="")
    with pytest.raises(ValueError, match="is no path"):
        sg.Path.load(tmp_path / "other.npz")


def test_a_world_without_decisions_has_a_path_of_no_bytes(client):
    @sg.world
    def drift(x: sg.State[3], k: sg.Param = 0.25):
        return {"x": x - k * x}

    arguments = dict(steps=5, initial={"x": np.ones((2, 3))}, params={"k": 0.5})
    r = client.rollout(drift, path=True, **arguments)
    assert r.path.nbytes == 0 and len(r.path) == 0
    forced = client.rollout(drift, path=r.path, policy="bf16_unsafe", **arguments)
    alone = client.rollout(drift, policy="bf16_unsafe", **arguments)
    assert forced.state["x"].tobytes() == alone.state["x"].tobytes()
    assert forced.program.fingerprint == alone.program.fingerprint


def test_tolerances_and_formats_are_free_and_caps_are_not(client, taken):
    path = taken["f64"].path
    forced = run(client, "bf16_unsafe", world=ball(tol=0.05), path=path)
    assert forced.forced["projection"].count.sum() > 0
    with pytest.raises(sg.InvalidArgument, match="a path fits a world of the same") as refused:
        run(client, world=ball(max_iter=24), path=path)
    assert refused.value.field == "spec.path.forced.structure"
    assert refused.value.reason == "INVALID_FIELD"


@pytest.mark.parametrize("other", ["axis", "order"])
def test_a_path_of_an_operation_that_picks_other_elements_is_refused(client, other):
    def chooser(axis=0, reverse=False):
        @sg.world
        def chooses(x: sg.State[3, 3]):
            b = sg.builder()
            largest = b.argmax(x, [axis])
            sums = b.cumsum(x, [1], reverse=reverse)
            return {"x": x + 0.1 * sums + np.where(largest > 1, 1.0, 0.0)}

        return chooses

    work = dict(steps=2, initial={"x": np.random.default_rng(1).normal(size=(3, 3))})
    path = client.rollout(chooser(), path=True, **work).path
    assert client.rollout(chooser(), path=path, **work).ok.all()
    changed = chooser(axis=1) if other == "axis" else chooser(reverse=True)
    with pytest.raises(sg.InvalidArgument, match="a path fits a world of the same"):
        client.rollout(changed, path=path, **work)


def test_paths_of_other_sizes_are_refused(client, taken):
    path = taken["f32"].path
    for options in (dict(steps=STEPS - 1), dict(y=Y[:5], v=V[:5])):
        with pytest.raises(sg.InvalidArgument) as refused:
            run(client, path=path, **options)
        assert refused.value.field == "spec.path.forced.decisions.shape"
    with pytest.raises(TypeError, match="path is True"):
        run(client, path="yes")
    with pytest.raises(ValueError, match="cannot be compared"):
        path.first_difference(path.take([0]))


def test_what_is_no_path_is_refused_by_name(server, client, taken):
    """Messages that this client does not write."""
    path = taken["f32"].path.to_proto()
    spec = request.rollout_spec(
        ball(), dict, steps=STEPS, initial={"y": Y, "v": V}, params={"k": 0.5}, path=taken["f32"].path
    )

    def refusal(change):
        message = simgrad_pb2.RolloutRequest(spec=spec)
        change(message.spec.path)
        with grpc.insecure_channel(server.target) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                list(simgrad_pb2_grpc.SimgradStub(channel).Rollout(message))
        error = errors.from_rpc_error(refused.value)
        return type(error), error.reason, error.field

    def both(options):
        options.record = True

    def as_numbers(options):
        options.forced.decisions.dtype = tensor_pb2.DTYPE_I32

    def cut(options):
        options.forced.decisions.inline = path.decisions.inline[:-1]

    def nameless(options):
        options.forced.structure = ""

    def accented(options):  # which a message does not cut in the middle of a character
        options.forced.structure = "a" * 11 + "é"

    def huge(options):
        options.forced.decisions.shape[2] = 1 << 60

    refused = sg.InvalidArgument, "INVALID_FIELD"
    assert refusal(both) == (*refused, "spec.path.record")
    assert refusal(as_numbers) == (*refused, "spec.path.forced.decisions.dtype")
    assert refusal(cut) == (*refused, "spec.path.forced.decisions.inline")
    assert refusal(nameless) == refusal(accented) == (*refused, "spec.path.forced.structure")
    assert refusal(huge)[:2] == refused


def test_any_bytes_are_followed_to_an_end(client, taken):
    """A path that no run has taken asks for more iterations than a loop may run, and for every test."""
    path = taken["f32"].path.to_proto()
    for byte in (0, 255):
        path.decisions.inline = bytes([byte]) * len(path.decisions.inline)
        made = sg.Path(path.structure, taken["f32"].path.layout, np.full(path.decisions.shape, byte, np.uint8))
        forced = run(client, path=made)
        assert forced.sites["projection"].iterations_max.max() == (25 if byte else 0)


def test_a_path_that_is_too_large_is_refused_with_its_size(client):
    message = r"the path of 1000 instances in 9000000 steps takes \d+ bytes"
    with pytest.raises(sg.InvalidArgument, match=message) as refused:
        run(client, steps=9_000_000, y=Y[0], v=V[0], instances=1000, path=True)
    assert refused.value.reason == "LIMIT_EXCEEDED" and refused.value.field == "spec.path.record"
