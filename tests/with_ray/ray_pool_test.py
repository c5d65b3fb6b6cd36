"""Servers that a Ray cluster runs answer as one server does, also when an actor is killed."""

import importlib.util
import os
import pathlib
import signal
import socket
import sys

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="no Ray here: scripts/setup-ray makes .venv-ray")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "integration"))

from live_server import BINARY, eventually  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from same_bits import unequal  # noqa: E402

import simgrad as sg  # noqa: E402
import simgrad.ray  # noqa: E402

NODES = 3
N = 1500
BALL = sg.World("bouncing_ball", contact="projection", elements=4, clamp=False)
OPTIONS = dict(device="cpu", server=BINARY, timeout=60, most_instances=512)  # so three shards at least


@pytest.fixture(scope="module")
def cluster():
    """Nodes of one CPU each, so that each runs one server."""
    assert BINARY.exists(), f"{BINARY} is missing: scripts/build release simgrad-server"
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    for _ in range(NODES - 1):
        nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def one():
    with sg.local(device="cpu", threads=1, server=BINARY, timeout=60) as client:
        yield client


def work(**options):
    y = np.random.default_rng(1).uniform(0.02, 0.5, (N, 4))
    return {"initial": {"y": y, "v": 0 * y}, "params": {"k": 0.5}, **options}


def is_listening(target):
    host, _, port = target.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_servers_of_a_cluster_have_the_bits_of_one_and_survive_a_killed_actor(cluster, one):
    with sg.ray.Pool(servers=NODES, **OPTIONS) as pool:
        targets = set(pool.infos())
        assert len(targets) == NODES
        call = lambda client: client.gradient(BALL, **work(steps=20, objective="final_height"))
        answer = call(pool)
        assert len(answer.request_id.split(", ")) >= NODES
        assert unequal(call(one), answer) == []

        sent = work(steps=20, objective="final_height")
        kept = pool.rollout(BALL, **sent, keep=True)
        assert kept.vjp().reused
        killed = ray.get(pool.actors[1].target.remote())
        steps = dict(steps=2000, chunk_steps=50)
        stream = pool.rollout_stream(BALL, **work(**steps))
        for number, _ in enumerate(stream):
            if number == 0:
                os.kill(ray.get(pool.actors[1].pid.remote()), signal.SIGKILL)
        assert unequal(one.rollout(BALL, **work(**steps)), stream.result) == []
        eventually(lambda: not is_listening(killed))  # the server ended with its actor
        eventually(lambda: len(pool._targets()) == NODES)  # and Ray started it again
        now = set(pool._targets())
        assert killed not in now and len(now & targets) == NODES - 1
        assert unequal(call(one), call(pool)) == []
        eventually(lambda: set(pool.infos()) == now)
        again = kept.vjp()  # the shard of the server that is gone is simulated again
        assert again.replayed and unequal(answer, again) == []
    eventually(lambda: not any(map(is_listening, now)))


def server_of(actor):
    """The process of an actor's server."""
    found, processes = [], [ray.get(actor.pid.remote())]
    while processes:
        process = pathlib.Path("/proc", str(processes.pop()))
        if process.joinpath("cmdline").read_bytes().split(b"\0")[0].endswith(b"simgrad-server"):
            found.append(process)
        for task in process.joinpath("task").iterdir():
            processes += map(int, task.joinpath("children").read_text().split())
    (server,) = found
    return server


def test_a_server_sees_the_gpus_that_ray_gave_its_actor_and_no_others(cluster):
    """Ray deals out GPUs by number, whether or not there are any."""
    node = cluster.add_node(num_cpus=0, num_gpus=2)
    try:
        with sg.ray.Pool(servers=2, num_gpus=1, num_cpus=0, **OPTIONS) as pool:
            seen = set()
            for actor in pool.actors:
                entries = server_of(actor).joinpath("environ").read_bytes().split(b"\0")
                environment = dict(entry.partition(b"=")[::2] for entry in entries)
                seen.add(environment[b"CUDA_VISIBLE_DEVICES"])
            assert seen == {b"0", b"1"}
    finally:
        cluster.remove_node(node)


def test_the_example_trains_to_the_bits_of_one_server(cluster, one):
    path = pathlib.Path(__file__).parents[2] / "client/python/examples/train_on_ray.py"
    spec = importlib.util.spec_from_file_location("train_on_ray", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    # The step takes 0.4 of Newton's; 40 of them leave at most 0.6^40 = 1e-9 of the distance.
    found = example.main("2")
    assert found == pytest.approx(0.8, abs=1e-6) and found == example.train(one)


def test_a_server_that_cannot_start_says_why(cluster):
    with pytest.raises(RuntimeError, match="(?s)a server did not start.*/nowhere is no simgrad-server"):
        sg.ray.Pool(servers=1, server="/nowhere", max_restarts=0)


def test_more_servers_than_the_cluster_has_room_for_are_told_with_its_cpus(cluster):
    words = f"of {NODES + 2} servers did not start in 2 s; all of them take {NODES + 2} CPUs, and Ray's cluster has {NODES}, "
    with pytest.raises(RuntimeError, match=words):
        sg.ray.Pool(servers=NODES + 2, start_timeout=2, device="cpu", server=BINARY)


def test_a_pool_has_a_server():
    with pytest.raises(ValueError, match="servers 0: at least 1"):
        sg.ray.Pool(servers=0)


@pytest.mark.parametrize("wrong", [{"most_instances": 0}, {"timeout": 0}, {"token": "a\nb"}, {"tries": 3}], ids=str)
def test_a_wrong_option_is_refused_before_any_actor_is_started(monkeypatch, wrong):
    monkeypatch.setattr(ray, "remote", lambda *_: pytest.fail("an actor was asked for"))
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        sg.ray.Pool(servers=1, **wrong)
