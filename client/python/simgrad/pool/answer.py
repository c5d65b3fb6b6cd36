"""The answer of several servers to one request, while it arrives."""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import grpc

from simgrad import errors, named_programs, request
from simgrad.connection import StreamedCall
from simgrad.failure import Reached
from simgrad.kept import is_gone
from simgrad.pool.balance import Balance
from simgrad.pool.calls import PooledCall
from simgrad.pool.cut import Cutter, Shard
from simgrad.pool.kept_shards import KeptShard, KeptShards
from simgrad.pool.merge import Merge
from simgrad.pool.servers import Server, Servers
from simgrad.repeating import Repeating
from simgrad.v1 import simgrad_pb2

Metadata = Callable[[], "list[tuple[str, str]]"]

_STEP_OF_LIMITS = 1 << 16  # bytes, to which a limit that is asked for is rounded up: other blocks may have a few more


class Work(NamedTuple):
    """One request to a pool.

    Attributes:
      method: Rollout or Gradient.
      message: what the caller asked for.
      most: instances of one shard; 0: as many as the servers take.
      kept: of a gradient whose rollout is kept: each server reverses its shards (Vjp). A shard that its server
        has lost is forgotten here and simulated again.
      simulated: numbers of the shards that were simulated again.
    """

    method: str
    message: Any
    cutter: Cutter
    most: int
    kept: KeptShards | None
    simulated: set[int]


class _Event(NamedTuple):
    """An event from the thread of a shard: it begins at a server, has a message or an error."""

    shard: int
    server: str = ""
    response: Any = None
    error: BaseException | None = None


