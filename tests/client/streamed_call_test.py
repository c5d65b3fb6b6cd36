"""What is left of a call once its answer was read, or was not."""

import grpc
import pytest

from simgrad.connection import StreamedCall


class Reader(grpc.RpcError):
    """As gRPC's own reader of streams: it raises as soon as it knows how the call ended, whatever is still to come."""

    class State:
        def __init__(self, due):
            self.due = due

    def __init__(self, messages, fails):
        self._messages, self._fails = messages, fails
        self._state = self.State(["status", "metadata", "sent"])
        self.cancelled = 0

    def __iter__(self):
        yield from self._messages
        self._consume_next_event()
        if self._fails:
            raise self
        while self._state.due:
            self._consume_next_event()

    def _consume_next_event(self):
        self._state.due.pop()

    def cancel(self):
        self.cancelled += 1


def due(reader):
    return reader._state.due


def test_a_call_that_failed_keeps_no_event():
    reader = Reader([1, 2], fails=True)
    read = []
    call = StreamedCall(reader)
    with pytest.raises(grpc.RpcError):
        read.extend(iter(call))
    assert due(reader) == []


def test_nor_does_one_that_was_left_or_never_read():
    left, unread = Reader([1, 2], fails=False), Reader([1, 2], fails=False)
    for _ in StreamedCall(left):
        break
    StreamedCall(unread)
    for reader in (left, unread):
        assert due(reader) == [] and reader.cancelled


def test_a_call_of_another_kind_is_cancelled_alone():
    class Other:
        cancelled = False

        def cancel(self):
            self.cancelled = True

        def __iter__(self):
            return iter("ab")

    other = Other()
    assert list(StreamedCall(other)) == ["a", "b"] and other.cancelled
