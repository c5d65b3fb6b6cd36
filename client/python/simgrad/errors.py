"""Errors of the client, one class per gRPC status that a caller can act on.

A request fails with one of these; a non-finite instance is a result and raises only where
on_nonfinite="raise" was asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc

from simgrad.v1 import error_details_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class FieldViolation(NamedTuple):
    field: str  # path in the request, for example "spec.world.config[tol]"
    description: str


class SimgradError(RuntimeError):
    """A request failed.

    Attributes:
      code: gRPC status name, for example "INVALID_ARGUMENT".
      reason: a word of a closed list, for example "INVALID_FIELD"; empty where the server gave
        none.
      field: path of the first field at fault; empty where none is named.
      violations: every FieldViolation that the server named.
      retry_after: seconds after which a retry is sensible, or None.
      metadata: further facts from the server, by name.
      tries: how often the call was tried, with its repeats (Client(retry=...)).
      line: of the user's file that wrote the operation at fault, in a program of one's own; else empty.
    """

    code = "UNKNOWN"
    tries = 1
    line = ""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str = "",
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
        metadata: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.code = code or type(self).code
        self.reason = reason
        self.violations = violations
        self.field = violations[0].field if violations else ""
        self.retry_after = retry_after
        self.metadata = metadata or {}


class InvalidArgument(SimgradError, ValueError):
    """The request is wrong; `field` says where. Sending it again cannot help."""

    code = "INVALID_ARGUMENT"


class NotFound(SimgradError, LookupError):
    """A world, or something else that was named, does not exist."""

    code = "NOT_FOUND"


class ResourceExhausted(SimgradError):
    """The queue is full, the work does not fit the memory, or a message is too large."""

    code = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(SimgradError, TimeoutError):
    """The deadline passed before the answer was complete."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(SimgradError):
    """The call was cancelled: by this client, or by a server that gave up a reader."""

    code = "CANCELLED"


class Unavailable(SimgradError, ConnectionError):
    """No server listens at the target, or the server is draining, and the client's own repeats
    (Client(retry=...)) did not help; later ones may."""

    code = "UNAVAILABLE"


class Unauthenticated(SimgradError, PermissionError):
    """The server wants a token, and this is none of its tokens: Client(token=...)."""

    code = "UNAUTHENTICATED"


class Unimplemented(SimgradError):
    """The server does not have what was asked for."""

    code = "UNIMPLEMENTED"


class FailedPrecondition(SimgradError):
    """Something that the request builds on is gone: an uploaded tensor, or the server whose answer
    broke in its middle (reason SERVER_CHANGED)."""

    code = "FAILED_PRECONDITION"


class Internal(SimgradError):
    """A fault of the server."""

    code = "INTERNAL"


class NonFiniteError(SimgradError, ArithmeticError):
    """At least one instance became non-finite and on_nonfinite="raise" was asked for.

    Attributes:
      certificates: birth certificates of the first instances that have one.
      result: the complete result.
    """

    code = "NON_FINITE"

    def __init__(self, message: str, certificates: Any, result: Any):
        super().__init__(message)
        self.certificates = certificates
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        made_from = (str(self.args[0]), self.certificates, self.result)
        return type(self), made_from, {"tries": self.tries, "line": self.line}


_BY_CODE = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotFound,
        ResourceExhausted,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        Unauthenticated,
        Unimplemented,
        FailedPrecondition,
        Internal,
    )
}


def from_rpc_error(
    error: grpc.RpcError, max_message_bytes: int | None = None
) -> SimgradError:
    """The typed error of a failed call, with what grpc-status-details-bin says.

    Args:
      max_message_bytes: what this client receives, to tell whose limit a message was too large for.
    """
    code = error.code().name
    reason, violations, retry_after, metadata = "", [], None, {}
    for detail in _details(error):
        kind = detail.type_url.rpartition("/")[2]
        if kind == "google.rpc.ErrorInfo":
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            reason, metadata = info.reason, dict(info.metadata)
        elif kind == "google.rpc.BadRequest":
            bad = error_details_pb2.BadRequest.FromString(detail.value)
            violations += [FieldViolation(v.field, v.description) for v in bad.field_violations]
        elif kind == "google.rpc.RetryInfo":
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_after = delay.seconds + delay.nanos * 1e-9
    message = error.details() or code
    if max_message_bytes is not None and f"vs. {max_message_bytes})" in message and not reason:
        message = (
            f"the server sends larger messages than this client takes ({message}): "
            f"give the Client more than max_message_bytes={max_message_bytes}"
        )
    if violations and violations[0].field and violations[0].field not in message:
        message = f"{violations[0].field}: {message}"
    return _BY_CODE.get(code, SimgradError)(
        message,
        code=code,
        reason=reason,
        violations=tuple(violations),
        retry_after=retry_after,
        metadata=metadata,
    )


def _details(error: grpc.RpcError) -> list[Any]:
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == _DETAILS_KEY:
            try:
                return list(error_details_pb2.ErrorStatus.FromString(value).details)
            except Exception:  # a foreign server's details: the status itself still tells
                return []
    return []
