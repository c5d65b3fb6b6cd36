"""simgrad.ray says before any actor starts how its servers may be reached, or asks for it; and what room they need."""

import sys
import types

import pytest

import simgrad

OF_OTHERS = "192.0.2.77"  # RFC 5737: of documents, and of no machine


class Asked(Exception):
    """An actor was asked for."""


def actor(*_):
    raise Asked


@pytest.fixture
def module(monkeypatch):
    """(simgrad.ray, the addresses of the nodes that its Ray knows): a Ray without processes."""
    addresses = []
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.nodes = lambda: [{"Alive": True, "NodeManagerAddress": a} for a in addresses] + [
        {"Alive": False, "NodeManagerAddress": "192.0.2.99"}
    ]
    ray.remote = actor
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delitem(sys.modules, "simgrad.ray", raising=False)
    monkeypatch.delattr(simgrad, "ray", raising=False)
    import simgrad.ray as module

    yield module, addresses
    del sys.modules["simgrad.ray"], simgrad.ray


def test_servers_beyond_loopback_are_refused_before_any_actor_is_started(module):
    module, addresses = module
    addresses += ["127.0.0.1", OF_OTHERS]
    words = (
        f"^servers at {OF_OTHERS} are beyond loopback: insecure=True for plaintext, or flags with "
        "--tls_certificate and --tls_key, and credentials$"
    )
    with pytest.raises(ValueError, match=words):
        module.Pool(servers=1)
    with pytest.raises(ValueError, match=words):
        module.Pool(servers=1, flags=["--max_instances=5"])


@pytest.mark.parametrize(
    "told",
    [
        {"insecure": True},
        {"credentials": simgrad.tls()},
        {"flags": ["--tls_certificate=a.pem", "--tls_key=b.pem"]},
        {"flags": ["--tls_certificate", "a.pem", "--tls_key", "b.pem"]},
        {"flags": ["--allow_insecure=true"]},
    ],
    ids=str,
)
def test_a_caller_that_says_how_gets_its_actors(module, told):
    module, addresses = module
    addresses += [OF_OTHERS]
    with pytest.raises(Asked):
        module.Pool(servers=1, **told)
    assert module._listening_here(addresses, True) == frozenset()  # so they listen at their nodes' addresses


def test_servers_on_this_machine_alone_need_nothing_and_listen_on_loopback(module):
    module, addresses = module
    addresses += ["127.0.0.1", "127.0.0.2"]
    with pytest.raises(Asked):
        module.Pool(servers=2)
    assert module._listening_here(addresses, False) == {"127.0.0.1", "127.0.0.2"}


@pytest.mark.parametrize("node, address, flags", [
    ("192.0.2.2", "127.0.0.1", []),
    (OF_OTHERS, OF_OTHERS, [f"--address={OF_OTHERS}"]),  # one that joined later: its server asks for TLS
])
def test_a_server_listens_on_loopback_on_the_nodes_that_are_this_machine(module, monkeypatch, node, address, flags):
    module, _ = module
    started = []

    def local(**options):
        started.append(options["flags"])
        return types.SimpleNamespace(target="127.0.0.1:4321")

    monkeypatch.setattr(module, "local", local)
    module.ray.util = types.SimpleNamespace(get_node_ip_address=lambda: node)
    owner = module._Owner("cpu", 1, None, [], False, frozenset(["192.0.2.2"]))
    assert owner.target() == f"{address}:4321" and started == [flags]


class Waiting:
    """An actor of a Ray that gives its actors no time."""

    options = classmethod(lambda cls, **_: cls)
    target = types.SimpleNamespace(remote=lambda: "pending")

    @classmethod
    def remote(cls, *_):
        return cls()


def has_no_room(module, has, free):
    """A Ray whose cluster has these resources, the last two of whose actors wait."""
    module.ray.exceptions = types.SimpleNamespace(GetTimeoutError=TimeoutError)
    module.ray.remote = lambda _: Waiting
    module.ray.cluster_resources, module.ray.available_resources = lambda: has, lambda: free
    module.ray.wait = lambda asked, **_: (asked[:-2], asked[-2:])
    module.ray.kill = lambda _: None

    def get(asked, timeout):
        raise TimeoutError(f"Get timed out: some object(s) not ready, {timeout}.")

    module.ray.get = get


@pytest.mark.parametrize(
    "asked, room, lacking",
    [
        ({"num_cpus": 2}, "10 CPUs, and Ray's cluster has 8, 1.5 of them free", True),
        ({"num_cpus": 1}, "5 CPUs, and Ray's cluster has 8, 1.5 of them free", False),
        (
            {"num_cpus": 0.5, "num_gpus": 1},
            "2.5 CPUs, and Ray's cluster has 8, 1.5 of them free; 5 GPUs, and Ray's cluster has 0, 0 of them free",
            True,
        ),
    ],
)
def test_servers_that_find_no_room_say_what_they_take_and_what_there_is(module, caplog, asked, room, lacking):
    module, addresses = module
    addresses += ["127.0.0.1"]
    has_no_room(module, {"CPU": 8.0}, {"CPU": 1.5})
    with pytest.raises(RuntimeError, match=f"^2 of 5 servers did not start in 3 s; all of them take {room}$"):
        module.Pool(servers=5, start_timeout=3, **asked)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"5 servers wait for room: they take {room.split('; ')[-1]}"] * lacking


def test_servers_that_take_no_room_and_do_not_start_say_what_ray_says(module):
    module, addresses = module
    addresses += ["127.0.0.1"]
    has_no_room(module, {"CPU": 8.0}, {})
    with pytest.raises(RuntimeError, match="^2 of 2 servers did not start in 3 s: Get timed out"):
        module.Pool(servers=2, num_cpus=0, start_timeout=3)


def test_a_number_of_servers_is_whole(module):
    module, _ = module
    with pytest.raises(TypeError, match="servers: a whole number of servers, not '2'"):
        module.Pool(servers="2")


@pytest.mark.parametrize("lost", ["cluster_resources", "available_resources", "wait"])
def test_a_cluster_that_cannot_be_asked_keeps_no_actor(module, lost):
    module, addresses = module
    addresses += ["127.0.0.1"]
    has_no_room(module, {"CPU": 8.0}, {"CPU": 8.0})
    killed = []
    module.ray.kill = killed.append

    def fails(*_, **__):
        raise ConnectionError("the head node is gone")

    setattr(module.ray, lost, fails)
    with pytest.raises(ConnectionError, match="head node"):
        module.Pool(servers=3, start_timeout=3)
    assert len(killed) == 3
