"""What an orchestrator sees of a server in which something hangs and heeds no cancellation."""

import json
import signal
import subprocess
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
from live_server import BINARY as SHIPPED
from live_server import ROOT, LiveServer, eventually

import simgrad as sg

pytestmark = pytest.mark.waits

BINARY = ROOT / "build/release/tests/server/hanging_server"
BALL = sg.World("bouncing_ball")
# tests/server/hanging_executor.h: a batch of so many instances hangs, or makes everything hang.
HANGS, WEDGES = 13, 17
# Runs for longer than any test waits, if nobody cancels it.
ENDLESS = dict(
    steps=10_000_000,
    initial={"y": np.full((256, 1), 0.5), "v": np.zeros((256, 1))},
    params={"k": 1.0},
    chunk_steps=16,
)
FIVEFOLD = 5


def balls(instances):
    return dict(
        steps=5, initial={"y": np.full((instances, 1), 0.5), "v": np.zeros((instances, 1))}, params={"k": 1.0}
    )


def ready(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=60) as page:
        return "simgrad_ready 1" in page.read().decode().splitlines()


def await_hanging(server):
    assert server.process.stdout.readline() == "hanging\n"


def healthcheck(server):
    asked = [SHIPPED, "--healthcheck", f"--port={server.port}"]
    return subprocess.run(asked, capture_output=True).returncode


def notes(server):
    server.log.seek(0)
    lines = [json.loads(line) for line in server.log if line.startswith("{")]
    return [line["message"] for line in lines if line["event"] == "note"]


class Asked:
    """A call that runs beside the test and fails somehow; it is not repeated, as no server comes back."""

    def __init__(self, server, request):
        self.client = sg.Client(server.target, timeout=120, retry=False)
        self.thread = threading.Thread(target=self.ask, args=(request,))
        self.thread.start()

    def ask(self, request):
        with pytest.raises(sg.SimgradError):
            self.client.rollout(BALL, **request)

    def join(self):
        self.thread.join()
        self.client.close()


@pytest.fixture
def start():
    running = []

    def with_flags(*flags):
        running.append(LiveServer(*flags, binary=BINARY))
        return running[-1]

    yield with_flags
    for server in running:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()
        server.log.close()


def test_a_server_whose_engine_hangs_says_so_and_ends_with_its_own_code(start):
    server = start("--self_check_interval=1s", "--workers=4", "--drain_timeout=300s")
    eventually(lambda: ready(server))
    assert healthcheck(server) == 0
    asked = Asked(server, balls(WEDGES))
    eventually(lambda: not ready(server))
    assert healthcheck(server) == 1
    assert server.process.wait(timeout=60) == 5
    asked.join()
    told = notes(server)
    assert any("the smallest rollout did not end within 1s" in note for note in told)
    assert any("does not serve any more" in note for note in told)


@pytest.mark.parametrize("work", [balls(HANGS), dict(balls(HANGS), steps=100_000)], ids=["tiny", "queued"])
def test_the_process_ends_two_seconds_after_the_drain_timeout_whatever_hangs(start, work):
    server = start("--self_check_interval=0", "--drain_timeout=1s", "--workers=4")
    asked = Asked(server, work)
    await_hanging(server)
    server.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    assert server.process.wait(timeout=120) == 3
    assert time.monotonic() - begin < FIVEFOLD * (1 + 2)
    asked.join()
    assert any("not all work ends" in note for note in notes(server))


def drain(server):
    """The first signal, and until it has been taken."""
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: not ready(server))


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cancels_the_work_and_the_process_ends_soon(start, second):
    server = start("--drain_timeout=300s")
    with sg.Client(server.target, timeout=120, retry=False) as client:
        blocks = iter(client.rollout_stream(BALL, **ENDLESS))
        next(blocks)
        drain(server)
        next(blocks)
        server.process.send_signal(second)
        begin = time.monotonic()
        with pytest.raises(sg.Unavailable):
            for _ in blocks:
                pass
        assert server.process.wait(timeout=120) == 3
        assert time.monotonic() - begin < FIVEFOLD * 2
    assert any("a second signal" in note for note in notes(server))


def test_a_second_signal_ends_a_process_in_which_work_hangs(start):
    server = start("--self_check_interval=0", "--drain_timeout=300s", "--workers=4")
    asked = Asked(server, balls(HANGS))
    await_hanging(server)
    drain(server)
    server.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    assert server.process.wait(timeout=120) == 3
    assert time.monotonic() - begin < FIVEFOLD * 2
    asked.join()


def test_a_drain_in_which_nothing_hangs_ends_at_once_with_code_0(start):
    server = start("--drain_timeout=300s")
    with grpc.insecure_channel(server.target) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=120)
        next(watch)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=120) == 0


def test_a_server_that_has_not_started_yet_ends_at_once_where_it_is_asked_to():
    command = [BINARY, "--replica=never", "--port=0", "--metrics_port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "starting\n"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    assert process.returncode == 0 and "asked to end before it had started" in log
