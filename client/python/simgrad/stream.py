"""An answer while it arrives."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import grpc

from simgrad import errors
from simgrad.assembly import Assembly, Part
from simgrad.diagnostics import BackwardTrace, ForwardTrace
from simgrad.progress import ProgressCallback
from simgrad.results import Gradient, Rollout


class Stream:
    """Blocks of diagnostics as they arrive, and the result at the end.

    Iterating yields a ForwardTrace per block of steps and, for a gradient, a BackwardTrace per
    block of the reverse pass. Leaving the loop before its end cancels the request on the server.
    After the loop, `result` is the Rollout or Gradient; before, reading it drains the stream.

    Errors: iterating and `result` raise what Client.rollout raises.
    Threads: one thread at a time; `cancel` from any.
    """

    def __init__(
        self,
        call: Any,
        assembly: Assembly,
        observer: ProgressCallback,
        finish: Callable[[Rollout], None],
        error_of: Callable[[grpc.RpcError], errors.SimgradError] = errors.from_rpc_error,
    ):
        self._call = call
        self._assembly = assembly
        self._observer = observer
        self._finish = finish
        self._error_of = error_of
        self._blocks = self._read()

    def __iter__(self) -> Iterator[ForwardTrace | BackwardTrace]:
        for part in self._until_complete():
            yield self._assembly.view(part)

    @property
    def result(self) -> Rollout | Gradient:
        # Nobody looks at the blocks one by one: the result decodes them together.
        for _ in self._until_complete():
            pass
        if self._assembly.result is None:
            raise errors.Cancelled("the stream was left before its end: there is no result")
        return self._assembly.result

    def cancel(self) -> None:
        """Stops the work on the server; does nothing once the answer is complete."""
        self._call.cancel()

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

    def _parts(self) -> Iterator[Part]:
        for response in self._call:
            yield from response.parts

    def _read(self) -> Iterator[Part]:
        try:
            for part in self._parts():
                if part.WhichOneof("part") == "progress":
                    progress = part.progress
                    self._observer(progress.phase, progress.steps_done, progress.steps_total)
                    continue
                self._assembly.add(part)
                if self._assembly.is_viewable(part):
                    yield part
                if self._assembly.result is not None:
                    # Progress messages are coalesced, and the last is left out for the answer.
                    steps = self._assembly.result.steps
                    phase = "adjoint" if isinstance(self._assembly.result, Gradient) else "forward"
                    self._observer(phase, steps, steps)
        except grpc.RpcError as error:
            raise self._error_of(error) from None
        finally:
            getattr(self._observer, "close", lambda: None)()
        result = self._assembly.result
        if result is None:
            raise errors.Internal("the server ended the stream without a result")
        self._finish(result)
