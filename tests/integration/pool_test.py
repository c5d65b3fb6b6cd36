"""A pool of servers answers as one server does, to the bit, whatever becomes of its servers."""

import contextlib
import os
import signal
import socket

import numpy as np
import pytest
import stand_in_gpu
from certificates import Authority
from live_server import LiveServer, eventually, on_one_port
from same_bits import unequal

import simgrad as sg
from simgrad.pool.kept_shards import KeptShards

BALL = sg.World("bouncing_ball", contact="projection", elements=4)
CLAMPED = sg.World("bouncing_ball", contact="projection", elements=4, clamp=False)
N = 1500


FLAGS = ("--threads=1", "--device=cpu")


@pytest.fixture(scope="module")
def servers():
    running = [LiveServer(*FLAGS) for _ in range(3)]
    yield running
    for server in running:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def one(servers):
    with sg.Client(servers[0].target, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def pool(servers):
    # Three shards at least, however fast the servers seem.
    with sg.Pool([s.target for s in servers], timeout=60, most_instances=512) as client:
        yield client


def heights(seed=1, instances=N):
    return np.random.default_rng(seed).uniform(0.02, 0.5, (instances, 4))


def ball(**options):
    y = heights()
    return dict(
        {"steps": 40, "initial": {"y": y, "v": 0 * y}, "params": {"k": 0.5}, "stride": 7}, **options
    )


def weights(instances=N):
    return np.random.default_rng(2).normal(size=instances)


def is_cut(pool, call):
    """Calls, and sees that each of three servers, or more, had a part."""
    result = call(pool)
    assert len(result.request_id.split(", ")) >= 3
    return result


# ---- The same bits ----


def test_a_path_is_recorded_and_followed_over_all_servers(one, pool):
    recorded = lambda client: client.rollout(BALL, **ball(), policy="f64", path=True)
    whole, merged = recorded(one), is_cut(pool, recorded)
    assert unequal(whole, merged) == []
    assert merged.path.columns.keys() == whole.path.columns.keys()
    assert all((merged.path[site] == whole.path[site]).all() for site in whole.path.columns)
    forced = lambda client: client.gradient(
        BALL, **ball(), policy="bf16_unsafe", objective="final_height", path=merged.path
    )
    assert unequal(forced(one), is_cut(pool, forced)) == []


@pytest.mark.parametrize("mode", ["guarded", "torch"])
@pytest.mark.parametrize("scale", [1024.0, 2.0**126], ids=["grows", "falls"])
def test_a_dynamic_loss_scale_moves_as_with_one_server(one, pool, mode, scale):
    state = sg.LossScaleState(scale, 1, mode, 2.0, 0.5, 2)
    policy = sg.Policy("f16_safe").dynamic_loss_scale(state)
    call = lambda client: client.gradient(
        CLAMPED, **ball(), policy=policy, objective="final_height", weights=weights()
    )
    whole, merged = call(one), is_cut(pool, call)
    assert unequal(whole, merged) == []
    assert merged.loss_scale_state == whole.loss_scale_state
    assert merged.loss_scale_state.scale == (2048.0 if scale == 1024.0 else 2.0**125)


@pytest.mark.parametrize(
    "policy, diagnostics",
    [("f64", "summary"), ("f32", "instances"), ("bf16_unsafe", "off"), ("f16_safe", "summary")],
)
def test_a_rollout_has_the_bits_of_one_server(one, pool, policy, diagnostics):
    call = lambda client: client.rollout(
        BALL,
        **ball(record=["y", "penetration"], objective="final_height", weights=weights()),
        policy=policy,
        diagnostics=diagnostics,
        first_instance=1000,
    )
    assert unequal(call(one), is_cut(pool, call)) == []


@sg.world
def walk(x: sg.State, drift: sg.Param = 0.25, far: sg.Config = 4.0):
    """Draws by instance ids, two tests in a loop's predicate, an event and a halt."""
    y = x + drift + 0.5 * sg.normal()
    small = sg.while_loop(lambda v: 0.5 * v, y, until=lambda v: (abs(v) < 0.2) & (v < 9.0), max_iter=30)
    sg.observe("small", small)
    sg.halt("far", abs(y) > far)
    return {"x": sg.where(sg.test("right", y > 0), y, 0.5 * y)}


@walk.objective
def spread(x):
    return x * x


@sg.world
def slide(x: sg.State, v: sg.State, drag: sg.Param = 0.25):
    return {"x": x + 0.1 * v, "v": v - 0.1 * drag * v}


@slide.objective
def way(x):
    return x


@slide.objective
def energy(v):
    return 0.5 * v * v


def test_several_objectives_of_one_call_are_those_of_single_calls(one, pool):
    work = dict(steps=7, initial={"x": np.zeros(N), "v": np.linspace(1, 2, N)}, params={"drag": 0.5}, policy="bf16_safe")
    single = [one.gradient(slide, objective=name, **work) for name in ("energy", "way")]
    assert unequal(single[0].params, single[1].params)
    for client in (one, pool):
        several = client.gradient(slide, objective=["energy", "way"], **work)
        assert [unequal((a.params, a.value), (b.params, b.value)) for a, b in zip(several, single, strict=True)] == [[], []]
    assert unequal(one.gradient(slide, objective=("energy", "way"), **work), single) == []
    with pytest.raises(sg.InvalidArgument) as refused:
        one.gradient(slide, objective=["energy", "nothing"], **work)
    assert refused.value.field == "spec.objective"


def test_all_objectives_of_one_call_have_the_names_of_an_iterator(one, pool):
    work = dict(steps=2, initial={"x": np.zeros(N), "v": np.ones(N)}, params={"drag": 0.5})
    for client in (one, pool):
        for made in client.gradient(slide, objective=["energy", "way"], wrt=iter(["drag"]), record=iter(["x"]), **work):
            assert (list(made.params), list(made.initial), list(made.trajectory)) == (["drag"], [], ["x"])


@pytest.mark.parametrize("objectives", [[], ["way", "way"]])
def test_objectives_of_one_call_are_different_names(one, objectives):
    with pytest.raises(ValueError, match="different names"):
        one.gradient(slide, steps=1, initial={"x": 0.0, "v": 0.0}, instances=1, objective=objectives)


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_a_world_of_ones_own_with_explicit_ids_has_the_bits_of_one_server(one, pool, order):
    random = np.random.default_rng(4)
    ids = np.arange(N)[::-1] * 3 if order == "reversed" else random.permutation(4 * N)[:N]
    call = lambda client: client.rollout(
        walk,
        steps=12,
        initial={"x": np.linspace(-1, 1, N)},
        params={"drift": np.linspace(0, 0.5, N)},
        instance_ids=ids.tolist(),
        seed=5,
        record=["x", "small"],
        objective="spread",
        diagnostics="instances",
    )
    assert unequal(call(one), is_cut(pool, call)) == []
    assert call(one).halted


def spoilt():
    """Inputs of which some instances are not finite: more in the first shard than have certificates."""
    options = ball(objective="final_height", weights=weights(), first_instance=777)
    options["initial"]["y"][3:40, 0] = np.inf
    options["initial"]["y"][1200, 1] = np.nan
    return options


NARROW = (
    sg.Policy("f32")
    .role("gradient", format="bf16", accumulator="bf16")
    .role("objective", format="f16")
)
SCALED = sg.Policy("f32").role("gradient", format="f16", accumulator="f32").loss_scale(64.0)


@pytest.mark.parametrize(
    "policy, reduction, diagnostics",
    [
        ("f64", "finite_only", "instances"),
        ("f16_safe", "finite_only", "off"),
        (NARROW, "finite_only", "summary"),
        (SCALED, "all", "off"),
    ],
)
def test_a_gradient_has_the_bits_of_one_server(one, pool, policy, reduction, diagnostics):
    call = lambda client: client.gradient(
        CLAMPED, **spoilt(), policy=policy, reduction=reduction, diagnostics=diagnostics
    )
    expected = call(one)
    assert unequal(expected, is_cut(pool, call)) == []
    assert len(expected.certificates) == 16 and expected.skipped == (reduction == "all")


@pytest.mark.parametrize("most", (1e-3, 1e9))
@pytest.mark.parametrize("policy", ("f32", "f64"))
def test_a_clipped_gradient_has_the_bits_of_one_server(one, pool, policy, most):
    ask = lambda client: client.gradient(
        CLAMPED, **ball(), objective="final_height", policy=policy, clip_norm=most
    )
    whole, merged = ask(one), is_cut(pool, ask)
    assert unequal(whole, merged) == []
    assert whole.norm == merged.norm and 1e-3 < whole.norm < 1e9


def test_a_wrong_norm_is_refused_by_a_pool_too(pool):
    with pytest.raises(sg.InvalidArgument) as caught:
        pool.gradient(CLAMPED, **ball(), objective="final_height", clip_norm=-1.0)
    assert caught.value.field == "clip_norm"


def test_unconverged_runs_count_over_all_servers(one, pool):
    endless = sg.World("bouncing_ball", contact="projection", elements=4, clamp=False, tol=1e-30)
    ask = lambda client: client.gradient(
        endless, **ball(), objective="final_height", loops={"projection": sg.Implicit()}
    )
    whole, merged = ask(one), is_cut(pool, ask)
    assert merged.warnings == whole.warnings != []


def test_warnings_of_a_loss_scale_count_over_all_servers(one, pool):
    policy = sg.Policy("f16_safe").loss_scale(2.0**20)
    call = lambda client: client.gradient(
        CLAMPED, **ball(steps=8, objective="final_height"), policy=policy, diagnostics="off"
    )
    expected = call(one)
    assert unequal(expected, is_cut(pool, call)) == []
    beyond, counted = expected.warnings
    assert expected.skipped and "is beyond f16" in beyond and "cotangents overflowed f16" in counted


def test_the_reason_of_a_skipped_gradient_is_of_the_first_row_whatever_its_id(one, pool):
    ids = np.arange(N, dtype=np.uint64)[::-1]
    policy = sg.Policy("f16_unsafe").dynamic_loss_scale(None)
    cotangents = sg.Cotangents(state={"y": np.full((N, 4), 4.0)})
    call = lambda client: client.gradient(CLAMPED, **ball(steps=3), instance_ids=ids, cotangents=cotangents, policy=policy)
    expected = call(one)
    assert f"of instance {ids[0]} gave" in expected.warnings[-1]
    assert is_cut(pool, call).warnings == expected.warnings


def test_a_gradient_of_cotangents_and_of_each_instance_has_the_bits_of_one_server(one, pool):
    random = np.random.default_rng(6)
    cotangents = sg.Cotangents(
        state={"y": random.normal(size=(N, 4))}, trajectory={"v": random.normal(size=(N, 41, 4))}
    )
    call = lambda client: client.gradient(
        CLAMPED,
        **ball(params={"k": np.linspace(0.3, 0.6, N), "g": 9.0}, record=["v"]),
        cotangents=cotangents,
        controls={"u": sg.PerStep(np.ones((40, 4)))},
        return_tree=True,
    )
    expected = call(one)
    assert unequal(expected, is_cut(pool, call)) == []
    assert expected.tree.keys() == {"g", "u"} and expected.params["k"].shape == (N,)


def test_blocks_of_a_stream_are_those_of_all_instances(one, pool):
    work = ball(steps=1000, chunk_steps=50)
    expected = one.rollout(BALL, **work)
    stream = pool.rollout_stream(BALL, **work)
    blocks = list(stream)
    assert [b.first_step for b in blocks[1:]] == [b.first_step + b.steps for b in blocks[:-1]]
    assert len(blocks) > 1 and blocks[0].first_step == 0
    site = "projection"
    runs = np.concatenate([b.sites[site].iterations_mean for b in blocks])
    assert runs.tobytes() == expected.sites[site].iterations_mean.tobytes()
    assert unequal(expected, stream.result) == []


def test_shards_beyond_the_number_of_servers_wait_for_one(servers, one):
    told = []
    with sg.Pool([s.target for s in servers[:2]], timeout=60, most_instances=256) as pool:
        call = lambda client: client.rollout(
            BALL, **ball(), record=["y"], progress=lambda *at: told.append(at)
        )
        result = call(pool)
        assert len(result.request_id.split(", ")) == 6
    assert told[-1] == ("forward", 40, 40) and told == sorted(told)
    assert unequal(call(one), result) == []


def test_a_second_derivative_has_the_bits_of_one_server(one, pool):
    of = lambda client: client.hessian_vector(
        CLAMPED, {"params": {"k": 1.0}}, **ball(steps=5, objective="final_height"), policy="f64"
    )
    assert unequal(of(one), of(pool)) == []


@stand_in_gpu.needed
@pytest.mark.parametrize("method", ["rollout", pytest.param("gradient", marks=pytest.mark.long)])
def test_a_gpu_and_a_cpu_together_have_the_bits_of_one_server(servers, one, tmp_path, method):
    gpu = LiveServer(
        *("--device=cuda", "--threads=1", f"--kernel_cache={tmp_path}", "--self_check_interval=0"),
        environment=stand_in_gpu.environment(),
    )
    with sg.Pool([gpu.target, servers[0].target], timeout=60, most_instances=768) as pool:
        call = lambda client: getattr(client, method)(
            CLAMPED, **ball(steps=5, objective="final_height", record=["y"])
        )
        answer = call(pool)
        assert {*answer.device.split(", ")} == {"cuda", "cpu"} and unequal(call(one), answer) == []
        assert {d.kind for d in pool.info().devices} == {"cuda", "cpu"}
    assert gpu.stop() == 0


def test_a_batch_that_cannot_be_cut_goes_to_one_server(one, pool):
    options = {"steps": 5, "initial": {"y": [[0.1] * 4] * 8, "v": [[0.0] * 4] * 8}, "params": {"k": 0.5}}
    results = [pool.rollout(BALL, **options) for _ in range(6)]
    assert all("," not in r.request_id for r in results)
    assert all(unequal(one.rollout(BALL, **options), r) == [] for r in results)


def test_what_there_is_comes_from_all_servers(one, pool):
    info = pool.info()
    assert len(info.devices) == 3 and info.revision == one.info().revision
    assert pool.infos().keys() == {*pool.target.split(", ")}
    assert [w.name for w in pool.worlds()] == [w.name for w in one.worlds()]
    described = [c.program(BALL, objective="final_height").text for c in (one, pool)]
    assert described[0] == described[1]
    r = pool.rollout(BALL, **ball())
    assert r.program.text == one.program(BALL).text
    assert pool.rollout(BALL, **ball(), program="text").program.text == one.program(BALL).text


# ---- What is refused ----


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": np.array([*weights()[:-1], np.inf]), "objective": "final_height"},
        {"params": {"k": np.ones(N - 1)}},
        {"instance_ids": [*range(N - 1), 0]},
        {"objective": "nothing"},
    ],
)
def test_a_wrong_request_is_refused_in_the_words_of_one_server(one, pool, wrong):
    told = []
    for client in (one, pool):
        with pytest.raises(sg.InvalidArgument) as failed:
            client.rollout(BALL, **{**ball(), **wrong})
        told.append((failed.value.field, str(failed.value)))
    assert told[0] == told[1]


