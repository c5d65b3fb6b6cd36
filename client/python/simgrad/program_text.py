"""The text of the program behind an answer, which stays on the server until it is read."""

from __future__ import annotations

import threading
from typing import Any, Callable

from simgrad import errors
from simgrad.v1 import simgrad_pb2

Ask = Callable[[], simgrad_pb2.ProgramInfo]


class ProgramText:
    """A text that is there, or that the first `read` asks the server for.

    Args:
      text: what came with the answer; None: nothing did.
      ask: gives the program of the same world, policy, objective and adjoint, with its text; None:
        no server can be asked, for example in a copy that was unpickled.
    A copy shares the text; a pickled one takes along what has been read.
    Threads: safe; the server is asked once.
    """

    def __init__(self, text: str | None = None, ask: Ask | None = None):
        self._text = text
        self._ask = ask
        self._lock = threading.Lock()

    def read(self, fingerprint: str) -> str:
        """The text of the program with this fingerprint.

        Errors: those of Client.program; FailedPrecondition if there is no server to ask (reason
          CLIENT_CLOSED), or where the server makes another program of the request by now (reason
          SERVER_CHANGED).
        """
        with self._lock:
            if self._text is None:
                self._text = self._asked(fingerprint)
                self._ask = None
            return self._text

    def _asked(self, fingerprint: str) -> str:
        if self._ask is None:
            raise unreadable("CLIENT_CLOSED", "and this copy of the result knows no server")
        program = self._ask()
        if program.fingerprint != fingerprint:
            raise unreadable(
                "SERVER_CHANGED",
                f"and it makes program {program.fingerprint[:16]} of the same request by now, where "
                f"it ran {fingerprint[:16]}",
            )
        return program.text

    def __copy__(self) -> "ProgramText":
        return self

    def __deepcopy__(self, memo: Any) -> "ProgramText":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgramText, (self._text,)


def unreadable(reason: str, why: str) -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        f"the text of the program stayed on the server, {why}: ask for it with the answer "
        '(program="text"), or call Client.program',
        reason=reason,
    )