class PooledAnswer:
    """Cuts the work, asks the servers side by side, repeats elsewhere what is lost, and merges.

    Iterating gives responses, as those of one server, with the parts that are complete. A failure of the whole
    raises grpc.RpcError where the call may be repeated, and a SimgradError where a shard's own repeats are
    over. Shards are repeated as calls of their own, within the retry budget of the client.
    Threads: one reads; `cancel` from any.
    """

    def __init__(
        self,
        work: Work,
        servers: Servers,
        balance: Balance,
        shared: Repeating,
        call: PooledCall,
        new_call: Callable[[], PooledCall],
        metadata: Metadata,
        left: float,
    ):
        """`call` is that of the caller, whose tries count the repeats here; `new_call` makes one for a shard;
        `left` is the time for all, in seconds."""
        self._work = work
        self._servers = servers
        self._balance = balance
        self._shared = shared
        self._call = call
        call.server = ""
        self._new_call = new_call
        self._metadata = metadata
        self._end = shared.clock.now() + left
        self._kind = self._kind_of_work()
        self._waiting: queue.SimpleQueue[tuple[int, Shard, str]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._busy: set[str] = set()  # targets that run a shard of this answer
        # By shard, -1 for the whole: the call of a shard, and what gRPC gave for it.
        self._running: dict[int, tuple[PooledCall | None, Any]] = {}
        self._cancelled = False
        self._planned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._plan, daemon=True).start()

    def cancel(self) -> None:
        with self._condition:
            self._cancelled = True
            running = list(self._running.values())
            self._condition.notify_all()
        for call, rpc in running:
            if call is not None:
                call.cancel()
            if rpc is not None:
                rpc.cancel()

    def __iter__(self) -> Iterator[Any]:
        planned = self._planned.get()
        if isinstance(planned, BaseException):
            raise planned
        if planned is None:
            yield from self._of_one()
            return
        try:
            yield from self._of_many(planned)
        except errors.InvalidArgument as error:
            # It speaks of places in a shard; a server that takes the whole says it of the whole.
            if self._servers.takes_whole(*self._size()):
                next(self._of_one())
            raise error
        except errors.FailedPrecondition:
            self._servers.forget_identities()
            raise
        finally:
            self.cancel()

    # ---- What is asked of whom ----

    def _plan(self) -> None:
        try:
            self._planned.put(self._cut())
        except BaseException as error:  # the reader raises it
            self._planned.put(error)

    def _cut(self) -> Merge | None:
        """Begins the shards; None: there is one, or a request that a server will refuse."""
        cutter, kept = self._work.cutter, self._work.kept
        keepers = kept.keepers if kept is not None else ()
        servers = self._servers.ready(self._left(), self._metadata(), keepers)
        if not cutter.instances or self._is_beyond(servers):
            return None
        if kept is not None:
            shards, preferred = cutter.cut_as(kept.sizes), kept.targets
        else:
            dealt = self._balance.of(servers, self._kind, cutter.instances)
            shards = cutter.cut([share.part for share in dealt], self._most(servers))
            preferred = [share.server.target for share in dealt]
            if len(shards) < 2:
                return None
        for number, shard in enumerate(shards):
            self._waiting.put((number, shard, preferred[shard.share]))
        # Twice as many as servers: while one waits to repeat its shard, another one has the server.
        for _ in range(min(len(shards), 2 * len(servers))):
            threading.Thread(target=self._run, daemon=True).start()
        return Merge(
            shards,
            self._work.message,
            cutter.is_per_instance,
            cutter.is_weights,
            is_reversal=kept is not None,
        )

    def _most(self, servers: Sequence[Server]) -> int:
        """Instances that one shard may have."""
        limits = [server.info.limits for server in servers if server.info is not None]
        most = [self._work.most or self._work.cutter.instances]
        most += [limit.max_instances for limit in limits if limit.max_instances]
        row_bytes = self._work.cutter.row_bytes()
        shared = named_programs.size_of(self._work.message) - row_bytes * self._work.cutter.instances
        if row_bytes:
            room = [limit.max_request_bytes - shared for limit in limits if limit.max_request_bytes]
            most += [bytes // row_bytes for bytes in room]
        return max(min(most), 1)

    def _is_beyond(self, servers: Sequence[Server]) -> bool:
        """Whether it asks for the arithmetic of more instances than one server looks at, which parts may not show."""
        limits = [server.info.limits for server in servers if server.info is not None]
        most = min((limit.max_arithmetic_instances for limit in limits), default=0)
        return bool(self._work.message.spec.diagnostics.arithmetic_instances > most > 0)

    def _kind_of_work(self) -> bytes:
        """A digest that is equal for work whose speeds can be compared."""
        spec = self._work.message.spec
        digest = hashlib.sha256(self._work.method.encode())
        digest.update(spec.world.SerializeToString(deterministic=True))
        digest.update(spec.policy.SerializeToString(deterministic=True))
        asked = spec.diagnostics
        digest.update(f"{spec.objective} {asked.level} {asked.arithmetic_instances}".encode())
        return digest.digest()

    def _left(self) -> float:
        return max(self._end - self._shared.clock.now(), 0.0)

    # ---- One server for the whole ----

    def _of_one(self, is_checked: bool = False) -> Iterator[Any]:
        message, metadata = self._work.message, self._metadata()
        server = self._servers.for_whole(metadata, *self._size())
        reached = Reached()
        try:
            self._call.server = server.target
            info = server.info  # another call may lose it
            if info is not None:
                request.check_size(message, named_programs.size_of(message), info.limits.max_request_bytes or 1 << 62)
            rpc = StreamedCall(server.send(self._work.method, message, self._call, self._left(), metadata))
            with self._condition:
                self._running[-1] = (None, rpc)
                if self._cancelled:
                    rpc.cancel()
            for response in rpc:
                for part in response.parts:
                    reached = _further(reached, part)
                if not is_checked and _is_of_another(server, response):
                    rpc.cancel()
                    break
                self._name_keeper(server, response)
                yield response
            else:
                return
        except grpc.RpcError as error:
            self._note(server, error, reached, metadata)
            raise
        finally:
            self._servers.ended(server)
        # It changed since it said what it is; then it must still be of one revision with the others.
        self._servers.forget_identities()
        self._servers.ready(self._left(), self._metadata())
        yield from self._of_one(is_checked=True)

    def _name_keeper(self, server: Server, response: Any) -> None:
        """Makes the handle of one server that of a pool."""
        for part in response.parts:
            if self._work.method == "Rollout" and part.result.kept.handle:
                kept = part.result.kept
                shard = KeptShard(server.target, self._work.cutter.instances, kept.handle)
                kept.handle = KeptShards([shard]).handle

    def _size(self) -> tuple[int, int]:
        """Instances and bytes of the whole request."""
        return self._work.cutter.stated, named_programs.size_of(self._work.message)

    def _note(
        self,
        server: Server,
        rpc_error: grpc.RpcError,
        reached: Reached,
        metadata: list[tuple[str, str]],
    ) -> None:
        """Notes what a failure says of a server: nothing, where this client cancelled the call."""
        error = self._shared.error_of(rpc_error)
        if self._cancelled and self._left() > 0.0:
            return
        if self._cancelled:  # as the time was over for another shard, and so for this one
            error = errors.DeadlineExceeded(str(error))
        self._servers.failed(server, error, reached, metadata)

    # ---- A server for each shard ----

    def _of_many(self, merge: Merge) -> Iterator[Any]:
        response_of: Any = (
            simgrad_pb2.GradientResponse
            if self._work.method == "Gradient"
            else simgrad_pb2.RolloutResponse
        )
        while True:
            event = self._events.get()
            if event.error is not None:
                raise event.error
            if event.server:
                merge.begin(event.shard, event.server)
                continue
            parts = [p for part in event.response.parts for p in merge.add(event.shard, part)]
            if parts:
                yield response_of(parts=parts)
            if any(part.WhichOneof("part") == "result" for part in parts):
                return

    def _run(self) -> None:
        """One shard after the other, each until it is done or given up."""
        number = 0
        try:
            while not self._cancelled:
                number, shard, preferred = self._waiting.get_nowait()
                message = self._work.cutter.message(shard)
                call = self._new_call()
                with call:
                    refused: list[str] = []  # servers that failed since the last part of an answer
                    while not self._try(number, shard, message, call, preferred, refused):
                        self._call.count_repeat()
        except queue.Empty:
            pass
        except BaseException as error:  # the reader raises it
            self._events.put(_Event(number, error=error))

    def _try(
        self,
        number: int,
        shard: Shard,
        message: Any,
        call: PooledCall,
        preferred: str,
        refused: list[str],
    ) -> bool:
        server: Server | None = None
        reached = Reached()
        kept = self._work.kept
        is_kept = kept is not None and kept.at(number, preferred) != ""
        handle = call.server = ""
        metadata: list[tuple[str, str]] = []
        try:
            size = named_programs.size_of(message)
            server = self._claim(preferred, refused, is_kept, shard.instances, size)
            call.server = server.target
            metadata = self._metadata()
            handle = kept.at(number, server.target) if kept is not None else ""
            left = min(call.begin(), self._left())
            self._check_size(shard, message, size, server)
            method = "Vjp" if handle else self._work.method
            sent = request.vjp_request(handle, [message]) if handle else message
            if not handle:
                self._work.simulated.add(number)
            self._watch(number, call, None)  # for the uploads before it
            rpc = StreamedCall(server.send(method, sent, call, left, metadata))
            self._watch(number, call, rpc)
            self._events.put(_Event(number, server=server.target))
            result = None
            for response in rpc:
                call.is_alive()
                refused.clear()
                for part in response.parts:
                    reached = _further(reached, part)
                    result = part if part.WhichOneof("part") == "result" else result
                self._events.put(_Event(number, response=response))
            if result is None:
                raise errors.Internal(f"{server.target} ended the stream without a result")
            if kept is None:
                self._measure(server, shard, result)
            return True
        except grpc.RpcError as error:
            if kept is not None and handle and is_gone(self._shared.error_of(error)):
                kept.forget(number)
            elif self._shared.error_of(error).reason == "TENSOR_GONE":
                pass  # it is given what it lost
            elif server is not None:
                refused.append(server.target)
                self._note(server, error, reached, metadata)
            failure = error
        finally:
            self._watch(number, call, None)
            if server is not None:
                self._give_back(server)
        if handle and kept is not None and not kept.at(number, preferred):
            return self._try(number, shard, message, call, preferred, refused)  # simulates it again
        call.failed(failure, reached)
        return False

    def _check_size(self, shard: Shard, message: Any, size: int, server: Server) -> None:
        """Raises ResourceExhausted for a shard of `size` bytes that its server does not take: of one block, as larger ones
        are cut."""
        most = server.largest[1]
        if size <= most:
            return
        limit = int(most)
        of_instance = self._work.cutter.row_bytes()
        room = (limit - (size - of_instance * shard.instances)) // max(of_instance, 1)
        fewer = f"send at most {room} instances at a time (first_instance), " if room > 0 else "send "
        enough = -(-size // _STEP_OF_LIMITS) * _STEP_OF_LIMITS
        what = f"the request for ids {shard.ids.min()} to {shard.ids.max()}, which a pool does not cut,"
        remedy = f"start servers with --max_request_bytes={enough}, or {fewer}"
        request.check_size(message, size, limit, what, remedy)

    def _measure(self, server: Server, shard: Shard, part: Any) -> None:
        result = part.result
        rollout = result.rollout if self._work.method == "Gradient" else result
        steps = self._work.message.spec.steps
        server.measured(self._kind, shard.instances * steps, sum(rollout.phase_seconds.values()))

    def _watch(self, number: int, call: PooledCall, rpc: Any) -> None:
        """Lets `cancel` end the call, and what gRPC does for it."""
        with self._condition:
            self._running[number] = (call, rpc)
            if self._cancelled:
                call.cancel()
                if rpc is not None:
                    rpc.cancel()

    def _claim(
        self, preferred: str, refused: Sequence[str], waits: bool, instances: int, size: int
    ) -> Server:
        """A server without a shard of this answer whose limits take this one: the preferred one, else one that has not
        failed. Where no limits take it, it is the server that takes the most bytes.

        Args:
          instances, size: of the shard, the latter in bytes.
          waits: whether to wait for the preferred server, as long as it has not failed; it may be named no more.
        Errors: grpc.RpcError where the pool has no server.
        """

        def choose(servers: list[Server]) -> Server | None:
            able = [s for s in servers if s.takes(instances, size)]
            able = able or sorted(servers, key=lambda s: s.largest[1])[-1:]
            # A server that was lost comes back with the next request, once it said what it is.
            fit = [s for s in able if s.target not in refused and s.info is not None]
            # One that is busy but fit is better than one that has failed.
            its_own = [s for s in fit if waits and s.target == preferred]
            free = [s for s in its_own or fit or able if s.target not in self._busy]
            order = lambda s: (s.target != preferred, s.running, s.down_until)
            return min(free, key=order, default=None)

        with self._condition:
            while not self._cancelled:
                chosen = self._servers.claim(choose, (preferred,) if waits else ())
                if chosen is not None:
                    self._busy.add(chosen.target)
                    return chosen
                self._condition.wait(0.1)
        raise errors.Cancelled("the call was cancelled by this client")

    def _give_back(self, server: Server) -> None:
        self._servers.ended(server)
        with self._condition:
            self._busy.discard(server.target)
            self._condition.notify_all()


def _is_of_another(server: Server, response: Any) -> bool:
    """Whether an answer begins with a revision other than its server was known by."""
    info = server.info  # another call may lose it
    if info is None or response.parts[0].WhichOneof("part") != "header":
        return False
    header = response.parts[0].header
    return (header.server_version, header.revision) != (info.version, info.revision)


def _further(reached: Reached, part: Any) -> Reached:
    """How far an answer is after one more part."""
    kind = part.WhichOneof("part")
    if kind == "header":
        return Reached("forward", 0, part.header.steps)
    if kind == "progress":
        return Reached(part.progress.phase, part.progress.steps_done, part.progress.steps_total)
    return reached
