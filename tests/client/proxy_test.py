"""A proxy of the environment stands between no client and a server on its own machine."""

import pytest
from fake_server import fake  # noqa: F401

import simgrad as sg


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "dns:///localhost"])
def test_a_server_on_this_machine_is_dialled_past_the_proxy(fake, monkeypatch, name):
    for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    port = fake.target.rsplit(":", 1)[1]
    with sg.Client(f"{name}:{port}", retry=False, timeout=20) as client:
        assert client.info().version == "1"
    assert fake.calls == 1
