"""Several servers behind one name, as docs/operations.md says."""

import urllib.request

import event_load
import numpy as np
import pytest
import simgrad as sg
from live_prometheus import wait_until
from live_server import LiveServer


@pytest.fixture
def replicas():
    servers = [LiveServer(), LiveServer()]
    yield servers
    for server in servers:
        server.stop()


def target(servers):
    """What DNS answers for a headless Service, written out."""
    return "ipv4:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


def calls(server):
    url = f"http://localhost:{server.metrics_port}/metrics"
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


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="pick_first, round_robin"):
        sg.Client(load_balancing="random")
