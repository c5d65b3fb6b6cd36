"""The calls of a pool: their errors name the server that failed."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from simgrad import errors
from simgrad.calls import Calls, Terms
from simgrad.failure import NOT_CONNECTED, Reached, message_of
from simgrad.repeating import Call

# Errors about the request itself, which every server gives in the same words.
_OF_REQUEST = (errors.InvalidArgument, errors.NotFound)


class PooledCall(Call):
    """A call of a pool: that of the caller, or one for a shard of it. Its errors tell the tries of all shards.

    Attributes:
      server: the target of the try; empty: none was chosen.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.server = ""
        self._whole: PooledCall | None = None  # of a shard: that of the caller
        self._is_told = False  # how many tries there were
        self._unreached: set[str] = set()  # servers of all shards to which there was no connection

    def belong_to(self, whole: PooledCall) -> None:
        """Makes this the call for a shard of another one."""
        self._whole, self._unreached = whole, whole._unreached

    def failed(self, rpc_error: grpc.RpcError, reached: Reached = Reached()) -> None:
        message = message_of(self._shared.error_of(rpc_error), "", self._timeout, reached)
        if message.startswith(NOT_CONNECTED) and self.server:
            self._unreached.add(self.server)
        super().failed(rpc_error, reached)
        if not self._first_message.startswith(NOT_CONNECTED):  # else more servers may come to it
            self._first_message = self._of_servers(self._first_message)

    def count_repeat(self) -> None:
        """Counts the repeat of a shard, unless an error has told the tries already."""
        with _COUNTING:
            self.tries += not self._is_told

    def _final(
        self, error: errors.SimgradError, message: str, obstacle: str
    ) -> errors.SimgradError:
        message = self._of_servers(message)
        self._first_message = self._of_servers(self._first_message)
        if self._whole is not None:
            with _COUNTING:
                self._whole._is_told = True
                self.tries = self._whole.tries
        if self.server and self.server not in message and not isinstance(error, _OF_REQUEST):
            obstacle = "; ".join(filter(None, [f"at {self.server}", obstacle]))
        return super()._final(error, message, obstacle)

    def _of_servers(self, message: str) -> str:
        """The message with the servers that it is about in the place of the pool."""
        pool = self._shared.target
        about = [self.server] if self.server else []
        if message.startswith(NOT_CONNECTED):
            about = sorted(tuple(self._unreached), key=pool.find)
        return message.replace(pool, ", ".join(about)) if about else message


_COUNTING = threading.Lock()


class PooledCalls(Calls):
    """Begins the calls of a pool, to whatever servers they go."""

    _call = PooledCall

    def new_part(self, whole: PooledCall, message: Any, terms: Terms) -> PooledCall:
        """A call for a shard of what the caller asked for."""
        part = self.new(message, terms)
        assert isinstance(part, PooledCall)
        part.belong_to(whole)
        return part
