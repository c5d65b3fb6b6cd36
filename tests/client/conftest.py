"""A server that fails as it is told, for the tests of repeats."""

import pytest
from fake_server import FakeServer


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.stop()