def test_an_unknown_world_is_refused_in_the_words_of_one_server(one, pool):
    told = []
    for client in (one, pool):
        with pytest.raises(sg.InvalidArgument) as failed:
            client.rollout(sg.World("nothing"), **ball())
        told.append(str(failed.value))
    assert told[0] == told[1]


@pytest.fixture
def each(servers):
    """A pool that cuts one shard for each server at most, so that all of them run at once."""
    with sg.Pool([server.target for server in servers], timeout=60) as client:
        yield client


def test_an_end_by_the_deadline_says_how_far_it_was(each):
    each.rollout(BALL, **ball(steps=1))
    with pytest.raises(sg.DeadlineExceeded, match=r"deadline of 3 s exceeded after \d+ of 5000000"):
        each.rollout(BALL, **ball(steps=5_000_000, chunk_steps=64), timeout=3)


def test_a_cancelled_call_ends(each):
    stream = each.rollout_stream(BALL, **ball(steps=5_000_000, chunk_steps=64))
    for _ in stream:
        break
    with pytest.raises(sg.Cancelled):
        stream.result


# ---- Servers that die ----


def test_a_killed_server_loses_nothing(one, start):
    """It has the first of six shards when it dies; the other server does all that is left."""
    lost, kept = start(*FLAGS), start(*FLAGS)
    work = ball(steps=1500, chunk_steps=50)
    expected = one.rollout(BALL, **work)

    def kill(phase, done, total):
        if lost.process.poll() is None:
            os.kill(lost.process.pid, signal.SIGKILL)

    with sg.Pool([lost.target, kept.target], timeout=60, most_instances=256) as pool:
        stream = pool.rollout_stream(BALL, **work, progress=kill)
        seen = [s for block in stream for s in range(block.first_step, block.first_step + block.steps)]
        assert seen == list(range(1500)) and stream.result.tries > 1
        assert unequal(expected, stream.result) == []
        again = pool.rollout(BALL, **work)
        assert unequal(expected, again) == [] and again.tries == 1


