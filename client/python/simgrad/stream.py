"""An answer while it arrives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator, NamedTuple

import grpc

from simgrad import errors
from simgrad.assembly import Assembly, Part
from simgrad.clock import Clock
from simgrad.connection import StreamedCall
from simgrad.delivery import Delivery
from simgrad.diagnostics import BackwardTrace, ForwardTrace
from simgrad.failure import Reached
from simgrad.progress import ProgressCallback
from simgrad.repeating import Call
from simgrad.results import Gradient, Rollout
from simgrad.v1 import simgrad_pb2

_RANK = {"forward": 0, "adjoint": 1, "arithmetic": 2}
# Looks at a result; the handle is that of a kept rollout, and empty if it is not kept.
Finish = Callable[[Rollout, simgrad_pb2.KeptRun], None]


class Start(NamedTuple):
    """How the tries of a call begin.

    Attributes:
      send: sends the request, given the seconds that the try may take; returns what gRPC makes of it.
      waits: whether the first try waits for an upload before it is sent.
    """

    send: Callable[[float], Any]
    waits: bool = False


class Stream:
    """Blocks of diagnostics as they arrive, and the result at the end.

    Iterating yields a ForwardTrace per block of steps and, for a gradient, a BackwardTrace per
    block of the reverse pass. Leaving the loop before its end cancels the request on the server.
    After the loop, `result` is the Rollout or Gradient; before, reading it drains the stream.
    The request is sent when the stream is made; where content must be uploaded first, that and the
    request are sent when the stream is first read, and `cancel` ends the upload too.

    An answer that breaks is asked for again (Client(retry=...)). What was yielded is not yielded
    again: a repeated run gives the same bits, and what it adds begins at the step where the first
    broke. Where the server has changed meanwhile, in revision or program, its run starts anew if
    nothing was yielded yet, and fails with FailedPrecondition (reason SERVER_CHANGED) else. The
    result is always of one run.

    Errors: iterating and `result` raise what Client.rollout raises.
    Threads: one thread at a time; `cancel` from any.
    """

    def __init__(
        self,
        call: Call,
        start: Start,
        assembly: Callable[[], Assembly],
        observer: ProgressCallback,
        finish: Finish,
        clock: Clock,
    ):
        """`assembly` makes a new one; `finish` looks at the result."""
        self._call = call
        self._start = start.send
        self._new_assembly = assembly
        self._observer = observer
        self._finish = finish
        self._clock = clock
        self._delivery = Delivery()
        self._pause = 0.0  # longest time, in seconds, that the caller left this try unread
        self._told = (-1, -1, -1)  # run, phase and steps of the last progress that the observer was told
        self._rpc: Any = None  # of this try, a StreamedCall; None: none has begun
        self._assembly = self._new_assembly()
        self._reached = Reached()
        if not start.waits:
            self._begin()
        self._blocks = self._read()

    def __iter__(self) -> Iterator[ForwardTrace | BackwardTrace]:
        for part in self._until_complete():
            for trace in self._delivery.new_of(self._assembly.view(part)):
                left = self._clock.now()
                yield trace
                self._pause = max(self._pause, self._clock.now() - left)

    @property
    def result(self) -> Rollout | Gradient:
        # No caller takes the blocks one by one: the result decodes them together.
        for _ in self._until_complete():
            pass
        if self._assembly.result is None:
            raise errors.Cancelled("the stream was left before its end: there is no result")
        return self._assembly.result

    @property
    def results(self) -> list[Rollout]:
        """All results: one for each cotangent of a Vjp, for each run of a Compare, else one."""
        self.result
        return self._assembly.results

    def cancel(self) -> None:
        """Stops the work on the server; does nothing once the answer is complete."""
        self._call.cancel()
        if self._rpc is not None:
            self._rpc.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()

    def _until_complete(self) -> Iterator[Part]:
        """The parts that can be viewed; leaving before the end cancels."""
        complete = False
        try:
            yield from self._blocks
            complete = True
        finally:
            if not complete:
                self.cancel()

    def _begin(self) -> None:
        """Begins a try: a run of its own, of which nothing goes into the result of another."""
        self._assembly = self._new_assembly()
        self._reached = Reached()
        self._pause = 0.0
        self._rpc = StreamedCall(self._start(self._call.begin()))
        if self._call.is_cancelled:  # by another thread, which may have seen the try before only
            self._rpc.cancel()

    def _read(self) -> Iterator[Part]:
        try:
            with self._call:
                yield from self._repeated()
        except errors.SimgradError as error:
            error.tries = self._call.tries
            raise
        finally:
            getattr(self._observer, "close", lambda: None)()
        result = self._assembly.result
        if result is None:
            raise errors.Internal("the server ended the stream without a result")
        for each in self._assembly.results:
            each.tries = self._call.tries
            self._finish(each, self._assembly.kept)

    def _repeated(self) -> Iterator[Part]:
        if self._rpc is None:
            self._call.check()
            self._begin()
        while True:
            try:
                yield from self._run()
                return
            except grpc.RpcError as error:
                self._call.failed(error, replace(self._reached, pause=self._pause))
            self._begin()

    def _run(self) -> Iterator[Part]:
        """The viewable parts of one try."""
        for response in self._rpc:
            self._call.is_alive()
            for part in response.parts:
                self._look_at(part)
                if part.WhichOneof("part") == "progress":
                    continue
                self._assembly.add(part)
                if self._assembly.is_viewable(part):
                    yield part
        result = self._assembly.result
        if result is not None:
            # Progress messages are coalesced, and the last is left out for the answer.
            phase = "adjoint" if isinstance(result, Gradient) else "forward"
            phase = "arithmetic" if "arithmetic" in result.seconds else phase
            self._observer(phase, result.steps, result.steps)

    def _look_at(self, part: Part) -> None:
        """Notes how far the answer is."""
        kind = part.WhichOneof("part")
        if kind == "header":
            self._delivery.take_header(part.header)
            self._reached = Reached("forward", 0, part.header.steps)
        elif kind == "diagnostics":
            block = part.diagnostics
            self._reach("forward", block.first_step + block.steps, self._reached.total)
        elif kind == "progress":
            progress = part.progress
            self._reach(progress.phase, progress.steps_done, progress.steps_total)
            run = len(self._assembly.results)
            position = (run, _RANK.get(progress.phase, len(_RANK)), progress.steps_done)
            if position > self._told:  # a repeated run comes by what was told once more
                self._told = position
                self._observer(progress.phase, progress.steps_done, progress.steps_total)

    def _reach(self, phase: str, done: int, total: int) -> None:
        """Blocks and progress come in any order, so neither takes back what the other said."""
        was = self._reached
        if phase != was.phase:
            is_later = _RANK.get(phase, len(_RANK)) > _RANK.get(was.phase, -1)
            self._reached = Reached(phase, done, total) if is_later else was
        elif done > was.done:
            self._reached = Reached(phase, done, total)
