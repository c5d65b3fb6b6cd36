"""The service that a client calls: what every way to it can do, and the way to one server."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Callable, List, Sequence

import grpc

from simgrad import named_programs, request, results
from simgrad.calls import Calls, Terms
from simgrad.connection import connect
from simgrad.repeating import Call
from simgrad.request import Declarations
from simgrad.stream import Start
from simgrad.uploads import Least, Plan, Uploads
from simgrad.v1 import simgrad_pb2, simgrad_pb2_grpc

if TYPE_CHECKING:
    from simgrad.kept import KeptRun

# Every server takes requests up to this size (docs/protocol.md); before a larger one it is asked.
ALWAYS_TAKEN_BYTES = 64 << 10
_LEAST_TIME = 1e-3  # seconds; a call takes no time that is not positive

# Reads the gradients of one answer: of a request, its call, and how that starts.
ReadGradients = Callable[[simgrad_pb2.GradientRequest, Call, Start], List[results.Gradient]]


class Service(abc.ABC):
    """The rpcs of simgrad.v1.Simgrad for the calls of one client. Methods are named as the rpcs are.

    `declared`, where it is an argument, gives the declarations of the world's inputs.
    Threads: safe.
    """

    def __init__(self, calls: Calls):
        self.calls = calls
        self._limits: simgrad_pb2.Limits | None = None  # the server's, once it was asked

    def close(self) -> None:
        """Ends calls that are under way, and those that wait for their repeat."""
        self.calls.repeating.close()

    @abc.abstractmethod
    def info(self, terms: Terms) -> simgrad_pb2.ServerInfo: ...

    @abc.abstractmethod
    def start(
        self, method: str, message: Any, call: Call, terms: Terms, declared: Declarations
    ) -> Start:
        """How the tries of a rollout or a gradient begin."""

    @abc.abstractmethod
    def vjp(
        self,
        kept: KeptRun,
        asked: Sequence[simgrad_pb2.GradientRequest],
        terms: Terms,
        declared: Declarations,
        read: ReadGradients,
    ) -> list[results.Gradient]:
        """The gradients of a kept run that `asked` asks for; their specs have no tensors."""

    @abc.abstractmethod
    def _send(self, method: str, message: Any, call: Call, left: float) -> Any:
        """Begins a try of a unary call, which may take `left` seconds; returns its answer."""

    def unary(self, method: str, message: Any, terms: Terms) -> Any:
        """The answer of a method that gives one message."""
        with self.calls.new(message, terms) as call:
            while True:
                left = call.begin()
                try:
                    answer = self._send(method, message, call, left)
                except grpc.RpcError as error:
                    call.failed(error)
                else:
                    call.is_alive()
                    return answer

    def most_variants(self, terms: Terms) -> int:
        """The most variants of one Compare; 0: there is none."""
        return 0

    def limits(self, terms: Terms) -> simgrad_pb2.Limits:
        """The limits of the server, which is asked once."""
        if self._limits is None:
            self._limits = self.info(terms).limits
        return self._limits


class OneServer(Service):
    """The service at one target. The connection is made at the first call.

    Args:
      credentials, load_balancing: as for Client.
      least_upload: from which sizes on tensors and programs are uploaded; None: never.
    """

    def __init__(
        self,
        calls: Calls,
        credentials: grpc.ChannelCredentials | None,
        load_balancing: str,
        least_upload: Least | None,
    ):
        super().__init__(calls)
        self.channel = connect(
            calls.target, credentials, calls.max_message_bytes, load_balancing
        )
        stub: Any = simgrad_pb2_grpc.SimgradStub  # generated without types
        self.stub = stub(self.channel)
        self.uploads = Uploads(self.stub.Upload, least_upload, calls.repeating.clock)

    def close(self) -> None:
        super().close()
        self.channel.close()

    def info(self, terms: Terms) -> simgrad_pb2.ServerInfo:
        answer: simgrad_pb2.ServerInfo = self.unary(
            "GetServerInfo", simgrad_pb2.GetServerInfoRequest(), terms
        )
        return answer

    def unary(self, method: str, message: Any, terms: Terms) -> Any:
        self._check_size(message, terms)
        if self._asks_for_limits(message):
            self.limits(terms)
        return super().unary(method, message, terms)

    def start(
        self, method: str, message: Any, call: Call, terms: Terms, declared: Declarations
    ) -> Start:
        self._check_size(message, terms)
        asks = self._asks_for_limits(message)
        plans = [] if asks else [self.uploads.plan(message, call, self._limits)]  # of the first try
        waits = asks or plans[0].uploads
        if waits:
            self.calls.check_token()

        def send(left: float) -> Any:
            if asks:
                self.limits(self.calls.terms(max(left, _LEAST_TIME)))
            plan = plans.pop() if plans else None
            return self._send(method, message, call, left, plan)

        return Start(send, waits)

    def most_variants(self, terms: Terms) -> int:
        return self.limits(terms).max_variants

    def vjp(
        self,
        kept: KeptRun,
        asked: Sequence[simgrad_pb2.GradientRequest],
        terms: Terms,
        declared: Declarations,
        read: ReadGradients,
    ) -> list[results.Gradient]:
        """All of them in one call."""
        message = request.vjp_request(kept.handle, asked)
        call = self.calls.new(asked[0], terms)
        return read(asked[0], call, self.start("Vjp", message, call, terms, declared))

    def _send(
        self, method: str, message: Any, call: Call, left: float, plan: Plan | None = None
    ) -> Any:
        metadata = self.calls.metadata()
        rpc = getattr(self.stub, method)
        return self.uploads.send(rpc, message, call, left, metadata, self._limits, plan)

    def _asks_for_limits(self, message: Any) -> bool:
        """Whether what the server takes must be known before a program is named."""
        return self._limits is None and self.uploads.may_name_program(message)

    def _check_size(self, message: Any, terms: Terms) -> None:
        """Raises ResourceExhausted, before it is sent, for a request that the server does not take."""
        size = named_programs.size_of(message)
        least = self.uploads.least
        if size <= min(ALWAYS_TAKEN_BYTES, least.tensors if least else ALWAYS_TAKEN_BYTES):
            return
        limit = self.limits(terms).max_request_bytes
        if limit:  # 0: a server that does not say; it will answer itself
            request.check_size(message, size, limit)