KEPT = dict(policy="bf16_safe", objective="final_height", record=["v"])


def cotangent(seed):
    random = np.random.default_rng(seed)
    return sg.Cotangents({"y": random.normal(size=(N, 4))}, {"v": random.normal(size=(N, 41, 4))})


@pytest.mark.parametrize("ids", ["in order", "shuffled"])
def test_a_kept_rollout_is_reversed_by_the_servers_of_its_shards(one, pool, ids):
    """Six shards of at most 512 on three servers."""
    shuffled = np.random.default_rng(4).permutation(4 * N)[:N].tolist()
    work = ball(**KEPT, **({"instance_ids": shuffled} if ids == "shuffled" else {}))
    run = pool.rollout(CLAMPED, keep=sg.Keep(state=["y"], trajectory=["v"]), weights=weights(), **work)
    asked = [cotangent(seed) for seed in range(2)]
    for made, sent in zip(run.vjps(asked, return_tree=True), asked):
        assert made.reused and not made.replayed and len(made.request_id.split(", ")) >= 3
        whole = one.gradient(CLAMPED, cotangents=sent, weights=weights(), return_tree=True, **work)
        assert unequal(whole, made) == []
    assert unequal(one.gradient(CLAMPED, **work, wrt=["k"]), run.vjp(None, wrt=["k"], weights=None)) == []


