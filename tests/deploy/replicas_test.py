"""Several servers behind one name, as docs/operations.md says."""

import contextlib
import urllib.request

import event_load
import numpy as np
import pytest
import simgrad as sg
from live_prometheus import wait_until
from live_server import LiveServer, on_one_port
from name_server import NameServer


@pytest.fixture
def replicas():
    servers = [LiveServer(), LiveServer()]
    yield servers
    for server in servers:
        server.stop()


def target(servers):
    """What DNS answers for a headless Service, written out."""
    return "ipv4:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


def calls(server, address="localhost"):
    url = f"http://{address}:{server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    started = [line for line in lines if line.startswith("grpc_server_started_total")]
    return sum(float(line.rpartition(" ")[2]) for line in started)


def rollout(client):
    return client.rollout(
        event_load.ball(), steps=20, initial=event_load.heights(4), params={"k": 0.5}
    )


def test_round_robin_uses_every_replica_and_gives_the_same_bits(replicas):
    with sg.Client(target(replicas), timeout=60, load_balancing="round_robin") as client:
        client.info()
        # Which replicas are connected is gRPC's business; soon all are.
        wait_until(lambda: client.info() and all(calls(server) for server in replicas), "both")
        states = {rollout(client).state["y"].tobytes() for _ in range(6)}
    assert len(states) == 1


def test_pick_first_stays_with_one_replica(replicas):
    with sg.Client(target(replicas), timeout=60) as client:
        for _ in range(6):
            rollout(client)
    assert sorted(calls(server) > 0 for server in replicas) == [False, True]


def test_a_replica_that_ends_takes_no_further_calls_with_it(replicas):
    with sg.Client(target(replicas), timeout=60, load_balancing="round_robin") as client:
        wait_until(lambda: client.info() and all(calls(server) for server in replicas), "both")
        assert replicas[0].stop() == 0
        for _ in range(4):
            assert np.isfinite(rollout(client).state["y"]).all()
        assert calls(replicas[1]) > 4


@contextlib.contextmanager
def connected_before_the_second_came(monkeypatch, *flags):
    """(client, its name server, both servers), when the second has just been added to DNS."""
    # gRPC would ask DNS at most every thirty seconds.
    often = ("grpc.dns_min_time_between_resolutions_ms", 100)
    monkeypatch.setattr(sg.connection, "CONNECTION_OPTIONS", (*sg.connection.CONNECTION_OPTIONS, often))
    names, servers = NameServer("127.0.0.1"), on_one_port(*flags)
    name = f"dns://127.0.0.1:{names.port}/sim.lab.example:{servers[0].port}"
    try:
        with sg.Client(name, timeout=60, load_balancing="round_robin") as client:
            client.info()
            names.addresses.append("127.0.0.2")
            yield client, names, servers
    finally:
        names.stop()
        for server in servers:
            server.stop()


def test_connections_of_limited_age_lead_clients_to_a_new_replica(monkeypatch):
    flags = ("--max_connection_age=1s",)
    with connected_before_the_second_came(monkeypatch, *flags) as (client, _, servers):
        first = rollout(client).state["y"].tobytes()
        wait_until(lambda: client.info() and calls(servers[1], "127.0.0.2"), "a call on the new replica")
        assert rollout(client).state["y"].tobytes() == first


def test_a_connection_without_an_age_keeps_a_client_where_it_is(monkeypatch):
    with connected_before_the_second_came(monkeypatch) as (client, names, servers):
        asked = names.asked
        for _ in range(200):
            client.info()
        assert calls(servers[1], "127.0.0.2") == 0 and names.asked == asked


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="pick_first, round_robin"):
        sg.Client(load_balancing="random")
