"""Statuses become typed errors that say where and why."""

import grpc
import pytest
from google.protobuf import any_pb2

import simgrad as sg
from simgrad import calls, errors
from simgrad.v1 import error_details_pb2


class FakeError(grpc.RpcError):
    def __init__(self, code, message="", details=()):
        self._code, self._message = code, message
        status = error_details_pb2.ErrorStatus(code=code.value[0], message=message)
        for kind, detail in details:
            status.details.append(
                any_pb2.Any(
                    type_url=f"type.googleapis.com/google.rpc.{kind}",
                    value=detail.SerializeToString(),
                )
            )
        self._trailing = (("other", "x"), ("grpc-status-details-bin", status.SerializeToString()))

    def code(self):
        return self._code

    def details(self):
        return self._message

    def trailing_metadata(self):
        return self._trailing


@pytest.mark.parametrize(
    "code, kind",
    [
        ("INVALID_ARGUMENT", sg.InvalidArgument),
        ("NOT_FOUND", sg.NotFound),
        ("RESOURCE_EXHAUSTED", sg.ResourceExhausted),
        ("DEADLINE_EXCEEDED", sg.DeadlineExceeded),
        ("CANCELLED", sg.Cancelled),
        ("UNAVAILABLE", sg.Unavailable),
        ("UNIMPLEMENTED", sg.Unimplemented),
        ("FAILED_PRECONDITION", sg.FailedPrecondition),
        ("INTERNAL", sg.Internal),
        ("DATA_LOSS", sg.SimgradError),
    ],
)
def test_a_status_has_its_class_and_keeps_its_code(code, kind):
    error = errors.from_rpc_error(FakeError(grpc.StatusCode[code], "why"))
    assert type(error) is kind and error.code == code and str(error) == "why"


def test_details_give_field_reason_and_retry():
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(
        field="spec.world.config[tol]", description="tol is -1: a positive number"
    )
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    info = error_details_pb2.ErrorInfo(
        reason="INVALID_FIELD", domain="simgrad", metadata={"limit": "4"}
    )
    error = errors.from_rpc_error(
        FakeError(
            grpc.StatusCode.INVALID_ARGUMENT,
            "tol is -1",
            [("ErrorInfo", info), ("BadRequest", bad), ("RetryInfo", retry), ("Unknown", retry)],
        )
    )
    assert error.field == "spec.world.config[tol]"
    assert error.violations == (
        (bad.field_violations[0].field, bad.field_violations[0].description),
    )
    assert (error.reason, error.retry_after, error.metadata) == (
        "INVALID_FIELD",
        1.5,
        {"limit": "4"},
    )
    assert "spec.world.config[tol]" in str(error)


def test_foreign_details_do_not_hide_the_status():
    error = FakeError(grpc.StatusCode.UNAVAILABLE, "draining")
    error._trailing = (("grpc-status-details-bin", b"\xff\xff\xff"),)
    assert isinstance(errors.from_rpc_error(error), sg.Unavailable)


def test_errors_are_also_what_python_calls_them():
    assert issubclass(sg.InvalidArgument, ValueError)
    assert issubclass(sg.DeadlineExceeded, TimeoutError)
    assert issubclass(sg.Unavailable, ConnectionError)
    assert issubclass(sg.NonFiniteError, ArithmeticError)


def test_nobody_at_the_target_is_unavailable():
    with sg.Client("localhost:1", timeout=20, retry=False) as client, pytest.raises(sg.Unavailable):
        client.info()


def test_a_closed_client_says_so():
    client = sg.Client("localhost:1")
    client.close()
    with pytest.raises(sg.FailedPrecondition, match="closed") as caught:
        client.info()
    assert caught.value.reason == "CLIENT_CLOSED"


def test_a_timeout_of_ages_is_none():
    assert calls.checked_timeout(1e12) == 1e9 and calls.checked_timeout(0.5) == 0.5