def noting(calls, name, method):
    def call(*arguments, **options):
        calls.append(name)
        return method(*arguments, **options)

    return call


@pytest.mark.parametrize("how", ["expires", "dies"])
def test_a_lost_shard_alone_is_simulated_again(one, start, how):
    stays, goes = start(*FLAGS), start(*FLAGS, "--kept_run_ttl=1s")
    with sg.Pool([goes.target, stays.target], timeout=60) as pool:
        run = pool.rollout(CLAMPED, keep=sg.Keep(state=["y"], trajectory=["v"]), **ball(**KEPT))
        shards = KeptShards.of(run.kept.handle)
        assert {target for k, target in enumerate(shards.targets) if shards.at(k, target)} == {stays.target, goes.target}
        calls = []
        stub = next(s for s in pool._service.servers.known() if s.target == stays.target).stub
        for name in ("Vjp", "Gradient"):
            setattr(stub, name, noting(calls, name, getattr(stub, name)))
        if how == "dies":
            os.kill(goes.process.pid, signal.SIGKILL)
        else:
            eventually(lambda: goes.has_dropped(shards.keepers.count(goes.target)))
        again = run.vjp(cotangent(1))
        assert again.replayed and not again.reused
        assert calls.count("Vjp") == 1  # of its own shard
        if how == "expires":
            shards = KeptShards.of(run.kept.handle)
            kept = {target for k, target in enumerate(shards.targets) if shards.at(k, target)}
            assert kept == {stays.target}
        whole = one.gradient(CLAMPED, cotangents=cotangent(1), **ball(**KEPT))
        assert unequal(whole, again) == []


