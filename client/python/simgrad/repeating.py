"""One call and its repeats; and what the calls of one client share for that."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, Callable

import grpc

from simgrad import errors
from simgrad.clock import Clock
from simgrad.failure import NOT_CONNECTED, REFUSED_CONNECTION, Kind, Reached, kind_of, message_of
from simgrad.named_programs import NamedProgram
from simgrad.retry import Retry
from simgrad.retry_budget import RetryBudget

_LOG = logging.getLogger("simgrad")
# Reasons of errors that the same request, sent whole, may not have or has of another field. A server
# of an older release, in the place of the one that took the content, knows no names of it.
_OF_NAMING = ("TENSOR_GONE", "NOT_SUPPORTED", "INVALID_FIELD")
# Seconds of a deadline that are kept for the last try: as long as the first wait is by default, and many
# round trips of a small call. A deadline below twice that keeps half of it.
_LAST_TRY = 0.1


class Repeating:
    """State that the calls of one client share: budget, clock, chance, and whether a server answered.

    Args:
      error_of: the typed error of a failed call, with gRPC's own text.
      uniform: draws evenly from an interval.
    Threads: safe.
    """

    def __init__(
        self,
        target: str,
        error_of: Callable[[grpc.RpcError], errors.SimgradError],
        extra: float,
        clock: Clock | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ):
        self.target = target
        self.error_of = error_of
        self.clock = clock or Clock()
        self.uniform = uniform
        self.budget = RetryBudget(extra, self.clock.now())
        self.answered = False
        self.closed = False
        self.repeats = 0
        self.in_flight = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        self.closed = True
        self.clock.wake()

    def count_repeat(self) -> None:
        with self._lock:
            self.repeats += 1

    def count_in_flight(self, change: int) -> None:
        with self._lock:
            self.in_flight += change


class Call:
    """One call of the service, from its first try to its end.

    Each try is `begin`, then what gRPC does, then `failed` where it failed; `is_alive` when anything
    of an answer came. The block of a `with` is the time in which the call counts as in flight.

    Args:
      policy: None: no repeats.
      timeout: deadline of all tries together, in seconds.
      explain: adds to the error of the call what its request says.
      since: when these seconds began, by the clock of `shared`; None: now.
    Threads: one, and `cancel` from any.
    """

    def __init__(
        self,
        shared: Repeating,
        policy: Retry | None,
        timeout: float,
        explain: Callable[[errors.SimgradError], None] = lambda error: None,
        since: float | None = None,
    ):
        self._shared = shared
        self._policy = policy
        self._timeout = timeout
        self._explain = explain
        self._started = shared.clock.now() if since is None else since
        self._row = 0  # failures since the last part of an answer
        self._failing_since: float | None = None
        self._sent = 0
        self._first_message = ""
        self.tries = 0
        self.is_cancelled = False
        self._lost = 0
        self.named = False  # whether this try names content that its server keeps, and how to say
        self.on_lost: Callable[[], None] = lambda: None  # that the server does not
        self._held: Any = None
        self.programs: tuple[NamedProgram, ...] = ()  # that its request names

    def __enter__(self) -> "Call":
        self._shared.count_in_flight(1)
        return self

    def __exit__(self, *_: Any) -> None:
        self._shared.count_in_flight(-1)

    def begin(self) -> float:
        """Begins a try; returns the seconds that are left for it."""
        now = self._shared.clock.now()
        if self.tries == 0:
            self._shared.budget.add_call(now)
        self.tries += 1
        return max(self._started + self._timeout - now, 0.0)

    @property
    def may_name(self) -> bool:
        """Whether content may be named instead of sent: a server that lost it is given it once more."""
        return self._lost < 2

    def is_alive(self) -> None:
        self._shared.answered = True
        self._failing_since = None
        self._row = 0

    def cancel(self) -> None:
        self.is_cancelled = True
        held = self._held
        if held is not None:
            held.cancel()
        self._shared.clock.wake()

    def hold(self, rpc: Any) -> None:
        """Lets `cancel` end an upload that this thread waits for, before a try; None: it has ended."""
        self._held = rpc
        if rpc is not None and self.is_cancelled:  # by another thread, which saw none
            rpc.cancel()

    def check(self) -> None:
        """Raises Cancelled where the call was cancelled, or its client closed, before a try."""
        if self._is_over():
            raise self._cancelled(Reached())

    def failed(self, rpc_error: grpc.RpcError, reached: Reached = Reached()) -> None:
        """Returns when the next try should begin, or raises the typed error of the call."""
        if self._is_over():
            raise self._cancelled(reached) from None
        error = self._shared.error_of(rpc_error)
        if self._is_for_naming(error):
            return  # the next try is another request, so it is no repeat
        kind = kind_of(error, reached)
        if kind is not Kind.UNSENT:
            self._sent += 1
            if error.reason or kind is Kind.REFUSED:
                self._shared.answered = True
        message = message_of(error, self._shared.target, self._timeout, reached)
        now = self._shared.clock.now()
        if self._failing_since is None:
            self._failing_since = now
        wait = self._wait(error, now)
        obstacle = self._obstacle(kind, wait, now)
        if obstacle is not None:
            raise self._final(error, message, obstacle) from None
        _LOG.info("%s: %s; try %d in %.2f s", error.code, message, self.tries + 1, wait)
        self._first_message = self._first_message or message
        self._row += 1
        self._shared.count_repeat()
        self._shared.clock.pause(wait, self._is_over)
        if self._is_over():
            raise self._cancelled(reached) from None

    def _is_for_naming(self, error: errors.SimgradError) -> bool:
        """Whether a request that names content failed, and may not if it is sent otherwise."""
        if not self.named or error.reason not in _OF_NAMING:
            return False
        if error.reason == "TENSOR_GONE":
            self.on_lost()
        # An error that is no loss is said of the whole request, which is what the caller wrote.
        self._lost = self._lost + 1 if error.reason == "TENSOR_GONE" else 2
        return True

    def _is_over(self) -> bool:
        return self.is_cancelled or self._shared.closed

    def _wait(self, error: errors.SimgradError, now: float) -> float:
        """Seconds until the next try: those that the server asked for, and more at random, up to what patience
        and deadline leave."""
        if self._policy is None:
            return 0.0
        jitter = self._shared.uniform(0.0, self._policy.longest(self._row))
        asked = error.retry_after or 0.0
        return asked + max(min(jitter, min(self._left(now)) - asked), 0.0)

    def _left(self, now: float) -> tuple[float, float]:
        """Seconds in which a last try may begin: by the deadline, and by patience."""
        assert self._failing_since is not None
        by_deadline = self._started + self._timeout - min(_LAST_TRY, self._timeout / 2) - now
        return by_deadline, self._failing_since + self._patience() - now

    def _patience(self) -> float:
        policy = self._policy
        if policy is None:
            return 0.0
        return policy.patience if self._shared.answered else policy.connect

    def _obstacle(self, kind: Kind, wait: float, now: float) -> str | None:
        """Why there is no further try; empty where there is nothing to say about it. None: there is
        one, and the budget has been asked."""
        policy = self._policy
        if policy is None or kind is Kind.FINAL:
            return ""
        by_deadline, by_patience = self._left(now)
        if by_deadline <= 0 or wait > by_deadline:
            return f"the deadline of {self._timeout:g} s leaves no time for another try"
        if by_patience <= 0 or wait > by_patience:
            return f"given up, as failures in a row are borne for {self._patience():g} s"
        if kind is Kind.UNSENT:
            return None
        if self._sent >= policy.tries:
            return "it is not tried more often"
        budget, in_flight = self._shared.budget, self._shared.in_flight
        departed = kind is Kind.DEPARTED and budget.take_for_departure(now, in_flight)
        if departed or (kind is Kind.REFUSED and budget.take(now)):
            return None
        return "not repeated, as this client has spent its retry budget"

    def _final(
        self, error: errors.SimgradError, message: str, obstacle: str
    ) -> errors.SimgradError:
        notes = [f"{self.tries} tries"] if self.tries > 1 else []
        notes += [obstacle] if obstacle else []
        first = self._first_message
        if first and first != message:
            # A name may have several addresses, one the server's and another nobody's.
            refused = message.endswith(REFUSED_CONNECTION) and first.startswith(NOT_CONNECTED)
            notes.append(f"the last: {message}" if refused else f"the first: {first}")
            message = first if refused else message
        error.args = (f"{message} ({'; '.join(notes)})" if notes else message,)
        error.tries = self.tries
        self._explain(error)
        return error

    def _cancelled(self, reached: Reached) -> errors.SimgradError:
        error = errors.Cancelled(f"the call was cancelled by this client {reached}")
        error.tries = self.tries
        return error
