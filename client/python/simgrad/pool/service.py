"""The service that several servers give together."""

from __future__ import annotations

from typing import Any, Sequence

import grpc

from simgrad import errors, results
from simgrad.calls import Terms
from simgrad.failure import Reached
from simgrad.kept import KeptRun
from simgrad.pool.answer import PooledAnswer, Work
from simgrad.pool.balance import Balance
from simgrad.pool.calls import PooledCall, PooledCalls
from simgrad.pool.cut import Cutter
from simgrad.pool.kept_shards import KeptShards
from simgrad.pool.servers import Servers
from simgrad.repeating import Call
from simgrad.request import Declarations
from simgrad.service import ReadGradients, Service
from simgrad.stream import Start
from simgrad.v1 import simgrad_pb2


class PooledService(Service):
    """Cuts rollouts and gradients between servers, and sends each other call to one of them.

    Sizes of requests are checked when shards are cut.

    Args:
      most_instances: of one shard; 0: as many as the servers take.
    """

    calls: PooledCalls

    def __init__(self, calls: PooledCalls, servers: Servers, most_instances: int):
        super().__init__(calls)
        self.servers = servers
        self._balance = Balance()
        self._most_instances = most_instances

    def close(self) -> None:
        super().close()
        self.servers.close()

    def info(self, terms: Terms) -> simgrad_pb2.ServerInfo:
        infos = list(self.infos(terms).values())
        merged = simgrad_pb2.ServerInfo()
        merged.CopyFrom(infos[0])
        for info in infos[1:]:
            merged.devices.extend(info.devices)
            for limit, value in info.limits.ListFields():
                least = min(getattr(merged.limits, limit.name), value)
                setattr(merged.limits, limit.name, least)
        return merged

    def infos(self, terms: Terms) -> dict[str, simgrad_pb2.ServerInfo]:
        """The information of each server that can be reached, by target."""
        with self.calls.new(simgrad_pb2.GetServerInfoRequest(), terms) as call:
            while True:
                left = call.begin()
                try:
                    ready = self.servers.ready(left, self.calls.metadata())
                except grpc.RpcError as error:
                    call.failed(error)
                else:
                    call.is_alive()
                    return {s.target: s.info for s in ready if s.info is not None}

    def start(
        self, method: str, message: Any, call: Call, terms: Terms, declared: Declarations
    ) -> Start:
        return self._start(self._work(method, message, declared), call, terms)

    def vjp(
        self,
        kept: KeptRun,
        asked: Sequence[simgrad_pb2.GradientRequest],
        terms: Terms,
        declared: Declarations,
        read: ReadGradients,
    ) -> list[results.Gradient]:
        """One call of all servers for each gradient."""
        shards = KeptShards.of(kept.handle)
        found = []
        for message in asked:
            message.spec.CopyFrom(kept.spec)
            call = self.calls.new(message, terms)
            work = self._work("Gradient", message, declared, shards)
            [gradient] = read(message, call, self._start(work, call, terms))
            gradient.replayed = bool(work.simulated)
            found.append(gradient)
        kept.handle = shards.handle
        return found

    def _work(
        self, method: str, message: Any, declared: Declarations, kept: KeptShards | None = None
    ) -> Work:
        try:
            known = declared()
        except (errors.InvalidArgument, errors.NotFound):
            known = {}  # a server shall say it of the request itself
        return Work(method, message, Cutter(message, known), self._most_instances, kept, set())

    def _start(self, work: Work, call: Call, terms: Terms) -> Start:
        self.calls.check_token()
        assert isinstance(call, PooledCall)
        whole = call
        new_call = lambda: self.calls.new_part(whole, work.message, terms)
        return Start(
            lambda left: PooledAnswer(
                work,
                self.servers,
                self._balance,
                self.calls.repeating,
                whole,
                new_call,
                self.calls.metadata,
                left,
            )
        )

    def _send(self, method: str, message: Any, call: Call, left: float) -> Any:
        """At the server that has least to do."""
        assert isinstance(call, PooledCall)
        metadata = self.calls.metadata()
        call.server = ""
        server = self.servers.for_whole(metadata)
        try:
            call.server = server.target
            return server.send(method, message, call, left, metadata)
        except grpc.RpcError as error:
            self.servers.failed(server, self.calls.error_of(error), Reached(), metadata)
            raise
        finally:
            self.servers.ended(server)
