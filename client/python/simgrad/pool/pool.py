"""A client of several servers at once."""

from __future__ import annotations

from typing import Callable, Iterable

import grpc

from simgrad.client import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TIMEOUT, Client
from simgrad.connection import check_credentials, check_message_bytes, connect
from simgrad.pool.calls import PooledCalls
from simgrad.pool.servers import Servers, Targets
from simgrad.pool.service import PooledService
from simgrad.retry import Retry
from simgrad.uploads import least_of
from simgrad.v1 import simgrad_pb2


class Pool(Client):
    """A client of several servers, with the methods of Client and the bits of one server.

        with sg.Pool(["gpu-1:8001", "gpu-2:8001"]) as pool:
            pool.gradient(world, steps=1000, ...)

    A batch is cut between instance ids that are multiples of 256, in shares by the speed that the servers'
    answers tell; their answers are merged into one. A shard whose server dies or refuses is repeated on
    another one. A smaller batch goes to one server as a whole.

    Other than from one server: `device`, `request_id` and the execution of roles name all servers; `seconds` are those
    of the slowest; `gated_by` names all sites that servers named; and each block of a stream comes when all
    shards have done its steps. What a caller does not read of a stream is kept here.

    Args:
      targets: host:port, several of them, "dns:///name:port" for all addresses of a name (looked up again every few
        seconds), or a function that gives the targets of the moment.
      most_instances: of one shard; None: as many as the servers take. Shards beyond the number of servers wait.
      others: as for Client.
    Errors: those of Client; TypeError for targets that are no names, where a function gives them too, when it is
      asked; FailedPrecondition (reason MIXED_SERVERS) where servers are of different revisions, or make
      different programs of one request.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | Callable[[], str] | None = None,
        upload: str | bool | int = "auto",
        retry: Retry | bool = True,
        most_instances: int | None = None,
    ):
        check_credentials(credentials)
        check_message_bytes(max_message_bytes)
        if most_instances is not None:
            if not hasattr(most_instances, "__index__"):
                raise TypeError(f"most_instances: a whole number of instances, or None, not {most_instances!r}")
            if most_instances < 1:
                raise ValueError(f"most_instances {most_instances!r}: at least 1")
        if not callable(targets) and not isinstance(targets, Iterable):
            raise TypeError(f"targets: a name of a server, several, or a function that gives them, not {targets!r}")
        if not callable(targets):
            targets = (targets,) if isinstance(targets, str) else tuple(targets)
        name = "the servers of a function" if callable(targets) else ", ".join(map(str, targets))
        calls = PooledCalls(
            name,
            timeout=timeout,
            max_message_bytes=max_message_bytes,
            token=token,
            retry=retry,
        )
        servers = Servers(
            targets,
            lambda target, host: connect(target, credentials, max_message_bytes, host=host),
            calls.repeating.clock,
            least_of(upload),
        )
        self._pooled = PooledService(calls, servers, most_instances or 0)
        self._use(self._pooled)

    def info(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> simgrad_pb2.ServerInfo:
        """The servers as one: the devices of all of them, the smallest of each limit."""
        return super().info(timeout=timeout, retry=retry)

    def infos(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> dict[str, simgrad_pb2.ServerInfo]:
        """The information of each server that can be reached, by target."""
        return self._pooled.infos(self._calls.terms(timeout, retry))
