"""Servers and clients for the tests."""

import contextlib
import json
import socket

import pytest
from live_server import BINARY, LiveServer

import simgrad as sg


@pytest.fixture(scope="session")
def server():
    assert BINARY.exists(), f"{BINARY} is missing: scripts/build release simgrad-server"
    running = LiveServer()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    with sg.Client(server.target, timeout=120) as connected:
        yield connected


@pytest.fixture
def start():
    """Starts servers with flags; stops them at the end."""
    running = []

    def with_flags(*flags):
        running.append(LiveServer(*flags))
        return running[-1]

    yield with_flags
    for server in running:
        server.stop()


@pytest.fixture
def serve():
    """Starts further servers with flags of one's own; yields clients."""
    with contextlib.ExitStack() as stack:

        def start(*flags):
            running = LiveServer(*flags)
            stack.callback(running.stop)
            connected = stack.enter_context(sg.Client(running.target, timeout=120))
            connected.server = running
            return connected

        yield start


@pytest.fixture(scope="session")
def essay(root):
    return json.loads((root / "tests/data/essay_demos.json").read_text())


@pytest.fixture
def free_port():
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
