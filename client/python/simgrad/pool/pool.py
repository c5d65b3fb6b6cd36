"""A client of several servers at once."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import grpc

from simgrad import errors, results
from simgrad.client import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TIMEOUT, Client
from simgrad.connection import connect
from simgrad.failure import Reached, kind_of
from simgrad.kept import KeptRun
from simgrad.pool.answer import PooledAnswer, Work
from simgrad.pool.cut import Cutter
from simgrad.pool.kept_shards import KeptShards
from simgrad.pool.servers import Servers, Targets
from simgrad.program_lines import add_line
from simgrad.repeating import Call
from simgrad.retry import Retry, policy_of
from simgrad.stream import Start
from simgrad.uploads import Plan, least_of
from simgrad.v1 import simgrad_pb2
from simgrad.world import World


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
    Errors: those of Client; FailedPrecondition (reason MIXED_SERVERS) where servers are of different revisions, or make
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
        if most_instances is not None and most_instances < 1:
            raise ValueError(f"most_instances {most_instances!r}: at least 1")
        if not callable(targets):
            targets = (targets,) if isinstance(targets, str) else tuple(targets)
        name = "the servers of a function" if callable(targets) else ", ".join(map(str, targets))
        self._begin(name, timeout, max_message_bytes, token, retry)
        self._most_instances = most_instances or 0
        self._servers = Servers(
            targets,
            lambda target, host: connect(target, credentials, max_message_bytes, host=host),
            self._repeating.clock,
            least_of(upload),
        )
        self._stub = _AnyServer(self)

    def close(self) -> None:
        self._repeating.close()
        self._servers.close()

    def info(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> simgrad_pb2.ServerInfo:
        """The servers as one: the devices of all of them, the smallest of each limit."""
        infos = list(self.infos(timeout=timeout, retry=retry).values())
        merged = simgrad_pb2.ServerInfo()
        merged.CopyFrom(infos[0])
        for info in infos[1:]:
            merged.devices.extend(info.devices)
            for limit, value in info.limits.ListFields():
                least = min(getattr(merged.limits, limit.name), value)
                setattr(merged.limits, limit.name, least)
        return merged

    def infos(
        self, *, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> dict[str, simgrad_pb2.ServerInfo]:
        """The information of each server that can be reached, by target."""
        with self._new_call(timeout, retry, simgrad_pb2.GetServerInfoRequest()) as call:
            while True:
                left = call.begin()
                try:
                    ready = self._servers.ready(left, self._metadata())
                except grpc.RpcError as error:
                    call.failed(error)
                else:
                    call.is_alive()
                    return {s.target: s.info for s in ready if s.info is not None}

    def _starter(
        self,
        method: Any,
        world: World,
        message: Any,
        call: Call,
        timeout: float | None,
        retry: Retry | bool | None,
    ) -> Start:
        work = self._work(method.name, world, message, timeout, retry)
        return self._start(work, call, timeout, retry)

    def _work(
        self,
        method: str,
        world: World,
        message: Any,
        timeout: float | None,
        retry: Retry | bool | None,
        kept: KeptShards | None = None,
    ) -> Work:
        try:
            declared = self._declared(world, timeout, retry)
        except (errors.InvalidArgument, errors.NotFound):
            declared = {}  # a server shall say it of the request itself
        return Work(method, message, Cutter(message, declared), self._most_instances, kept, set())

    def _start(
        self, work: Work, call: Call, timeout: float | None, retry: Retry | bool | None
    ) -> Start:
        policy = self.retry if retry is None else policy_of(retry)

        def new_call() -> Call:
            explain = lambda error: add_line(error, work.message)
            return Call(self._repeating, policy, self._deadline(timeout), explain)

        return Start(
            lambda left: PooledAnswer(
                work, self._servers, self._repeating, call, new_call, self._metadata, left
            )
        )

    def _vjp(
        self,
        world: World,
        kept: KeptRun,
        asked: Sequence[simgrad_pb2.GradientRequest],
        on_nonfinite: str,
        timeout: float | None,
        retry: Retry | bool | None,
    ) -> list[results.Gradient]:
        """One call of all servers for each gradient."""
        shards = KeptShards.of(kept.handle)
        found = []
        for message in asked:
            message.spec.CopyFrom(kept.spec)
            call = self._new_call(timeout, retry, message)
            work = self._work("Gradient", world, message, timeout, retry, shards)
            start = self._start(work, call, timeout, retry)
            [gradient] = self._gradients(world, message, call, start, on_nonfinite)
            gradient.replayed = bool(work.simulated)
            found.append(gradient)
        kept.handle = shards.handle
        return found

    def _send(
        self, method: Any, message: Any, call: Call, left: float, plan: Plan | None = None
    ) -> Any:
        """At any server."""
        return method(message, call, left, self._metadata())

    def _check_size(
        self, message: Any, timeout: float | None, retry: Retry | bool | None = None
    ) -> None:
        """Shards are checked when they are cut."""


class _Method:
    """One method of the service, called at any server."""

    def __init__(self, pool: Pool, name: str):
        self._pool = pool
        self.name = name

    def __call__(self, message: Any, call: Call, left: float, metadata: Any) -> Any:
        servers = self._pool._servers
        server = servers.least_busy()
        servers.began(server)
        try:
            return server.send(self.name, message, call, left, metadata)
        except grpc.RpcError as error:
            servers.lost(server, kind_of(self._pool._error(error), Reached()))
            raise
        finally:
            servers.ended(server)


class _AnyServer:
    """Stands where Client has its stub."""

    def __init__(self, pool: Pool):
        for name in ("GetServerInfo", "ListWorlds", "DescribeProgram", "Rollout", "Gradient"):
            setattr(self, name, _Method(pool, name))
