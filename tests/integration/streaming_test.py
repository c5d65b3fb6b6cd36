"""Blocks arrive while the work runs, and add up to what the result says."""

import gc
import hashlib
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest
from live_server import eventually
from result_bits import differences

import simgrad as sg

BALL = sg.World("bouncing_ball", clamp=False, elements=2)
SENT = dict(
    steps=300,
    initial={"y": np.linspace(0.1, 1, 20).reshape(10, 2), "v": [0.0, 0.0]},
    params={"k": 1.0},
)


def test_blocks_cover_every_step_once_and_equal_the_result(client):
    stream = client.rollout_stream(BALL, **SENT, chunk_steps=32)
    blocks = list(stream)
    assert [b.first_step for b in blocks] == np.cumsum(
        [0] + [b.steps for b in blocks[:-1]]
    ).tolist()
    assert sum(b.steps for b in blocks) == 300
    joined = np.concatenate([b.sites["projection"].iterations for b in blocks])
    np.testing.assert_array_equal(joined, stream.result.sites["projection"].iterations)
    counts = np.concatenate([b.events["contact"].count for b in blocks])
    np.testing.assert_array_equal(counts, stream.result.events["contact"].count)


@sg.world
def crossing(x: sg.State, t: sg.Step):
    hit = sg.test("hit", x > 70.5)
    half = sg.while_loop(lambda y: y * 0.5, x, until=lambda y: y < 1.0, max_iter=40, site="halve")
    return {"x": np.where(hit, x + 1.0, x + 1.0) + 0.0 * half}


def test_the_words_of_a_block_count_steps_from_the_first_of_the_run(client, serve):
    """x is the number of the step; `hit` holds from step 71 on."""
    served = serve()
    with sg.Pool([served.server.target]) as pool:
        for one in (client, pool):
            for block in one.rollout_stream(crossing, steps=100, initial={"x": [0.0]}, chunk_steps=10):
                hit, halve = block.events["hit"], block.sites["halve"]
                assert hit.begins == halve.begins == block.first_step
                for trace in (hit, halve):
                    margins = np.abs(trace.margin_ulps)
                    closest = block.first_step + int(np.argmin(np.where(np.isnan(margins), np.inf, margins)))
                    assert f" at step {closest}, instance 0" in repr(trace)
                if hit.count.any():
                    assert f"true, first at step {max(71, block.first_step)};" in repr(hit)
                else:
                    assert "first at step" not in repr(hit)


def test_a_gradient_streams_both_passes(client):
    stream = client.gradient_stream(BALL, **SENT, objective="final_height", chunk_steps=32)
    phases = [block.phase for block in stream]
    assert phases[0] == "forward" and phases[-1] == "adjoint"
    assert stream.result.backward.largest.shape == (300,)
    assert stream.result.backward.exponents.sum(axis=1).max() > 0


@pytest.mark.parametrize("steps", [300, 20_000])
def test_progress_grows_and_reaches_the_end(client, steps):
    seen = []
    client.gradient(
        BALL,
        **{**SENT, "steps": steps},
        objective="final_height",
        chunk_steps=50,
        progress=lambda *told: seen.append(told),
    )
    assert seen[-1] == ("adjoint", steps, steps)
    for phase in ("forward", "adjoint"):
        done = [d for p, d, total in seen if p == phase and total == steps]
        assert done == sorted(done)
    # The forward pass of 20,000 steps takes longer than it takes to tell of it.
    assert steps == 300 or seen[0][0] == "forward"


def test_off_returns_no_diagnostics(client):
    r = client.rollout(BALL, **SENT, diagnostics="off")
    assert not r.sites and not r.events and not r.states_range
    assert r.ok.all() and r.path_signature


def test_trajectories_larger_than_a_message_arrive_whole(serve):
    client = serve("--max_message_bytes=65536")
    assert client.info().limits.max_message_bytes == 65536
    y = np.linspace(0.1, 1, 400).reshape(200, 2)
    sent = {**SENT, "initial": {"y": y, "v": np.zeros_like(y)}}
    r = client.rollout(
        BALL, **sent, record=["y", "v"], diagnostics="instances", objective="final_height"
    )
    assert r.trajectory["y"].shape == (200, 301, 2)  # 480 kB in f32
    np.testing.assert_array_equal(r.trajectory["y"][:, 0], y.astype(np.float32))
    np.testing.assert_array_equal(r.trajectory["y"][:, -1], r.state["y"])
    np.testing.assert_array_equal(r.trajectory["v"][:, -1], r.state["v"])
    assert r.sites["projection"].iterations.shape == (300, 200) and r.values.shape == (200,)


