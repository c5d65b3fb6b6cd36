"""The servers of a pool: which there are, which can be reached, and how fast each is."""

from __future__ import annotations

import concurrent.futures
import math
import socket
import threading
from typing import Any, Callable, Container, Iterable, NamedTuple, Sequence, Union

import grpc

from simgrad import errors
from simgrad.clock import Clock
from simgrad.connection import check_target
from simgrad.failure import Kind, Reached, kind_of
from simgrad.pool.merge import refuse_mixed
from simgrad.repeating import Call
from simgrad.uploads import Least, Uploads
from simgrad.v1 import simgrad_pb2, simgrad_pb2_grpc

DNS = "dns:///"
Directory = Callable[[], Union[str, Iterable[str]]]
Targets = Union[str, Iterable[str], Directory]
Connect = Callable[[str, str], grpc.Channel]  # target, name in its certificate

_DEFAULT_PORT = 8001
_DOWN_SECONDS = 1.0  # for which a server that was not reached is asked last
_FRESH_SECONDS = 5.0  # for which addresses are not looked up again
_INFO_SECONDS = 5.0  # in which a server says what it is
# A GPU counts as so many threads of a CPU until both have been measured.
_THREADS_OF_GPU = 256
_MAX_RATES = 256  # kinds of work whose speed is kept


class Address(NamedTuple):
    target: str
    host: str  # the name that it was found by


class NoServer(grpc.RpcError):
    """No server of the pool is known; as gRPC says it of a channel."""

    def __init__(self, why: str):
        super().__init__(why)
        self._why = why

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._why

    def trailing_metadata(self) -> None:
        return None


class Server:
    """One server of a pool.

    Attributes:
      uploads: sends requests to it.
      info: what it says of itself; None: it was not asked yet, or was lost since.
      running: requests that this pool has there, or uploads for, and questions what it is.
      down_until: when it may be asked again, in seconds of the clock.
      silent: it let the time for an answer pass when it was last asked.
      asked_aside: it is being asked while no call waits.
      listed: the pool's targets name it. One that they name no more ends its calls, and gets no new work.
      differs: the pool's targets name it no more, and those that they name have another revision.
    """

    def __init__(
        self, address: Address, channel: grpc.Channel, clock: Clock, least_upload: Least | None = None
    ):
        self.target = address.target
        stub: Any = simgrad_pb2_grpc.SimgradStub  # generated without types
        self.channel = channel
        self.stub = stub(channel)
        self.uploads = Uploads(self.stub.Upload, least_upload, clock)
        self.info: simgrad_pb2.ServerInfo | None = None
        self.running = 0
        self.down_until = 0.0
        self.silent = False
        self.asked_aside = False
        self.listed = True
        self.differs = False
        self._rates: dict[bytes, float] = {}

    def send(
        self, method: str, message: Any, call: Call, left: float, metadata: Sequence[tuple[str, str]]
    ) -> Any:
        """Calls a method, within `left` seconds."""
        limits = None if self.info is None else self.info.limits
        return self.uploads.send(getattr(self.stub, method), message, call, left, metadata, limits)

    @property
    def largest(self) -> tuple[float, float]:
        """The most instances, and bytes, of a request that it takes; infinity where it has said nothing."""
        limits = (self.info or simgrad_pb2.ServerInfo()).limits
        return limits.max_instances or math.inf, limits.max_request_bytes or math.inf

    def takes(self, instances: int, size: int) -> bool:
        """Whether its limits allow a request of `size` bytes, as far as they are known."""
        most_instances, most_bytes = self.largest
        return instances <= most_instances and size <= most_bytes

    @property
    def expected(self) -> float:
        """Its speed as far as its device tells it, in threads of a CPU."""
        info = self.info or simgrad_pb2.ServerInfo()  # another call may have lost it
        devices = [d for d in info.devices if d.kind == info.default_device]
        devices = devices or list(info.devices)
        if not devices:
            return 1.0
        return float(_THREADS_OF_GPU if devices[0].kind == "cuda" else max(devices[0].threads, 1))

    def rate(self, work: bytes) -> float | None:
        """Instance-steps per second of a kind of work, as its answers told it; None: none has."""
        return self._rates.get(work)

    def measured(self, work: bytes, instance_steps: float, seconds: float) -> None:
        """Takes what an answer says of the time that it took."""
        if seconds <= 0 or instance_steps <= 0:
            return
        if len(self._rates) >= _MAX_RATES:
            self._rates.clear()
        now = instance_steps / seconds
        self._rates[work] = 0.5 * (self._rates.get(work, now) + now)


