"""A token that no call can carry is told where it is given: when a client is made, or at the call."""

import contextlib
import pathlib

import numpy as np
import pytest
from fake_server import FakeServer, fake, work, world  # noqa: F401  a fixture

import simgrad as sg

# A secret that cannot be sent, and what is said of it.
WRONG = [
    (b"s3cret", TypeError, "a str, not bytes"),
    (7, TypeError, "a str, not int"),
    (pathlib.Path("s3cret"), TypeError, "a str, not PosixPath"),
    ("s3cret\n", ValueError, "printable ASCII on one line"),
    ("s3cret\x7f", ValueError, "printable ASCII"),
    ("s3crét", ValueError, "printable ASCII"),
]
STREAMS = ["rollout_stream", "gradient_stream"]


@contextlib.contextmanager
def refused(error, told):
    with pytest.raises(error, match=f"^token.*: .*{told}") as caught:
        yield
    assert "s3cr" not in str(caught.value)  # errors end up in logs


@pytest.mark.parametrize(("token", "error", "told"), WRONG)
@pytest.mark.parametrize("make", [sg.Client, sg.Pool])
def test_a_fixed_token_is_checked_when_a_client_is_made(make, token, error, told):
    with refused(error, told):
        make("localhost:1", token=token)


@pytest.mark.parametrize(("token", "error", "told"), [*WRONG, (None, TypeError, "a str, not NoneType")])
def test_what_a_function_gives_is_checked_at_the_call(fake, token, error, told):  # noqa: F811
    with sg.Client(fake.target, token=lambda: token) as client:
        for call in (client.info, client.worlds, lambda: client.rollout(world(), **work())):
            with refused(error, told):
                call()
    assert fake.calls == 0


@pytest.mark.parametrize("method", STREAMS)
def test_a_stream_that_is_sent_at_once_tells_it_at_once(fake, method):  # noqa: F811
    with sg.Client(fake.target, token=lambda: "s3cret\n") as client:
        with refused(ValueError, "printable ASCII"):
            getattr(client, method)(world(), **work())
    assert fake.calls == 0


@pytest.mark.parametrize("method", STREAMS)
def test_a_stream_of_a_pool_tells_it_at_once(method):
    servers = [FakeServer(), FakeServer()]
    with sg.Pool([server.target for server in servers], token=lambda: "s3cret\n") as pool:
        with refused(ValueError, "printable ASCII"):
            getattr(pool, method)(world(), **dict(work(), initial={"x": np.full((512, 1), 0.5)}))
    assert [server.calls for server in servers] == [0, 0]
    for server in servers:
        server.stop()


def test_the_error_of_a_function_is_raised_at_the_call(fake):  # noqa: F811
    def token():
        raise OSError("no such file")

    with sg.Client(fake.target, token=token) as client, pytest.raises(OSError, match="no such file"):
        client.rollout_stream(world(), **work())
