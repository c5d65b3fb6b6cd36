"""Large constants travel once: bytes on the wire fall, and no bit of an answer changes."""

import socket
import threading

import grpc
import numpy as np
import pytest
from live_server import LiveServer
from result_bits import differences

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.v1 import simgrad_pb2, simgrad_pb2_grpc

BALL = sg.World("bouncing_ball", contact="projection")
Y = np.linspace(0.1, 1.0, 140_000)[:, None]
SMALLER = Y[::10]  # where less than 1 MiB is uploaded, too
LESS = 100_000
MIB = 1 << 20


class Meter:
    """Stands between clients and a server, and counts the bytes that go to it."""

    def __init__(self, port):
        self.sent = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source, to, counts):
        try:
            while data := source.recv(1 << 20):
                self.sent += len(data) if counts else 0
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def meter(server):
    running = Meter(server.port)
    yield running
    running.close()


def fall(client, y=Y, **options):
    work = {"steps": 2, "initial": {"y": y, "v": [-1.0]}, "params": {"k": 1.0}, **options}
    return client.gradient(BALL, objective="final_height", wrt=["k"], **work)


def assert_same(one, other):
    assert differences(one, other) == []
    assert one.program.fingerprint == other.program.fingerprint


def test_a_constant_travels_once_and_no_bit_changes(meter):
    calls = 3
    with sg.Client(meter.target, upload=False) as client:
        whole = [fall(client) for _ in range(calls)]
    sent_whole, meter.sent = meter.sent, 0
    with sg.Client(meter.target) as client:
        named = [fall(client) for _ in range(calls)]
        assert client.retries == 0
    assert sent_whole > calls * Y.nbytes
    assert Y.nbytes < meter.sent < 1.05 * Y.nbytes
    for one in named:
        assert_same(one, whole[0])
        assert one.tries == 1


def table_world():
    """x grows by k times four numbers of a table of 1.2 MB: a program that is large."""
    b = ProgramBuilder("table")
    x, k = b.state("x"), b.param("k")
    table = b.value(np.sin(np.arange(150_000.0)))
    b.next(x=x + k * table[70_000:70_004].sum())
    b.objective("end", terminal=lambda states, exports: states["x"])
    return sg.World(program=b.build())


def test_a_large_program_travels_once(meter, client):
    world = table_world()
    size = world.program.ByteSize()
    assert size > MIB
    work = dict(steps=3, initial={"x": 0.5}, params={"k": [1.0, 2.0]}, objective="end")
    expected = client.gradient(world, program="text", **work)
    meter.sent = 0
    with sg.Client(meter.target) as named:
        for _ in range(3):
            result = named.gradient(world, **work)
            assert_same(result, expected)
        assert result.program.text == expected.program.text  # asked for by name, too
    assert size < meter.sent < 1.05 * size


def long_world(rate):
    """x shrinks a hundred times a step, in as many operations; some 40 KB."""
    b = ProgramBuilder("long")
    x, k = b.state("x"), b.param("k")
    y = x
    for _ in range(300):
        y = y - k * rate * y
    b.next(x=y)
    b.objective("end", terminal=lambda states, exports: states["x"] * states["x"])
    return sg.World(program=b.build())


def test_a_program_of_some_kilobytes_travels_twice(meter, client):
    world = long_world(1e-4)
    size = world.program.ByteSize()
    assert 2 * 16_384 < size < MIB
    work = dict(steps=3, initial={"x": 0.5}, params={"k": [1.0, 2.0]}, objective="end")
    with sg.Client(meter.target, upload=False) as whole:
        expected = whole.gradient(world, **work)
    meter.sent = 0
    calls = 8
    with sg.Client(meter.target) as named:
        for _ in range(calls):
            result = named.gradient(world, **work)
            assert_same(result, expected)
            assert {site.line for site in result.sites.values()} == {site.line for site in expected.sites.values()}
        assert named.retries == 0
        kept = named.rollout(world, steps=3, initial={"x": 0.5}, params={"k": [1.0, 2.0]}, keep=True)
        assert (kept.vjp({"state": {"x": [1.0, 1.0]}}).params["k"] != 0).all()
    assert 2 * size < meter.sent < 2 * size + calls * 2_000


def test_runs_of_named_programs_are_compared(client):
    slow, fast = long_world(1e-4), long_world(2e-4)
    work = dict(steps=3, initial={"x": 0.5}, params={"k": [1.0, 2.0]}, objective="end", policies=["f64"], worlds={"fast": fast})
    with sg.Client(client.target, upload=False) as whole:
        expected = whole.compare(slow, **work)
    for _ in range(3):
        made = client.compare(slow, **work)
        assert str(made) == str(expected)
        for run, other in zip(made.results.values(), expected.results.values()):
            assert differences(run, other) == []
        assert made.results["f64"].program.fingerprint != made.results["fast"].program.fingerprint
    assert client.retries == 0


def test_a_server_that_was_restarted_is_given_it_again(start, free_port):
    port = f"--port={free_port}"
    first = start(port)
    with sg.Client(first.target, upload=LESS) as client:
        before = fall(client, SMALLER)
        assert fall(client, SMALLER).tries == 1
        first.stop()
        start(port)
        after = fall(client, SMALLER)
    assert_same(after, before)
    assert after.tries >= 2


def test_content_that_expired_is_uploaded_again(start):
    running = start("--content_bytes=200000")
    with sg.Client(running.target, upload=LESS) as client:
        before = fall(client, SMALLER)
        with sg.Client(running.target, upload=LESS) as other:  # the same caller: its content takes the place
            fall(other, SMALLER + 1)
        after = fall(client, SMALLER)
    assert_same(after, before)
    assert after.tries == 2


def test_one_caller_has_not_what_another_uploaded(start, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("ada-token name=ada\neve-token name=eve\n")
    running = start(f"--token_file={tokens}")
    with sg.Client(running.target, token="ada-token", upload=LESS) as ada:
        expected = fall(ada, SMALLER)
        (digest,) = ada._service.uploads._kept._items
    with grpc.insecure_channel(running.target) as channel:
        request = simgrad_pb2.RolloutRequest()
        request.spec.world.name = "bouncing_ball"
        request.spec.initial.add(name="y").tensor.ref = digest
        request.spec.initial[0].tensor.dtype = 1
        request.spec.initial[0].tensor.shape.extend(SMALLER.shape)
        stub = simgrad_pb2_grpc.SimgradStub(channel)
        for token, reason in (("eve-token", "TENSOR_GONE"), ("ada-token", "INVALID_FIELD")):
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Rollout(request, metadata=[("authorization", f"Bearer {token}")]))
            error = sg.errors.from_rpc_error(refused.value)
            assert error.reason == reason  # ada's is found, and a state is missing
    with sg.Client(running.target, token="eve-token", upload=LESS) as eve:
        assert_same(fall(eve, SMALLER), expected)


def test_a_pool_uploads_to_each_server_what_that_needs(server, client):
    other = LiveServer()
    meters = [Meter(server.port), Meter(other.port)]
    world = table_world()
    size = world.program.ByteSize()
    x = np.linspace(0.0, 1.0, 600)
    work = dict(steps=2, initial={"x": x}, params={"k": 0.5}, objective="end")
    expected = client.gradient(world, **work)
    calls = 4
    with sg.Pool([meter.target for meter in meters], most_instances=300) as pool:
        for _ in range(calls):
            assert differences(pool.gradient(world, **work), expected) == []
    sent = sum(meter.sent for meter in meters)
    assert 2 * size < sent < 2.2 * size
    for meter in meters:
        meter.close()
    assert other.stop() == 0
