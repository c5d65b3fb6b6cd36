"""The server on a GPU, as far as that can be seen without one: the shipped binary over a driver and
an NVRTC that run its kernels on the host (tests/stand_in_gpu)."""

import contextlib
import math
import os
import signal
import subprocess
import time
import urllib.request

import numpy as np
import pytest
import stand_in_gpu
from result_bits import differences
from live_server import BINARY, LiveServer, eventually

import simgrad as sg

DEVICE_LOST = 4  # the exit code

pytestmark = stand_in_gpu.needed


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A kernel cache that the tests of this file share: the host compiler takes its time."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def start(kernels):
    """Starts servers over the stand-in; settings as stand_in_gpu.environment."""
    servers = []

    # The check of the server itself would launch kernels, and meet the errors meant for requests.
    def new(*flags, cache=kernels, check="0", **settings):
        flags = ("--threads=2", f"--kernel_cache={cache}", f"--self_check_interval={check}", *flags)
        servers.append(LiveServer(*flags, environment=stand_in_gpu.environment(**settings)))
        return servers[-1]

    yield new
    for server in servers:
        server.stop()


def connect(server):
    return sg.Client(server.target, timeout=120)


def ball(n=37, **options):
    rng = np.random.default_rng(3)
    return dict(
        steps=25,
        initial={"y": rng.uniform(0.01, 0.2, (n, 2)), "v": rng.normal(0, 1, (n, 2))},
        params={"k": rng.uniform(0.5, 1.5, n), "restitution": 0.8},
        objective="final_height",
        **options,
    )


WORLDS = {
    "projection": sg.World("bouncing_ball", contact="projection", elements=2),
    "toi": sg.World("bouncing_ball", contact="toi", elements=2),
}


def series(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


@pytest.mark.parametrize("policy", ["f32", "bf16_safe"])
@pytest.mark.parametrize("world", WORLDS)
def test_the_bits_are_those_of_the_cpu(start, client, world, policy):
    with connect(start("--device=cuda")) as on_gpu:
        for chunk in (7, 25):
            options = ball(policy=policy, chunk_steps=chunk, record=["y"])
            for call in ("rollout", "gradient"):
                ours = getattr(on_gpu, call)(WORLDS[world], **options)
                theirs = getattr(client, call)(WORLDS[world], **options)
                assert differences(ours, theirs) == []


def test_a_non_finite_value_gets_the_certificate_that_the_cpu_gives(start, client):
    """Detected on the device, replayed by the reference; born of finite inputs, forward and back."""
    overflow = {**ball(5, policy="f16_unsafe"), "initial": {"y": np.full((5, 2), 0.5)}}
    overflow["initial"]["v"] = np.array([[1.0, 1.0], [6e4, 1.0], [1.0, -6e4], [1.0, 1.0], [0, 0]])
    overflow["params"] = {"k": 1.0, "g": 6e4, "h": 4.0}
    with connect(start("--device=cuda")) as on_gpu:
        for call in ("rollout", "gradient"):
            ours = getattr(on_gpu, call)(WORLDS["projection"], **overflow)
            theirs = getattr(client, call)(WORLDS["projection"], **overflow)
            assert theirs.certificates and not theirs.ok.all()
            assert repr(ours.certificates) == repr(theirs.certificates)
            assert differences(ours, theirs) == []


def turns(x: sg.State[256]):
    return {"x": sg.for_loop(500, lambda i, y: y * 1.0001 + np.sum(y) * 1e-9, x)}


def test_a_launch_that_takes_longer_than_five_checks_of_the_server_is_no_failure(start):
    """The kernel of the check waits for it, as on a GPU that the launch fills."""
    interval = 0.5
    server = start("--device=cuda", check=f"{interval}s")
    world = sg.world(turns)
    with connect(server) as client:

        def seconds(steps):
            began = time.monotonic()
            assert client.rollout(world, steps=steps, initial={"x": np.ones((8, 256))}).ok.all()
            return time.monotonic() - began

        seconds(1)  # compiles
        steps = min(32, math.ceil(12 * interval / seconds(1)))  # so many are one launch
        assert seconds(steps) > 7 * interval
        assert eventually(lambda: series(server)["simgrad_ready"] == 1)
    assert server.process.poll() is None


def test_a_kept_rollout_is_reversed_without_a_step_forward_on_the_gpu_that_keeps_it(start):
    server = start("--device=cuda", gpus=2)
    with connect(server) as client:
        whole = client.gradient(WORLDS["projection"], **ball())
        kept = [client.rollout(WORLDS["projection"], keep=True, **ball()) for _ in range(2)]
        forward = 'simgrad_steps_total{direction="forward"}'
        before = series(server)[forward]
        for one in kept:
            answer = one.vjp()
            assert answer.reused
            assert len(whole.initial) == len(whole.params) == 2
            for group in ("initial", "params"):
                ours, theirs = getattr(answer, group), getattr(whole, group)
                assert {n: a.tobytes() for n, a in ours.items()} == {n: a.tobytes() for n, a in theirs.items()}
        assert series(server)[forward] == before


def test_a_kernel_that_is_being_improved_holds_up_no_end(start, tmp_path):
    server = start("--device=cuda", "--drain_timeout=60s", cache=tmp_path, best_seconds=300)
    with connect(server) as client:
        assert client.rollout(WORLDS["projection"], **ball()).ok.all()  # of the quick kernel
    time.sleep(1)  # the best one is being compiled
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=120) == 0
    assert time.monotonic() - began < 30


