"""Failed calls: whether one may be repeated, and how to say it to a person.

gRPC says why a connection failed or broke in the text of a status alone, and its versions use
different words; all of them are in this file.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from simgrad.errors import SimgradError


class Kind(enum.Enum):
    """Why a call failed, as far as repeating it goes."""

    FINAL = "about the request, or of the caller's making: never repeated"
    UNSENT = "no server was reached"
    DEPARTED = "the server goes away, or its connection broke"
    REFUSED = "a server refused it for a reason that may pass"


_OF_PHASE = {"adjoint": " of the reverse pass", "arithmetic": " of the count of its arithmetic"}


@dataclass(frozen=True)
class Reached:
    """How far the answer of one try had come.

    `phase` is empty before anything of the answer was there; `pause` is the longest time for which
    the caller did not read it, in seconds.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    pause: float = 0.0

    def __str__(self) -> str:
        if not self.phase:
            return "before the answer began"
        of = _OF_PHASE.get(self.phase, "")
        return f"after {self.done} of {self.total} steps{of}"


_NOT_CONNECTED = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "Failed to connect to remote host",
    "DNS resolution failed",
    "errors resolving",
    "address list",
)
# A connection that would fail in the same way the next time.
_OWN_UNUSABLE = "Failed to create security handshaker"
_NOT_TRUSTED = ("SSL_ERROR_SSL", "not in peer certificate", "Hostname Verification")
NOT_CONNECTED = "cannot connect to"
REFUSED_CONNECTION = "connection refused; is the server running?"
_BROKEN = (
    "Socket closed",
    "Stream removed",
    "GOAWAY",
    "RST_STREAM",
    "Connection reset",
    "Broken pipe",
    "ransport closed",
    "Endpoint",
    "End of TCP stream",
    "unexpected EOS",
    "eepalive",
    "recvmsg",
    "sendmsg",
    "Cancelling all calls",
)
_BY_CALLER = ("Locally cancelled", "Channel closed")
_GOING_AWAY = ("DRAINING", "DEVICE_LOST")
# A caller that leaves its answer unread for this long, in seconds, is what a cut without a reason is
# put down to: servers give up readers that are too slow.
_LONG_PAUSE = 10.0


def _has(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)


def kind_of(error: SimgradError, reached: Reached) -> Kind:
    """The kind of a failure; `error` has gRPC's own text."""
    text = str(error)
    if error.reason in _GOING_AWAY:
        return Kind.DEPARTED
    if error.code == "UNAVAILABLE":
        if _OWN_UNUSABLE in text or _has(text, _NOT_TRUSTED):
            return Kind.FINAL
        if not error.reason and _has(text, _NOT_CONNECTED):
            return Kind.UNSENT
        return Kind.DEPARTED if not error.reason and _has(text, _BROKEN) else Kind.REFUSED
    if error.code == "RESOURCE_EXHAUSTED":
        passes = error.reason == "QUEUE_FULL" or error.retry_after is not None
        return Kind.REFUSED if passes and error.reason != "SLOW_READER" else Kind.FINAL
    if error.code == "CANCELLED":
        ours = _has(text, _BY_CALLER) or reached.pause >= _LONG_PAUSE
        return Kind.FINAL if ours else Kind.DEPARTED
    broken = error.code in ("INTERNAL", "UNKNOWN") and not error.reason and _has(text, _BROKEN)
    return Kind.DEPARTED if broken else Kind.FINAL


def deadline_message(timeout: float, reached: Reached) -> str:
    return f"deadline of {timeout:g} s exceeded {reached}"


def message_of(error: SimgradError, target: str, timeout: float, reached: Reached) -> str:
    """A sentence for a person on what happened; `timeout` is the deadline of the call in seconds."""
    text = str(error)
    if error.code == "DEADLINE_EXCEEDED":
        why = f": {text}" if error.reason else ""
        return f"{deadline_message(timeout, reached)}{why}"
    if error.reason:
        return text
    if error.code == "CANCELLED":
        if _has(text, _BY_CALLER):
            return f"the call was cancelled by this client {reached}"
        if reached.pause >= _LONG_PAUSE:
            unread = f"while its caller did not read it for {reached.pause:.0f} s"
            return f"{target} cut the answer off {reached}, {unread}"
        return f"{target} cut the call off {reached}"
    if _has(text, _NOT_CONNECTED) or _has(text, _NOT_TRUSTED):
        return f"{NOT_CONNECTED} {target}: {_why_not_connected(text)}"
    if kind_of(error, reached) is Kind.DEPARTED:
        return f"the connection to {target} broke {reached}"
    return text


def _why_not_connected(text: str) -> str:
    low = text.lower()
    if "connection refused" in low:
        return REFUSED_CONNECTION
    if _OWN_UNUSABLE in text:
        return "the certificates or the key given to this client cannot be used"
    if "certificate has expired" in low:
        return "the server's certificate has expired"
    if "certificate is not yet valid" in low:
        return "the server's certificate is not valid yet, by the clock here"
    if "certificate verify failed" in low.replace("_", " "):
        return "the server's certificate is not signed by a certificate that is trusted here"
    if "wrong version number" in low.replace("_", " "):
        return "the server does not speak TLS"
    if _has(text, _NOT_TRUSTED[1:]):
        return "the server's certificate is for another name"
    if "handshake" in low:
        return "the TLS handshake failed; does the server speak TLS, and does it take our certificate?"
    if "resol" in low:
        return "the name does not resolve"
    if "timed out" in low or "timeout" in low or "deadline" in low:
        return "it does not answer (timed out)"
    if _has(text, _BROKEN):
        return (  # the same text for all of these
            "the connection was closed at once; do both sides speak TLS, or neither, and does this client show a "
            "certificate that the server admits, if it asks for one?"
        )
    return re.sub(r".*last error: (UNKNOWN: |UNAVAILABLE: )?", "", text)
