"""The terms of one client's calls: how long each may take, how often it is tried, and the token it carries."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Union

import grpc

from simgrad import errors, named_programs
from simgrad.failure import Reached, deadline_message
from simgrad.program_lines import add_line
from simgrad.repeating import Call, Repeating
from simgrad.retry import Retry, policy_of

Token = Union[str, Callable[[], str], None]


class Terms(NamedTuple):
    """The terms of one call.

    Attributes:
      timeout: deadline of all tries together, in seconds.
      retry: None: nothing is repeated.
      since: when the time began, by the clock of the client, where it is that of several calls together;
        None: it begins with each call.
    """

    timeout: float
    retry: Retry | None
    since: float | None = None


class Calls:
    """Begins the calls of one client, wherever they go.

    Args:
      target: the server's name in errors.
      max_message_bytes: largest message received; errors say it.
      timeout, token, retry: as for Client.

    Attributes:
      timeout, retry: terms of calls that set none of their own.
      repeating: what the calls share for their repeats.
    Threads: safe.
    """

    _call = Call

    def __init__(
        self,
        target: str,
        *,
        timeout: float,
        max_message_bytes: int,
        token: Token,
        retry: Retry | bool,
    ):
        self.target = target
        self.timeout = checked_timeout(timeout)
        self.retry = policy_of(retry)
        if token is not None and not callable(token):
            _check_token(token, "token")  # a function's is of the moment
        self.repeating = Repeating(target, self.error_of, (self.retry or Retry()).extra)
        self._token = token
        self.max_message_bytes = max_message_bytes

    def terms(self, timeout: float | None = None, retry: Retry | bool | None = None) -> Terms:
        """The terms of a call; None: the client's."""
        return Terms(
            self.timeout if timeout is None else checked_timeout(timeout),
            self.retry if retry is None else policy_of(retry),
        )

    def terms_together(
        self, timeout: float | None = None, retry: Retry | bool | None = None
    ) -> Terms:
        """The terms of several calls whose time, of all together, begins now."""
        return self.terms(timeout, retry)._replace(since=self.repeating.clock.now())

    def new(self, message: Any, terms: Terms) -> Call:
        """A call, whose time begins now unless its terms say when; its error names the line that `message` blames.

        Errors: FailedPrecondition (reason CLIENT_CLOSED) once the client is closed; DeadlineExceeded where the
          calls before it have left no time.
        """
        if self.repeating.closed:
            raise errors.FailedPrecondition("this client is closed", reason="CLIENT_CLOSED")
        if terms.since is not None and self.repeating.clock.now() >= terms.since + terms.timeout:
            raise errors.DeadlineExceeded(deadline_message(terms.timeout, Reached()))
        explain = lambda error: add_line(error, message)
        call = self._call(self.repeating, terms.retry, terms.timeout, explain, terms.since)
        call.programs = named_programs.held(message)
        return call

    def metadata(self) -> list[tuple[str, str]]:
        """The token of the moment, as each try sends it.

        Errors: TypeError or ValueError for a token that cannot be sent; those of the caller's function.
        """
        if self._token is None:
            return []
        token = self._token
        if callable(token):
            token = token()
            _check_token(token, "token, as its function gives it")
        return [("authorization", f"Bearer {token}")]

    def check_token(self) -> None:
        """Raises what `metadata` would: for calls whose first try begins after their caller has gone on."""
        self.metadata()

    def error_of(self, error: grpc.RpcError) -> errors.SimgradError:
        """The typed error of a failed call, with gRPC's own text."""
        return errors.from_rpc_error(error, self.max_message_bytes)


# gRPC counts nanoseconds in 64 bits; this is 31 years.
_LONGEST_TIMEOUT = 1e9


def checked_timeout(timeout: float) -> float:
    """The timeout that a call gets: one beyond 10^9 s is as good as none, and becomes that."""
    try:
        is_one = 0 < timeout < float("inf")
    except TypeError:
        raise TypeError(f"timeout: a number of seconds, not {timeout!r}") from None
    if not is_one:
        raise ValueError(f"timeout {timeout!r}: a positive, finite number of seconds")
    return min(timeout, _LONGEST_TIMEOUT)


def _check_token(token: Any, name: str) -> None:
    """Errors hold no part of the token, for they end up in logs."""
    if not isinstance(token, str):
        raise TypeError(f"{name}: a str, not {type(token).__name__}")
    if not token.isascii() or not token.isprintable():
        raise ValueError(f"{name}: must be printable ASCII on one line; is it a whole file?")
