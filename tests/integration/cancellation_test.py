"""A request that is left or expires stops, and gives back what it held."""

import time
import urllib.request

import numpy as np
import pytest

import simgrad as sg
from simgrad.program import ProgramBuilder

BALL = sg.World("bouncing_ball", contact="projection", clamp=False, elements=8)


def long_work(n=512):
    # About 10^9 element-steps: hours if it were to run to its end, far beyond every deadline here.
    y = np.random.default_rng(1).uniform(0.1, 1, (n, 8))
    return dict(
        steps=5_000_000, initial={"y": y, "v": np.zeros_like(y)}, params={"k": 1.0}, chunk_steps=64
    )


def metric(client, prefix):
    url = f"http://localhost:{client.server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))


def wait_until(condition):
    """Asks the server until it says so; a server that never does fails the test after a minute."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up


def test_leaving_the_loop_cancels_the_work(serve):
    client = serve()
    for block in client.rollout_stream(BALL, **long_work()):
        assert block.steps >= 1
        break
    wait_until(lambda: metric(client, "simgrad_rpc_cancelled_total") == 1)
    wait_until(lambda: metric(client, 'simgrad_rpc_in_flight{grpc_method="Rollout"}') == 0)
    assert client.rollout(BALL, **{**long_work(2), "steps": 10}).ok.all()


def test_a_result_that_was_left_does_not_exist(serve):
    stream = serve().rollout_stream(BALL, **long_work(2))
    for _ in stream:
        break
    with pytest.raises(sg.Cancelled):
        stream.result


def test_cancelling_a_gradient_works_in_the_forward_pass(serve):
    client = serve()
    with client.gradient_stream(
        BALL, **{**long_work(64), "steps": 200_000}, objective="final_height"
    ) as stream:
        next(iter(stream))
    wait_until(lambda: metric(client, "simgrad_rpc_cancelled_total") == 1)
    wait_until(lambda: metric(client, 'simgrad_rpc_in_flight{grpc_method="Gradient"}') == 0)


def test_a_deadline_ends_the_work(serve):
    client = serve()
    with pytest.raises(sg.DeadlineExceeded):
        client.rollout(BALL, **long_work(), timeout=0.5)
    wait_until(lambda: metric(client, 'simgrad_rpc_in_flight{grpc_method="Rollout"}') == 0)
    assert client.rollout(BALL, **{**long_work(2), "steps": 10}).ok.all()


def test_a_deadline_ends_a_step_in_its_middle(serve):
    """One step of 10^9 sines: minutes, were it only asked between steps."""
    b = ProgramBuilder("long_step")
    x = b.state("x", (1000,))

    def sines(_, carried):
        y = carried[0]
        for _ in range(20):
            y = b.sin(y)
        return [y]

    b.next(x=b.for_loop(60_000, [x], sines)[0])
    client = serve("--workers=1")
    with pytest.raises(sg.DeadlineExceeded):
        client.rollout(
            sg.World(program=b.build()), steps=1, initial={"x": np.full(1000, 0.5)}, timeout=1.0
        )
    # The only worker is free again, long before that step could have ended.
    assert client.rollout(BALL, **{**long_work(2), "steps": 10}, timeout=2.0).ok.all()


def test_memory_comes_back(serve):
    """Grows a request until it is refused alone; half of it is admitted, but not twice at once."""
    client = serve(f"--memory_limit_bytes={256 << 20}")

    def start(instances):
        blocks = iter(
            client.rollout_stream(
                BALL,
                steps=50_000,
                instances=instances,
                initial={"y": np.full(8, 0.5), "v": np.zeros(8)},
                params={"k": 1.0},
                chunk_steps=1,
                retry=False,
            )
        )
        next(blocks)
        return blocks

    def idle():
        return metric(client, 'simgrad_rpc_in_flight{grpc_method="Rollout"}') == 0

    instances = 256
    while True:
        try:
            start(2 * instances).close()
        except sg.ResourceExhausted:
            break
        wait_until(idle)
        instances *= 2
    for _ in range(3):  # were it kept once, the next would be refused
        held = start(instances)
        with pytest.raises(sg.ResourceExhausted):
            start(instances)
        held.close()
        wait_until(idle)
