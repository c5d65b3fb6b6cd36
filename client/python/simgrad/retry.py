"""When a client repeats a call that failed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retry:
    """How long a client goes on trying. Calls are pure, so a repeated call gives the same bits.

    Repeated are: no connection; a connection that breaks, also in the middle of an answer; a server
    that drains; UNAVAILABLE; and RESOURCE_EXHAUSTED that says when to try again (QUEUE_FULL, and
    OUT_OF_MEMORY where the work may fit later). Never repeated: what the caller cancelled, and an
    error that is about the request (a field, a token, a deadline, a reader that was too slow).

    The wait before repeat n of a row is drawn evenly from 0 to min(first_wait * 2^n, longest_wait)
    seconds, and shortened to what patience and deadline leave; what the server asked for (RetryInfo) is
    waited before that, in full. A call gives up when its deadline leaves no
    time for another try (0.1 s), and when one of the limits here is reached.

    Attributes:
      patience: seconds of failures in a row after which a call gives up. They count from the first
        failure after the last part of an answer.
      connect: the same for a client that no server has answered yet: its target may be misspelt.
      tries: how often one call is sent to a server in all. Attempts to connect are not counted.
      extra: repeats per call, over the life of the client: see RetryBudget.
      first_wait, longest_wait: seconds.
    """

    patience: float = 30.0
    connect: float = 10.0
    tries: int = 10
    extra: float = 0.1
    first_wait: float = 0.1
    longest_wait: float = 2.0

    def __post_init__(self) -> None:
        for name in ("patience", "connect", "extra", "first_wait", "longest_wait"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} {value!r}: a finite number, at least 0")
        if self.tries < 1:
            raise ValueError(f"tries {self.tries!r}: at least 1")

    def longest(self, repeat: int) -> float:
        """The longest wait before a repeat, in seconds; the first repeat of a row is 0."""
        return float(min(self.first_wait * 2.0 ** min(repeat, 60), self.longest_wait))


def policy_of(retry: Retry | bool) -> Retry | None:
    """True: the default; False: None, and nothing is repeated."""
    if isinstance(retry, Retry):
        return retry
    if isinstance(retry, bool):
        return Retry() if retry else None
    raise TypeError(f"retry {retry!r}: True, False or a simgrad.Retry")
