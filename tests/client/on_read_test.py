"""Attributes of results that are made when one of them is first read."""

import copy
import pathlib
import pickle
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fake_server import FakeServer, client_of

import simgrad as sg
from simgrad import diagnostics, results
from simgrad.on_read import OnRead, made_on_read, unread
from simgrad.v1 import diagnostics_pb2, simgrad_pb2


@dataclass
class Pair:
    a: int
    b: int
    c: int = 0

    def __getstate__(self):
        return {**self.__dict__, "a": self.a, "b": self.b}


made_on_read(Pair, ("a", "b"))


def counted():
    """An OnRead, and how often it made its values."""
    times = []

    def make():
        times.append(1)
        return {"a": [1], "b": [2]}

    return OnRead(make), times


def test_values_are_made_once_when_one_of_them_is_read():
    told, times = counted()
    told.afterwards(lambda made: made["b"].append(3))
    pair = Pair(told, told)
    assert pair.c == 0 and times == []
    assert pair.b == [2, 3] and times == [1]
    assert pair.a == [1] and pair.b is pair.b and times == [1]
    told.afterwards(lambda made: made["a"].append(4))
    assert pair.a == [1, 4] and times == [1]


def test_another_object_has_them_without_reading():
    told, times = counted()
    pair = Pair(told, told)
    other = Pair(c=5, **{name: unread(pair, name) for name in ("a", "b")})
    assert times == []
    assert other.a is pair.a and other.b is pair.b and times == [1]


def test_copies_and_pickles_have_the_values():
    for again in (copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), lambda p: replace(p, c=1)):
        told, times = counted()
        assert (again(Pair(told, told)).a, times) == ([1], [1])


def test_plain_values_stay_and_may_be_set():
    pair = Pair(1, 2)
    pair.a = 7
    assert (pair.a, pair.b) == (7, 2) and pair == Pair(7, 2)
    del pair.a
    assert not hasattr(pair, "a")
    assert not hasattr(Pair, "a")


def test_what_making_raises_is_raised_at_each_reading():
    def fails():
        raise ValueError("no such block")

    pair = Pair(OnRead(fails), 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such block"):
            pair.a


def test_threads_that_read_at_once_make_them_once():
    told, times = counted()
    pair = Pair(told, told)
    barrier, seen = threading.Barrier(8), []

    def read():
        barrier.wait()
        seen.append(pair.a)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert times == [1] and all(found is seen[0] for found in seen)


class Teller(FakeServer):
    """Answers with a block of two steps, in the message that has the trajectory."""

    def Rollout(self, request, context):
        header = simgrad_pb2.StreamHeader(instances=1, steps=2)
        block = diagnostics_pb2.DiagnosticsBlock(first_step=0, steps=2)
        block.terminations.add(site="solve", runs=[1, 1], iterations=bytes(4 * 2 * (len(diagnostics.ITERATION_BOUNDS) + 1)))
        result = simgrad_pb2.RolloutResult()
        result.health.ok = b"\1"
        parts = [dict(header=header), dict(diagnostics=block), dict(result=result)]
        yield simgrad_pb2.RolloutResponse(parts=[simgrad_pb2.RolloutPart(**part) for part in parts])


def test_a_call_that_looks_at_no_step_reads_no_block(monkeypatch):
    read = []
    whole = diagnostics.forward_trace
    monkeypatch.setattr(diagnostics, "forward_trace", lambda *blocks: read.append(1) or whole(*blocks))
    server = Teller()
    with client_of(server.target) as client:
        result = client.rollout(sg.World("still"), steps=2)
        assert result.ok.all() and result.steps == 2 and read == []
        assert list(result.sites) == ["solve"] and read == [1]
        assert result.events == result.forced == {} and read == [1]
    server.stop()


class Large(Teller):
    """Answers with a trajectory of 1 MiB in the same message."""

    def Rollout(self, request, context):
        [response] = super().Rollout(request, context)
        header, block, result = response.parts
        header.header.trajectory.add(name="x", dtype=1, times=1 << 17)
        chunk = simgrad_pb2.TrajectoryChunk(name="x", instances=1, times=1 << 17, data=bytes(1 << 20))
        yield simgrad_pb2.RolloutResponse(parts=[header, simgrad_pb2.RolloutPart(trajectory=chunk), block, result])


def resident():
    fields = pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) << 10


def test_a_result_that_nobody_looks_at_holds_no_message():
    server, kept, calls = Large(), [], 40
    with client_of(server.target) as client:
        for call in range(calls + 10):
            if call == 10:
                before = resident()
            result = client.rollout(sg.World("still"), steps=2)
            assert result.trajectory["x"].nbytes >= 1 << 19
            result.trajectory.clear()
            kept.append(result)
        assert resident() - before < calls << 18
    assert all("solve" in result.sites for result in kept)
    server.stop()


def test_every_attribute_that_is_told_is_one_of_a_rollout():
    for name in results.TOLD:
        assert name in results.Rollout.__dataclass_fields__
        with pytest.raises(AttributeError):
            getattr(results.Rollout, name)
    assert issubclass(results.Gradient, results.Rollout)
    assert np.all([name in results.Gradient.__dataclass_fields__ for name in results.TOLD])