def test_a_server_that_is_named_no_more_reverses_what_it_keeps_and_gets_no_new_work(one, start):
    stays, goes = start(*FLAGS), start(*FLAGS)
    listed = [goes.target, stays.target]
    with sg.Pool(lambda: list(listed), timeout=60) as pool:
        servers = pool._service.servers
        run = pool.rollout(CLAMPED, keep=sg.Keep(state=["y"], trajectory=["v"]), **ball(**KEPT))
        busy = servers.claim(lambda known: next(s for s in known if s.target == goes.target))  # a call that goes on
        listed.remove(goes.target)
        servers._looked_up = None  # the seconds until it looks again
        calls = []
        for name in ("Rollout", "Vjp", "Gradient"):
            setattr(busy.stub, name, noting(calls, name, getattr(busy.stub, name)))
        made = run.vjp(cotangent(1))
        assert made.reused and not made.replayed and "Vjp" in calls
        assert unequal(one.gradient(CLAMPED, cotangents=cotangent(1), **ball(**KEPT)), made) == []
        calls.clear()
        assert unequal(one.rollout(CLAMPED, **ball(**KEPT)), pool.rollout(CLAMPED, **ball(**KEPT))) == []
        assert calls == [] and pool.infos().keys() == {stays.target}
        # It is closed with its last call, and its shards are simulated again.
        servers.ended(busy)
        servers._looked_up = None
        assert run.vjp(cotangent(1)).replayed and calls == []


def test_without_any_server_the_error_says_so(start):
    servers = [start(*FLAGS), start(*FLAGS)]
    with sg.Pool([s.target for s in servers], retry=sg.Retry(patience=0.5), timeout=60) as pool:
        pool.rollout(BALL, **ball())
        for server in servers:
            server.process.kill()
            server.process.wait()  # else its port may still be open
        with pytest.raises(sg.Unavailable) as failed:
            pool.rollout(BALL, **ball())
        where = ", ".join(s.target for s in servers)
        assert f"cannot connect to {where}: connection refused" in str(failed.value)