def test_a_large_result_comes_in_pieces(serve):
    small, large = serve("--max_message_bytes=65536"), serve()
    y = np.linspace(0.1, 1, 6000).reshape(3000, 2).astype(np.float32)
    answers = [
        c.gradient(
            BALL,
            steps=20,
            initial={"y": y, "v": np.zeros_like(y)},
            params={"k": 1.0},
            objective="final_height",
        )
        for c in (small, large)
    ]
    assert differences(*answers) == []


def test_a_program_text_larger_than_a_message_arrives_whole(serve):
    from simgrad.program import ProgramBuilder

    b = ProgramBuilder("long")
    x = b.state("x", ())
    total = x
    for _ in range(1500):
        total = total + x
    b.next(x=total)
    world = sg.World(program=b.build())
    sent = dict(steps=1, initial={"x": 0.5})
    narrow, wide = (
        c.rollout(world, **sent, program="text").program
        for c in (serve("--max_message_bytes=65536"), serve())
    )
    assert len(narrow.text) > 65536 // 2
    assert narrow.text == wide.text and narrow.fingerprint == wide.fingerprint
    assert hashlib.sha256(narrow.text.encode()).hexdigest() == narrow.fingerprint


def test_a_request_that_is_too_large_names_its_largest_field_and_both_sizes(serve):
    client = serve("--max_request_bytes=65536")
    sent = dict(steps=1, initial={"v": [0.0, 0.0], "y": np.zeros((20000, 2))}, params={"k": 1.0})
    for call in (client.rollout, client.gradient):
        with pytest.raises(sg.ResourceExhausted) as caught:
            call(BALL, **sent, objective="final_height")
        assert caught.value.field == "spec.initial[1].tensor"
        assert caught.value.reason == "LIMIT_EXCEEDED"
        assert "320000" in str(caught.value) and "65536" in str(caught.value)
    assert client.rollout(
        BALL, **{**sent, "initial": {"y": [0.5, 0.5], "v": [0.0, 0.0]}}, timeout=60
    ).ok.all()


def test_controls_of_every_step_of_4096_instances_are_taken(client):
    u = np.random.default_rng(5).uniform(-1, 1, (4096, 200, 2))
    assert u.nbytes > client.info().limits.max_message_bytes
    sent = dict(
        steps=200,
        initial={"y": [0.3, 0.6], "v": [0.0, 0.0]},
        params={"k": 1.0},
        objective="final_height",
    )
    g = client.gradient(BALL, **sent, controls={"u": u})
    assert g.controls["u"].shape == u.shape and g.connected["u"] == 4096
    # A request of a part of the instances is that part of the answer, to the bit.
    part = client.gradient(BALL, **sent, controls={"u": u[1000:1003]}, first_instance=1000)
    np.testing.assert_array_equal(part.controls["u"], g.controls["u"][1000:1003])


def test_a_server_that_sends_more_than_the_client_takes_is_told_apart(serve):
    served = serve(f"--max_message_bytes={1 << 20}")
    with sg.Client(served.server.target, max_message_bytes=1000) as narrow:
        with pytest.raises(sg.ResourceExhausted, match="max_message_bytes=1000"):
            narrow.worlds()


@pytest.mark.parametrize(
    "policy, dtype, bits",
    [
        ("bf16_safe", np.float32, np.uint16),
        ("f16_safe", np.float32, np.uint16),
        ("f64", np.float64, np.float64),
    ],
)
def test_low_formats_come_back_as_exact_f32_or_as_bits(client, policy, dtype, bits):
    wide = client.rollout(BALL, **SENT, policy=policy, record=["y"])
    raw = client.rollout(BALL, **SENT, policy=policy, record=["y"], raw=True)
    assert wide.state["y"].dtype == dtype and wide.trajectory["y"].dtype == dtype
    assert raw.state["y"].dtype == bits and raw.trajectory["y"].dtype == bits
    if policy == "bf16_safe":
        assert ((raw.state["y"].astype(np.uint32) << 16).view(np.float32) == wide.state["y"]).all()
    if policy == "f16_safe":
        assert (raw.state["y"].view(np.float16).astype(np.float32) == wide.state["y"]).all()


def test_an_input_travels_in_its_own_dtype_and_is_rounded_once(client):
    """2048 + 1 + 2^-20 rounds to 2050 in f16, but to 2048 by way of f32 (ties to even)."""
    v = np.array([2049 + 2.0**-20])
    world = sg.World("boundary_projection")
    raw = client.rollout(world, steps=0, initial={"y": v}, params={"k": 1.0}, policy="f16_unsafe")
    assert raw.state["y"][0, 0] == 2050.0
    through_f32 = client.rollout(
        world, steps=0, initial={"y": np.float32(v)}, params={"k": 1.0}, policy="f16_unsafe"
    )
    assert through_f32.state["y"][0, 0] == 2048.0


