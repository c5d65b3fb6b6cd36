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
import os
from typing import Any, Iterable

import grpc

try:
    import ray
except ImportError as _error:
    raise ImportError("simgrad.ray runs servers on a cluster of Ray, which is not installed: pip install ray") from _error

from simgrad import pool
from simgrad.local import LocalClient, local

_ANSWER_SECONDS = 2.0  # in which an actor that lives tells its target
_START_SECONDS = 120.0


class _Owner:
    """An actor that owns one server on its node."""

    def __init__(
        self, device: str, threads: int | None, server: str | None, flags: list[str], insecure: bool
    ):
        self._address = ray.util.get_node_ip_address()
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


class Pool(pool.Pool):
    """A simgrad.Pool of servers that this object starts on a Ray cluster, and ends.

    Args:
      servers: how many; Ray spreads them over nodes.
      num_gpus, num_cpus: of each, as Ray counts them. A server sees its own GPUs alone.
      max_restarts: how often Ray starts an actor again whose process or node was lost; -1: always.
      device, threads, server, flags: as for simgrad.local, on the node of the actor; threads None: num_cpus.
      insecure: plaintext between nodes. Without it, servers beyond loopback need TLS: flags that name their
        certificate and key on each node, and `credentials`.
      start_timeout: seconds in which all servers must have begun.
      options: those of simgrad.Pool.
    Needs: ray; simgrad and simgrad-server on each node. `ray.init` is called if it was not called before.
    Raises: RuntimeError where servers do not start, with what Ray says.
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
        if servers < 1:
            raise ValueError(f"servers {servers!r}: at least 1")
        self.actors: list[Any] = []
        # Refuses wrong options before there is an actor.
        super().__init__(self._targets, credentials=credentials, **options)
        threads = max(int(num_cpus), 1) if threads is None else threads
        path = None if server is None else os.fspath(server)
        try:
            owner = ray.remote(_Owner).options(
                num_gpus=num_gpus,
                num_cpus=num_cpus,
                max_restarts=max_restarts,
                scheduling_strategy="SPREAD",
            )
            for _ in range(servers):
                self.actors.append(owner.remote(device, threads, path, list(flags), insecure))
        except Exception:
            self.close()
            raise
        try:
            ray.get([actor.target.remote() for actor in self.actors], timeout=start_timeout)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise RuntimeError(f"{servers} servers did not start in {start_timeout:g} s: {error}") from error
        except Exception as error:
            self.close()
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