class Servers:
    """Finds servers by name, connects to them, and forgets those that are gone.

    Args:
      targets: one, several, or a function that gives those of the moment. "dns:///name:port" stands for all
        addresses of the name, which is looked up again every few seconds.
      least_upload: from which sizes on tensors and programs are uploaded, to each server by itself; None: never.
    Threads: safe.
    """

    def __init__(
        self, targets: Targets, connect: Connect, clock: Clock, least_upload: Least | None = None
    ):
        self._connect = connect
        self._clock = clock
        self._least_upload = least_upload
        self._list = _directory(targets)
        self._changes = callable(targets) or any(t.startswith(DNS) for t in self._list())
        self._looked_up: float | None = None
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.channel.close()

    def ready(
        self,
        timeout: float,
        metadata: Sequence[tuple[str, str]],
        keepers: Container[str] = (),
    ) -> list[Server]:
        """Those that can be reached and get new work, with what they say of themselves.

        A server that was silent is waited for once; then it is asked again while the others work.

        Args:
          keepers: targets of servers that are among them too while they are known, as they keep what is asked for,
            and where they are named no more have the revision of those that are named.
        Errors: grpc.RpcError of one of them where there is none; FailedPrecondition (reason MIXED_SERVERS) where
          two are of different revisions.
        """
        now = self._clock.now()
        known = self._open_to(keepers)
        candidates = [server for server in known if server.down_until <= now] or known
        unknown = [server for server in candidates if server.info is None]
        awaited = [server for server in unknown if not server.silent]
        if not awaited and len(unknown) == len(candidates):
            awaited = unknown  # there is no other server
        self._ask_aside([server for server in unknown if server not in awaited], metadata)
        failed = self._ask(awaited, min(timeout, _INFO_SECONDS), metadata)
        told = [(server.target, server.info) for server in candidates]
        infos = {target: info for target, info in told if info is not None}
        if not infos:
            raise failed or NoServer("address list: no server of this pool answers")
        identities = {t: {"version": i.version, "revision": i.revision} for t, i in infos.items()}
        named = [identities[s.target] for s in candidates if s.listed and s.target in infos]
        for server in candidates:
            of_server = identities.get(server.target)
            server.differs = bool(named) and not server.listed and of_server not in (None, named[0])
            if server.differs:
                del identities[server.target]
        try:
            refuse_mixed(identities)
        except errors.FailedPrecondition:
            self.forget_identities()  # an update that is under way comes to its end
            raise
        return [server for server in candidates if server.target in identities]

    def claim(
        self, choose: Callable[[list[Server]], Server | None], keepers: Container[str] = ()
    ) -> Server | None:
        """The server that `choose` takes of those that get new work: its channel stays open until `ended`.

        Args:
          choose: may give None; calls nothing of this object.
          keepers: as for `ready`.
        Errors: NoServer where there is none.
        """
        self._keep_fresh()
        with self._lock:
            chosen = choose([s for s in self._found(keepers) if not s.differs])
            if chosen is not None:
                chosen.running += 1
            return chosen

    def for_whole(
        self, metadata: Sequence[tuple[str, str]], instances: int = 0, size: int = 0
    ) -> Server:
        """Claims the server for a request that is not cut: of those whose limits allow it, the least busy one.

        Where no limits allow it, it is the server with the largest ones: so a refusal says what the pool takes.

        Args:
          instances, size: of the request, the latter in bytes.
        """
        now = self._clock.now()
        self._ask_aside([s for s in self._open_to() if s.silent and s.down_until <= now], metadata)
        chosen = self.claim(lambda known: _for_whole(known, now, instances, size))
        assert chosen is not None
        with self._lock:
            # Among equals, the one that was chosen last stands last.
            if chosen.target in self._servers:
                self._servers[chosen.target] = self._servers.pop(chosen.target)
        return chosen

    def takes_whole(self, instances: int, size: int) -> bool:
        """Whether the server that `for_whole` gives takes a request, as far as its limits are known."""
        return _for_whole(self._open_to(), self._clock.now(), instances, size).takes(instances, size)

    def ended(self, server: Server) -> None:
        with self._lock:
            server.running -= 1

    def failed(
        self,
        server: Server,
        error: errors.SimgradError,
        reached: Reached,
        metadata: Sequence[tuple[str, str]],
    ) -> None:
        """Notes what the failure of a call says of its server.

        A deadline that passes does not tell whether its server is slow or frozen. So the server is asked aside
        what it is. If it had sent nothing, later calls leave it out until it answers.

        Args:
          error: with gRPC's own text.
          reached: how far its answer was.
        """
        if kind_of(error, reached) in (Kind.UNSENT, Kind.DEPARTED):
            server.info = None  # another one may come in its place
            server.down_until = self._clock.now() + _DOWN_SECONDS
            self._looked_up = None
        elif error.code == "DEADLINE_EXCEEDED" and not error.reason:
            if not reached.phase:
                server.info = None
                server.silent = True
                server.down_until = self._clock.now() + _DOWN_SECONDS
            self._ask_aside([server], metadata)

    def forget_identities(self) -> None:
        """Asks every server anew before the next request."""
        for server in list(self._servers.values()):
            server.info = None

    def known(self) -> list[Server]:
        """All of the moment, with those that are named no more and end their calls; looks them up where that was
        long ago.

        Errors: NoServer where there is none.
        """
        self._keep_fresh()
        with self._lock:
            return self._found(self._servers)

    def _open_to(self, keepers: Container[str] = ()) -> list[Server]:
        """As `known`, without those that get no new work. `keepers`: as for `ready`."""
        self._keep_fresh()
        with self._lock:
            return self._found(keepers)

    def _found(self, keepers: Container[str]) -> list[Server]:
        """Those that were found last, and of others the keepers; the lock is held."""
        found = [s for s in self._servers.values() if s.listed or s.target in keepers]
        if not found:
            raise NoServer("address list: this pool has no server at the moment")
        return found

    def _keep_fresh(self) -> None:
        now = self._clock.now()
        is_fresh = self._looked_up is not None and (
            not self._changes or now - self._looked_up < _FRESH_SECONDS
        )
        if not is_fresh:
            self._look_up(now)

    def _look_up(self, now: float) -> None:
        try:
            addresses = {a.target: a for target in self._list() for a in _addresses(target)}
        except OSError as error:
            if not self._servers:
                raise NoServer(f"DNS resolution failed: {error}") from None
            return  # what was known stays
        with self._lock:
            for target, server in list(self._servers.items()):
                server.listed = target in addresses
                if not server.listed and not server.running:
                    self._servers.pop(target).channel.close()
            for target, address in addresses.items():
                if target not in self._servers:
                    channel = self._connect(target, address.host)
                    self._servers[target] = Server(
                        address, channel, self._clock, self._least_upload
                    )
            self._looked_up = now

    def _ask(
        self, servers: Sequence[Server], timeout: float, metadata: Sequence[tuple[str, str]]
    ) -> grpc.RpcError | None:
        """Asks servers what they are, side by side; returns the failure of the last that failed."""
        if not servers:
            return None
        ask = lambda server: self._ask_one(server, timeout, metadata)
        with concurrent.futures.ThreadPoolExecutor(len(servers)) as threads:
            failures = [error for error in threads.map(ask, servers) if error is not None]
        return failures[-1] if failures else None

    def _ask_aside(
        self, servers: Sequence[Server], metadata: Sequence[tuple[str, str]]
    ) -> None:
        """Asks servers what they are while no call waits; what they say counts for later requests."""

        def ask(server: Server) -> None:
            try:
                self._ask_one(server, _INFO_SECONDS, metadata)
            except ValueError:
                pass  # the pool was closed
            server.asked_aside = False

        for server in servers:
            with self._lock:
                begins = not server.asked_aside
                server.asked_aside = True
            if begins:
                threading.Thread(target=ask, args=(server,), daemon=True).start()

    def _ask_one(
        self, server: Server, timeout: float, metadata: Sequence[tuple[str, str]]
    ) -> grpc.RpcError | None:
        with self._lock:
            if self._servers.get(server.target) is not server:
                return NoServer(f"address list: {server.target} left this pool")
            server.running += 1
        try:
            server.info = server.stub.GetServerInfo(
                simgrad_pb2.GetServerInfoRequest(), timeout=timeout, metadata=metadata
            )
        except grpc.RpcError as error:
            server.info = None
            server.silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            server.down_until = self._clock.now() + _DOWN_SECONDS
            return error
        finally:
            self.ended(server)
        server.silent = False
        server.down_until = 0.0
        return None