def test_shared_and_per_instance_inputs_are_told_apart_by_rank(client):
    per_step = np.random.default_rng(2).normal(size=(300, 2))
    shared = client.gradient(
        BALL, **SENT, controls={"u": sg.PerStep(per_step)}, objective="final_height", policy="f64"
    )
    repeated = client.gradient(
        BALL,
        **SENT,
        controls={"u": np.repeat(per_step[None], 10, 0)},
        objective="final_height",
        policy="f64",
    )
    assert shared.state["y"].tobytes() == repeated.state["y"].tobytes()
    assert shared.controls["u"].shape == (300, 2) and repeated.controls["u"].shape == (10, 300, 2)
    np.testing.assert_allclose(
        shared.controls["u"], repeated.controls["u"].sum(axis=0), rtol=1e-12, atol=1e-15
    )
    assert shared.params["k"].shape == () and shared.initial["v"].shape == (2,)
    assert shared.initial["y"].shape == (10, 2)


def test_an_answer_without_steps_has_its_sites_and_events(client):
    world = sg.World("bouncing_ball", contact="projection")
    sent = dict(steps=0, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})
    of_one = client.rollout(world, **{**sent, "steps": 1})
    for level in ("summary", "instances"):
        r = client.rollout(world, **sent, diagnostics=level)
        assert set(r.sites) == set(of_one.sites) and set(r.events) == set(of_one.events)
        assert set(r.states_range) == set(of_one.states_range)
        assert all(site.reasons.shape == (0, 4) for site in r.sites.values())
        assert all(event.first_step.tolist() == [-1] for event in r.events.values())
        assert r.state["y"].tolist() == [[0.5]]
    g = client.gradient(world, **sent, objective="final_height")
    assert set(g.sites) == set(of_one.sites) and g.backward.steps == 0
    assert client.rollout(world, **sent, diagnostics="off").sites == {}


def test_an_answer_without_steps_says_what_its_tests_are_for(client):
    @sg.world
    def fall(y: sg.State):
        return {"y": np.where(sg.test("floor", y < 0.5), -y, y - 0.1)}

    kinds = [
        {name: event.kind for name, event in client.rollout(fall, steps=steps, initial={"y": [0.7]}).events.items()}
        for steps in (0, 1)
    ]
    assert kinds == [{"floor": "event"}] * 2


def test_a_result_is_freed_with_its_last_name(client):
    gc.collect()
    gc.disable()
    try:
        for run, how in (
            (client.rollout, {}),
            (client.rollout, {"keep": True}),
            (client.gradient, {"objective": "final_height"}),
        ):
            result = weakref.ref(run(BALL, **SENT, **how))
            assert result() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("read", [0, 1, None])
def test_a_stream_however_much_of_it_was_read_keeps_no_connection(start, read):
    server = start()  # which no other client shares a connection to
    much = {"y": np.ones((512, 2)), "v": [0.0, 0.0]}
    work = dict(SENT, record=["y"], initial=much, steps=200_000 if read is not None else 300)
    with sg.Client(server.target) as client:
        stream = client.rollout_stream(BALL, **work)
        for number, _ in enumerate(stream if read != 0 else ()):
            if number + 1 == read:
                break
    eventually(lambda: server.series('simgrad_rpc_in_flight{grpc_method="Rollout"}') == 0)
    del stream
    gc.collect()
    eventually(lambda: server.series("simgrad_connections") == 0, 20)


INTERRUPTED = """
import os, signal, sys, threading
import numpy as np, simgrad as sg

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what it starts in the background
with sg.Client(sys.argv[1]) as client:
    world, work = sg.World("bouncing_ball"), dict(initial={"y": np.ones((512, 1)), "v": [0.0]}, params={"k": 1.0}, diagnostics="off")
    client.rollout(world, steps=2, **work)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    client.rollout(world, steps=10_000_000, **work)
"""


@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/python3"])
def test_an_interrupt_in_the_middle_of_an_answer_ends_the_caller(start, root, python):
    if subprocess.run([python, "-c", "import grpc"], capture_output=True).returncode:
        pytest.skip("no gRPC there: scripts/setup --with-debian-client")
    server = start()
    environment = {**os.environ, "PYTHONPATH": str(root / "client/python")}
    done = subprocess.run([python, "-c", INTERRUPTED, server.target], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == -signal.SIGINT and done.stderr.rstrip().endswith("KeyboardInterrupt")
    eventually(lambda: server.series('simgrad_rpc_in_flight{grpc_method="Rollout"}') == 0)
    eventually(lambda: server.series("simgrad_connections") == 0, 20)
