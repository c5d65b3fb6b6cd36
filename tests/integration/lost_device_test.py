"""What an orchestrator sees of a server whose GPU is lost, from the first error to the exit code."""

import threading

import grpc
import pytest
from live_server import ROOT, LiveServer

import simgrad as sg

pytestmark = pytest.mark.waits

BINARY = ROOT / "build/release/tests/server/lost_device_server"
BALL = sg.World("bouncing_ball")
FALL = dict(steps=5, initial={"y": [0.5], "v": [0.0]}, params={"k": 1.0})
SERVING, NOT_SERVING = 1, 2


def health_of(target):
    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)[1]


def watch(target, seen):
    """What a probe is told, until the connection ends."""
    with grpc.insecure_channel(target) as channel:
        try:
            for message in channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=120):
                seen.append(message[1])
        except grpc.RpcError:
            pass


def test_health_turns_and_the_process_ends_with_its_own_code_though_a_call_hangs():
    """The first work never returns from the driver, the second finds the device lost."""
    # The check of the server itself would be the first work, or the second.
    flags = ("--self_check_interval=0", "--fatal_exit_after=4s", "--threads=2", "--workers=2")
    server = LiveServer(*flags, binary=BINARY)
    assert health_of(server.target) == SERVING
    seen = []
    reasons = []

    def ask(client):
        with pytest.raises(sg.Unavailable) as failed:
            client.rollout(BALL, **FALL)
        reasons.append(failed.value.reason)

    with sg.Client(server.target, timeout=60, retry=False) as client:
        others = [threading.Thread(target=watch, args=(server.target, seen))]
        others += [threading.Thread(target=ask, args=(client,)) for _ in range(2)]
        for thread in others:
            thread.start()
        assert server.process.wait(timeout=60) == 4
        for thread in others:
            thread.join()
    # Who found the device lost is told so; who hung in the driver, that the server ended.
    assert len(reasons) == 2 and reasons[0] == "DEVICE_LOST" != reasons[1]
    assert seen == [SERVING, NOT_SERVING]
    server.stop()