def test_a_pool_finds_the_addresses_of_a_name(servers, one):
    port = servers[1].port
    with sg.Pool(f"dns:///localhost:{port}", timeout=60) as pool:
        assert f"ipv4:127.0.0.1:{port}" in pool.infos()
        assert unequal(one.rollout(BALL, **ball()), pool.rollout(BALL, **ball())) == []


@contextlib.contextmanager
def of_one_name(monkeypatch, *flags, **how):
    """(pool of the name localhost, its addresses, two servers); the first address alone is there at first."""
    running, addresses = on_one_port(*FLAGS, *flags), ["127.0.0.1"]
    found = lambda host, port, type: [(socket.AF_INET, type, 6, "", (ip, port)) for ip in addresses]
    monkeypatch.setattr("simgrad.pool.servers.socket.getaddrinfo", found)
    monkeypatch.setattr("simgrad.pool.servers._FRESH_SECONDS", 0.0)
    try:
        name = f"dns:///localhost:{running[0].port}"
        with sg.Pool(name, timeout=60, most_instances=1024, **how) as pool:
            yield pool, addresses, running
    finally:
        for server in running:
            server.stop()


def test_addresses_of_a_name_come_and_go(monkeypatch, one):
    call = lambda client: client.rollout(BALL, **ball())
    with of_one_name(monkeypatch) as (pool, addresses, running):
        names = [f"ipv4:127.0.0.{i}:{running[0].port}" for i in (1, 2)]
        assert pool.infos().keys() == {names[0]}
        addresses.append("127.0.0.2")
        assert pool.infos().keys() == {*names}
        assert unequal(call(one), call(pool)) == []
        addresses.remove("127.0.0.1")
        running[0].stop()
        answer = call(pool)
        assert answer.tries == 1 and unequal(call(one), answer) == []  # nobody asks where no server is
        assert pool.infos().keys() == {names[1]}


def test_a_certificate_is_for_the_name_that_addresses_were_found_by(monkeypatch, one, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")  # for localhost and 127.0.0.1
    flags = (f"--tls_certificate={certificate}", f"--tls_key={key}")
    trusted = {"credentials": sg.tls(authority.certificate)}
    with of_one_name(monkeypatch, *flags, **trusted) as (pool, addresses, running):
        addresses[:] = ["127.0.0.2"]
        assert pool.infos().keys() == {f"ipv4:127.0.0.2:{running[1].port}"}
        call = lambda client: client.rollout(BALL, **ball(steps=3))
        assert unequal(call(one), call(pool)) == []
        with sg.Pool(f"127.0.0.2:{running[1].port}", retry=False, **trusted) as by_address:
            with pytest.raises(sg.Unavailable):
                by_address.infos()


FEW = ball(steps=4, objective="final_height")
FEW["initial"] = {name: field[:600] for name, field in FEW["initial"].items()}


def test_a_comparison_over_a_pool_is_that_of_one_server(one, pool):
    compared = lambda client: client.compare(CLAMPED, **FEW, policies=("f64", "bf16_unsafe"))
    assert unequal(compared(one), compared(pool)) == []


def test_a_sensitivity_over_a_pool_is_that_of_one_server(one, pool):
    varied = lambda client: client.sensitivity(CLAMPED, **FEW, runs=2, orders=False)
    assert unequal(varied(one), varied(pool)) == []


@pytest.mark.long
def test_a_search_over_a_pool_finds_what_it_finds_with_one_server(one, pool):
    tuned = lambda client: client.tune(
        CLAMPED, **FEW, bound=0.1, formats=("f64", "f32"), roles=["dynamics"], sites=[]
    )
    assert repr(tuned(one)) == repr(tuned(pool))


def test_a_pool_follows_a_function_that_gives_its_targets(servers, one):
    targets = [servers[0].target]
    with sg.Pool(lambda: targets, timeout=60, most_instances=512) as pool:
        assert pool.infos().keys() == {servers[0].target}
        targets.append(servers[1].target)
        pool._service.servers._looked_up = None  # the seconds until it looks again
        call = lambda client: client.rollout(BALL, **ball())
        assert unequal(call(one), is_cut(pool, call)) == []
        assert pool.infos().keys() == set(targets)


def test_targets_must_be_named():
    for wrong in ([], [""], [7]):
        with pytest.raises(ValueError, match="targets"):
            sg.Pool(wrong)
    with pytest.raises(ValueError, match="most_instances 0: at least 1"):
        sg.Pool("localhost:1", most_instances=0)