def test_a_gpu_is_used_where_there_is_one(start):
    server = start("--device=auto")
    with connect(server) as client:
        device = client.info().devices[0]
        assert (device.kind, device.name) == ("cuda", "stand-in GPU")
        client.rollout(WORLDS["toi"], **ball())
    metrics = series(server)
    assert metrics['simgrad_device_info{kind="cuda",name="stand-in GPU"}'] == 1
    assert metrics['simgrad_gpu_busy_seconds_total{gpu="0"}'] > 0
    assert metrics['simgrad_gpu_memory_used_bytes{gpu="0"}'] == 0


def test_work_goes_to_all_gpus_or_to_the_one_that_was_named(start):
    with pytest.raises(RuntimeError, match="there is no GPU 2; this machine has 2"):
        start("--device=cuda:2", gpus=2)
    both, one = start("--device=cuda", gpus=2), start("--device=cuda:1", gpus=2)
    with connect(both) as client:
        work = {**ball(chunk_steps=100), "steps": 3000}
        calls = [iter(client.rollout_stream(WORLDS["toi"], **work)) for _ in range(2)]
        begun = [next(call).steps for call in calls]  # now both run
        assert [n + sum(b.steps for b in call) for n, call in zip(begun, calls)] == [3000] * 2
    metrics = series(both)
    assert all(metrics[f'simgrad_gpu_busy_seconds_total{{gpu="{k}"}}'] > 0 for k in range(2))
    with connect(one) as client:
        client.rollout(WORLDS["toi"], **ball())
    assert series(one)['simgrad_gpu_busy_seconds_total{gpu="1"}'] > 0
    assert 'simgrad_gpu_busy_seconds_total{gpu="0"}' not in series(one)


def log_of(server):
    server.log.seek(0)
    return server.log.read()


def test_a_gpu_that_cannot_be_used_is_left_out_and_told(start):
    for flag in ("--device=auto", "--device=cuda"):
        server = start(flag, gpus=3, refusing=1)
        with connect(server) as client:
            assert client.info().devices[0].kind == "cuda"
        used = {f'simgrad_gpu_memory_total_bytes{{gpu="{k}"}}' in series(server) for k in (0, 2)}
        assert used == {True}
        assert 'simgrad_gpu_memory_total_bytes{gpu="1"}' not in series(server)
        told = "GPUs that cannot be used: GPU 1: cuDevicePrimaryCtxRetain"
        eventually(lambda: told in log_of(server))
    with pytest.raises(RuntimeError, match="GPU 0: cuDevicePrimaryCtxRetain"):
        start("--device=cuda", refusing=0)
    with pytest.raises(RuntimeError, match="--device=cuda:1: cuDevicePrimaryCtxRetain"):
        start("--device=cuda:1", gpus=2, refusing=1)
    cpu = start("--device=auto", refusing=0)
    with connect(cpu) as client:
        assert client.info().devices[0].kind == "cpu"


def test_a_gpu_with_a_display_is_used_and_told(start):
    server = start("--device=cuda", gpus=1, watched=1)
    told = "GPU 0: long launches may be stopped by the display's watchdog"
    eventually(lambda: told in log_of(server))


def test_memory_that_is_short_is_an_answer_and_comes_back(start):
    # Admitted against a limit far above what the device has.
    server = start("--device=cuda", "--memory_limit_bytes=1000000000", memory=3_000_000)
    with connect(server) as client:
        with pytest.raises(sg.ResourceExhausted, match="bytes free"):
            client.gradient(WORLDS["projection"], **ball(20_000))
        assert series(server)['simgrad_gpu_memory_used_bytes{gpu="0"}'] == 0
        assert series(server)['simgrad_cuda_errors_total{kind="out_of_memory"}'] >= 1
        assert client.gradient(WORLDS["projection"], **ball()).ok.all()
    assert server.stop() == 0


