"""simgrad.ray: a pool of servers that a Ray cluster runs.

    import simgrad.ray

    with simgrad.ray.Pool(servers=8, num_gpus=1) as pool:
        pool.gradient(world, steps=1000, ...)

Each server belongs to an actor, and ends with it. Calls go from this process to the servers themselves, by gRPC: Ray
places the servers and starts lost ones again, and carries none of their data. Nothing of simgrad imports
Ray unless this module is imported.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from typing import Any, Iterable, Mapping

import grpc

try:
    import ray
except ImportError as _error:
    raise ImportError("simgrad.ray runs servers on a cluster of Ray, which is not installed: pip install ray") from _error

from simgrad import pool
from simgrad.local import LocalClient, local

_ANSWER_SECONDS = 2.0  # in which an actor that lives tells its target
_START_SECONDS = 120.0


# Flags of the server that say how it may be reached, or may say so.
_FLAGS_OF_SECURITY = ("allow_insecure", "flagfile", "tls_certificate", "tls_key")
_LOOPBACK = "127.0.0.1"
_LOGGER = logging.getLogger("simgrad")


class _Owner:
    """An actor that owns one server on its node; of a node in `here`, the server listens on loopback alone."""

    def __init__(
        self,
        device: str,
        threads: int | None,
        server: str | None,
        flags: list[str],
        insecure: bool,
        here: frozenset[str],
    ):
        address = ray.util.get_node_ip_address()
        self._address = _LOOPBACK if address in here else address
        beyond = [] if ipaddress.ip_address(self._address).is_loopback else [f"--address={self._address}"]
        if beyond and insecure:
            beyond += ["--allow_insecure=true"]
        self._server: LocalClient = local(
            device=device, threads=threads, server=server, flags=[*beyond, *flags]
        )

    def target(self) -> str:
        return f"{self._address}:{self._server.target.rpartition(':')[2]}"

    def pid(self) -> int:
        return os.getpid()


def _listening_here(addresses: Iterable[str], is_told: bool) -> frozenset[str]:
    """The addresses of Ray's nodes whose servers listen on loopback: all of them where each is this machine.

    Args:
      is_told: the caller said how servers beyond loopback are reached, so none needs to be on loopback.
    Raises: ValueError where a node is another machine, and nothing is told.
    """
    nodes = frozenset(addresses)
    if is_told:
        return frozenset()
    if others := sorted(address for address in nodes if not _is_this_machine(address)):
        raise ValueError(
            f"servers at {', '.join(others)} are beyond loopback: insecure=True for plaintext, or flags with "
            "--tls_certificate and --tls_key, and credentials"
        )
    return nodes


def _is_this_machine(address: str) -> bool:
    """Whether this machine has the address: it alone can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _room(taken: Mapping[str, float], lacking_alone: bool = False) -> str:
    """How much of what is taken Ray's cluster has, as "5 CPUs, and Ray's cluster has 3, 1 of them free".

    Args:
      taken: by Ray's names of resources; 0 is not told.
      lacking_alone: of what the cluster has too little of; empty: it has enough.
    """
    there, free = ray.cluster_resources(), ray.available_resources()
    told = []
    for name, count in taken.items():
        has, left = there.get(name, 0.0), free.get(name, 0.0)
        if count > (has if lacking_alone else 0):
            told.append(f"{count:g} {name}s, and Ray's cluster has {has:g}, {left:g} of them free")
    return "; ".join(told)


