"""A server that froze: it answers nothing, and no connection ends."""

import signal
import time

import numpy as np
import pytest

import simgrad as sg
from simgrad import connection
from simgrad.connection import CONNECTION_OPTIONS
from live_server import LiveServer

pytestmark = pytest.mark.waits


BALL = sg.World("bouncing_ball")


def work(client, **options):
    start = {"y": np.linspace(0.1, 0.5, 8)[:, None], "v": np.zeros((8, 1))}
    return client.rollout(BALL, steps=20, initial=start, params={"k": 1.0}, timeout=120.0, **options)


@pytest.fixture
def soon(monkeypatch):
    """Asks every six seconds, for servers cut a client that asks more often than every five, and waits for two."""
    times = {"grpc.keepalive_time_ms": 6_000, "grpc.keepalive_timeout_ms": 2_000, "grpc.http2.ping_timeout_ms": 2_000}
    assert times.keys() <= dict(CONNECTION_OPTIONS).keys()
    monkeypatch.setattr(connection, "CONNECTION_OPTIONS", [(n, times.get(n, value)) for n, value in CONNECTION_OPTIONS])


@pytest.fixture
def frozen():
    server = LiveServer()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


def test_a_frozen_server_is_unavailable_long_before_the_deadline(soon, frozen):
    with sg.Client(frozen.target) as client:
        expected = work(client)
        frozen.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(sg.Unavailable):
            work(client, retry=False)
        assert time.monotonic() - begun < 60
        frozen.process.send_signal(signal.SIGCONT)
        assert np.array_equal(work(client).state["y"], expected.state["y"])


def test_a_pool_goes_to_the_other_server(soon, frozen):
    other = LiveServer()
    try:
        with sg.Pool([frozen.target, other.target]) as pool:
            expected = work(pool)
            frozen.process.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            again = work(pool)
            assert time.monotonic() - begun < 90
            assert np.array_equal(again.state["y"], expected.state["y"])
    finally:
        other.stop()
