"""Limits of a connection: metadata, calls at once, age."""

import threading

import grpc
import numpy as np
import pytest

import simgrad as sg

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def connect(server):
    return grpc.insecure_channel(server.target, options=OWN_CONNECTION)


def test_metadata_beyond_the_limit_is_refused_and_below_it_taken(start):
    server = start("--max_metadata_bytes=4096")
    for size, code in ((3000, "OK"), (5000, "RESOURCE_EXHAUSTED")):
        with connect(server) as channel:
            metadata = [("x-of-a-caller", "a" * size)]
            call = channel.unary_unary(CHECK).future(b"", metadata=metadata, timeout=20)
            assert call.code().name == code, call.details()


def test_calls_beyond_the_limit_of_a_connection_wait_for_those_before_them(start):
    server = start("--max_concurrent_streams=2")
    with connect(server) as channel, connect(server) as another:
        watches = [channel.unary_stream(WATCH)(b"") for _ in range(2)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as waited:
            channel.unary_unary(CHECK)(b"", timeout=0.5)
        assert waited.value.code().name == "DEADLINE_EXCEEDED"
        assert another.unary_unary(CHECK)(b"", timeout=20)
        watches[0].cancel()
        assert channel.unary_unary(CHECK)(b"", timeout=20)
        watches[1].cancel()


def test_an_old_connection_is_renewed_and_what_runs_on_it_ends_well(start):
    server = start("--max_connection_age=1s")
    idle = threading.Event()
    with connect(server) as channel:
        assert channel.unary_unary(CHECK)(b"", timeout=20)
        channel.subscribe(lambda state: state is grpc.ChannelConnectivity.IDLE and idle.set())
        assert idle.wait(timeout=30), "the server never closed the connection"
        assert channel.unary_unary(CHECK)(b"", timeout=20)  # on a new one
    with sg.Client(server.target, timeout=120) as client:
        states, renewed = [], threading.Event()

        def note(state):
            if state is grpc.ChannelConnectivity.IDLE and grpc.ChannelConnectivity.READY in states:
                renewed.set()
            states.append(state)

        client._service.channel.subscribe(note)
        y = np.linspace(0.1, 1.0, 64)[:, None]
        # 50 MB of trajectory: more than waits for a reader, so the work goes on until it is read.
        stream = client.rollout_stream(
            sg.World("bouncing_ball"),
            steps=200_000,
            initial={"y": y, "v": np.zeros_like(y)},
            params={"k": 1.0},
            record=["y"],
            chunk_steps=1000,
        )
        blocks = iter(stream)
        next(blocks)
        assert renewed.wait(timeout=60), "the server never told the connection to end"
        for _ in blocks:
            pass
        assert stream.result.ok.all()


def test_a_description_beyond_a_message_is_refused_by_what_makes_it_long(start):
    server = start("--max_message_bytes=65536")

    def world_of(count):
        @sg.world
        def many(x: sg.State):
            for k in range(count):
                x = np.sin(x) * 0.5
            return x

        @many.objective
        def end(x):
            return x

        return many

    with sg.Client(server.target, timeout=120) as client:
        short, middle, long = world_of(10), world_of(200), world_of(1000)
        assert client.program(short, cuda=True).cuda
        assert client.program(middle).source
        for field, world, options in (
            ("cuda", middle, dict(cuda=True)),
            ("adjoint", middle, dict(objective="end", adjoint=True)),
            ("world", long, {}),
        ):
            with pytest.raises(sg.InvalidArgument, match="and a message at most 65536") as refused:
                client.program(world, **options)
            assert (refused.value.field, refused.value.reason) == (field, "LIMIT_EXCEEDED")