class Pool(pool.Pool):
    """A simgrad.Pool of servers that this object starts on a Ray cluster, and ends.

    Args:
      servers: how many; Ray spreads them over nodes.
      num_gpus, num_cpus: of each, as Ray counts them. A server sees its own GPUs alone.
      max_restarts: how often Ray starts an actor again whose process or node was lost; -1: always.
      device, threads, server, flags: as for simgrad.local, on the node of the actor; threads None: num_cpus.
      insecure: plaintext between nodes. Without it, servers beyond loopback need TLS: flags that name their
        certificate and key on each node, and `credentials`. Where all nodes of Ray are this machine, none of the
        three is needed: servers listen on 127.0.0.1.
      start_timeout: seconds in which all servers must have begun. A cluster without room for all of them may get nodes
        meanwhile; until then a warning says what it has.
      options: those of simgrad.Pool.
    Needs: ray; simgrad and simgrad-server on each node. `ray.init` is called if it was not called before.
    Raises: ValueError where servers would be beyond loopback and nothing says how, before any is started;
      RuntimeError where servers do not start, with what Ray says, or with the CPUs and GPUs that they take and that
        there are.
    """

    def __init__(
        self,
        servers: int,
        *,
        num_gpus: float = 0,
        num_cpus: float = 1,
        max_restarts: int = 3,
        device: str = "auto",
        threads: int | None = None,
        server: str | os.PathLike[str] | None = None,
        flags: Iterable[str] = (),
        insecure: bool = False,
        start_timeout: float = _START_SECONDS,
        credentials: grpc.ChannelCredentials | None = None,
        **options: Any,
    ):
        if not hasattr(servers, "__index__"):
            raise TypeError(f"servers: a whole number of servers, not {servers!r}")
        if servers < 1:
            raise ValueError(f"servers {servers!r}: at least 1")
        self.actors: list[Any] = []
        # Refuses wrong options before there is an actor.
        super().__init__(self._targets, credentials=credentials, **options)
        threads = max(int(num_cpus), 1) if threads is None else threads
        path = None if server is None else os.fspath(server)
        flags = list(flags)
        named = {flag.lstrip("-").partition("=")[0] for flag in flags}
        is_told = insecure or credentials is not None or not named.isdisjoint(_FLAGS_OF_SECURITY)
        try:
            if not ray.is_initialized():
                ray.init()
            nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
            here = _listening_here(nodes, is_told)
            owner = ray.remote(_Owner).options(
                num_gpus=num_gpus,
                num_cpus=num_cpus,
                max_restarts=max_restarts,
                scheduling_strategy="SPREAD",
            )
            for _ in range(servers):
                self.actors.append(owner.remote(device, threads, path, flags, insecure, here))
            self._await_start(start_timeout, {"CPU": servers * num_cpus, "GPU": servers * num_gpus})
        except BaseException:  # an actor that is left keeps what it took
            self.close()
            raise

    def _await_start(self, timeout: float, taken: Mapping[str, float]) -> None:
        """Waits until all servers have begun.

        Args:
          timeout: seconds.
          taken: by all of them, by Ray's names of resources.
        Raises: RuntimeError.
        """
        servers = len(self.actors)
        if lacking := _room(taken, lacking_alone=True):
            _LOGGER.warning("%d servers wait for room: they take %s", servers, lacking)
        asked = [actor.target.remote() for actor in self.actors]
        try:
            ray.get(asked, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            _, waiting = ray.wait(asked, num_returns=servers, timeout=0)
            room = _room(taken)
            said = f"; all of them take {room}" if room else f": {error}"
            late = f"{len(waiting)} of {servers}" if waiting else f"{servers}"
            raise RuntimeError(f"{late} servers did not start in {timeout:g} s{said}") from error
        except Exception as error:
            raise RuntimeError(f"a server did not start: {error}") from error

    def close(self) -> None:
        """Ends calls that are under way, and the servers."""
        super().close()
        self._kill()

    def _kill(self) -> None:
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor)

    def _targets(self) -> list[str]:
        """The targets of the actors that live; one that is started again comes back with another port."""
        asked = [actor.target.remote() for actor in self.actors]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_SECONDS)
        targets = []
        for answer in answered:
            try:
                targets.append(ray.get(answer))
            except ray.exceptions.RayError:
                continue
        return targets