def test_a_lost_device_fails_the_work_then_health_then_the_process(start, tmp_path):
    errors = stand_in_gpu.ErrorFile(tmp_path)
    server = start("--device=cuda", "--fatal_exit_after=20s", error_file=errors.path)
    health = [BINARY, "--healthcheck", f"--port={server.port}"]
    with connect(server) as client:
        client.rollout(WORLDS["toi"], **ball())
        assert subprocess.run(health, capture_output=True).returncode == 0
        long = {**ball(chunk_steps=1), "steps": 100_000}
        work = client.rollout_stream(WORLDS["toi"], **long, retry=False)
        blocks = iter(work)
        next(blocks)
        errors.begin(errors.ILLEGAL_ADDRESS)
        with pytest.raises(sg.Unavailable) as failure:
            for _ in blocks:
                pass
        assert failure.value.reason == "DEVICE_LOST"
    began = time.monotonic()
    assert server.process.wait(timeout=30) == DEVICE_LOST
    assert time.monotonic() - began < 25
    assert subprocess.run(health, capture_output=True).returncode != 0
    server.log.seek(0)
    assert "the device is lost" in server.log.read()


def test_an_error_that_does_not_stick_fails_what_it_hits_and_no_more(start, tmp_path):
    errors = stand_in_gpu.ErrorFile(tmp_path)
    server = start("--device=cuda", error_file=errors.path)
    with connect(server) as client:
        whole = client.gradient(WORLDS["projection"], **ball())
        errors.begin(errors.INVALID_VALUE)
        with pytest.raises(sg.Internal):
            client.gradient(WORLDS["projection"], **ball())
        errors.end()
        assert differences(client.gradient(WORLDS["projection"], **ball()), whole) == []
    assert series(server)['simgrad_cuda_errors_total{kind="other"}'] >= 1
    assert series(server)['simgrad_gpu_memory_used_bytes{gpu="0"}'] == 0
    assert server.stop() == 0


def test_kernels_outlive_the_process(start, tmp_path):
    first = start("--device=cuda", cache=tmp_path)
    with connect(first) as client:
        result = client.rollout(WORLDS["projection"], **ball())
    eventually(lambda: [*tmp_path.glob("*.kernel")])  # the best one, made in the background
    assert first.stop() == 0
    made = sorted(tmp_path.iterdir())
    assert len(made) >= 1
    # A kernel that is made again takes the place of the file, and is another one.
    files = {path: path.stat().st_ino for path in made}
    second = start("--device=cuda", cache=tmp_path)
    with connect(second) as client:
        # Another tolerance, cap and horizon: numbers are no part of a kernel.
        other = sg.World("bouncing_ball", elements=2, tol=3e-3, max_iter=50)
        assert client.rollout(other, **{**ball(), "steps": 30}).ok.all()
        assert differences(client.rollout(WORLDS["projection"], **ball()), result) == []
    assert {path: path.stat().st_ino for path in sorted(tmp_path.iterdir())} == files


def test_warm_compiles_before_the_server_listens(start, tmp_path):
    server = start("--device=cuda", "--warm=true", cache=tmp_path)
    made = sorted(tmp_path.iterdir())
    assert len(made) >= 4  # two worlds, forward and gradient
    with connect(server) as client:
        y = np.full((3, 1), 0.5)
        client.rollout(
            sg.World("bouncing_ball"), steps=5, initial={"y": y, "v": 0 * y}, params={"k": 1.0}
        )
    assert sorted(tmp_path.iterdir()) == made


def test_metrics_are_there_while_warm_compiles(tmp_path, free_port):
    """A start may take longer than SimgradTargetDown waits."""
    flags = ("--device=cuda", "--warm=true", "--port=0", f"--metrics_port={free_port}", f"--kernel_cache={tmp_path}")
    environment = {**os.environ, **stand_in_gpu.environment(), "CCACHE_DISABLE": "1"}  # it takes seconds
    process = subprocess.Popen(
        [BINARY, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )

    def page():
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=30) as answer:
                return answer.read().decode()

    try:
        first = eventually(page)
        assert "\nsimgrad_ready 0\n" in first
        assert "listening" in process.stdout.readline()
        assert "\nsimgrad_ready 1\n" in page()
    finally:
        process.terminate()
        process.communicate(timeout=60)