def _for_whole(known: Sequence[Server], now: float, instances: int, size: int) -> Server:
    there = [s for s in known if not s.silent and s.down_until <= now] or known
    fit = [s for s in there if s.takes(instances, size)]
    if not fit:
        return max(there, key=lambda s: s.largest)
    return min(fit, key=lambda s: (s.down_until > now, s.silent, s.running, -s.down_until))


def _listed(targets: str | Iterable[str]) -> tuple[str, ...]:
    return (targets,) if isinstance(targets, str) else tuple(targets)


def _given_by(found: Any) -> tuple[str, ...]:
    """The names that a function gives; none at times. Raises TypeError for what are no names."""
    names = _listed(found) if isinstance(found, Iterable) else (found,)
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"targets: the function gives {found!r}, and not one name, or several, of servers: host:port")
    return names


def _directory(targets: Targets) -> Callable[[], tuple[str, ...]]:
    if callable(targets):
        of_the_moment = targets
        return lambda: _given_by(of_the_moment())
    listed = _listed(targets)
    if not listed or not all(isinstance(target, str) and target for target in listed):
        raise ValueError(f"targets {listed!r}: one name, or several, of servers: host:port, dns:///host:port")
    for target in listed:
        check_target(target, "targets:")
        if target.startswith("dns:") and not target.startswith(DNS):
            raise ValueError(
                f"targets: {target!r} would be one server to a pool; dns:///host:port is all addresses of a name, "
                "as this machine's resolver knows them"
            )
    return lambda: listed


def _addresses(target: str) -> list[Address]:
    if not target.startswith(DNS):
        return [Address(target, "")]
    host, _, port = target[len(DNS) :].rpartition(":")
    if not port.isdigit():
        host, port = target[len(DNS) :], str(_DEFAULT_PORT)
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    addresses = dict.fromkeys((family, str(where[0])) for family, *_, where in found)
    return [
        Address(f"ipv6:[{ip}]:{port}" if family == socket.AF_INET6 else f"ipv4:{ip}:{port}", host)
        for family, ip in addresses
    ]
