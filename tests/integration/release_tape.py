"""What the client and the server of a release said to each other, kept as bytes.

Records tests/data/releases/VERSION.json: anew until that version is released, and never after. Where calls are
named, these alone are recorded, and the others stay as they are.

usage: .venv/bin/python tests/integration/release_tape.py VERSION [CALL...]
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import pathlib
import sys

import grpc
import numpy as np
from live_server import ROOT, LiveServer

import simgrad as sg

FOLDER = ROOT / "tests/data/releases"
SERVICE = "/simgrad.v1.Simgrad/"
STREAMS = ("Rollout", "Gradient", "Vjp")


def _ball(n=3):
    return {"y": np.linspace(0.4, 1.2, n)[:, None], "v": np.zeros((n, 1))}


@sg.world
def pendulum(
    angle: sg.State, speed: sg.State, gravity: sg.Param = 9.81, h: sg.Config = 0.01
):
    def midpoint(a, w):
        return angle + h * 0.5 * (speed + w), speed - h * gravity * np.sin(0.5 * (angle + a))

    with sg.role("solver"):
        a, w = sg.fixed_point(midpoint, (angle + h * speed, speed), tol=1e-10, max_iter=50)
    sg.test("past_vertical", a < 0)
    return {"angle": a, "speed": w}


@pendulum.objective
def final_energy(speed):
    return 0.5 * speed**2


def _call_toi(client):
    world = sg.World("bouncing_ball", contact="toi")
    asked = dict(steps=120, initial=_ball(), params={"k": 1.0}, record=["y"])
    return client.rollout(world, **asked)


def _call_bf16(client):
    world = sg.World("bouncing_ball", contact="projection", clamp=False)
    asked = dict(steps=60, initial=_ball(), params={"k": 0.5}, policy="bf16_safe")
    return client.gradient(world, objective="final_height", **asked)


def _call_projection(client):
    world = sg.World("boundary_projection", elements=5)
    initial = {"y": -np.linspace(0.1, 0.6, 5)}
    return client.rollout(world, steps=4, initial=initial, params={"k": 0.5}, policy="f64")


def _call_own_world(client):
    initial = {"angle": np.array([1.0, 0.5]), "speed": np.zeros(2)}
    asked = dict(steps=100, policy="f64", initial=initial, params={"gravity": 9.81})
    return client.gradient(pendulum, objective="final_energy", **asked)


def _call_kept(client):
    world = sg.World("bouncing_ball", contact="projection", clamp=False)
    kept = client.rollout(world, steps=40, initial=_ball(), params={"k": 0.5}, keep=True)
    made = kept.vjp({"state": {"y": np.ones((3, 1))}}, wrt=["k", "y"])
    assert not made.replayed
    return made


CALLS = {
    "toi": _call_toi,
    "bf16": _call_bf16,
    "projection": _call_projection,
    "own_world": _call_own_world,
    "kept": _call_kept,
}


def bits(result) -> dict[str, dict]:
    """Every number of a result that is promised to the bit, by name."""
    groups = ("state", "trajectory", "initial", "params", "controls")
    found = {
        f"{group}.{name}": array
        for group in groups
        for name, array in getattr(result, group, {}).items()
    }
    found |= {"ok": result.ok, "path_signatures": result.path_signatures}
    if result.values is not None:
        found["values"] = result.values
    return {
        name: {
            "dtype": np.asarray(array).dtype.str,
            "shape": list(np.shape(array)),
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
        for name, array in found.items()
    }


class Between:
    """Stands between a client and a server: `answer(method, request)` yields the answer's messages,
    all of them bytes."""

    def __init__(self, answer):
        self._answer = answer
        pool = concurrent.futures.ThreadPoolExecutor(4)
        self._server = grpc.server(pool, handlers=(self,))
        self.target = f"localhost:{self._server.add_insecure_port('localhost:0')}"
        self._server.start()

    def service(self, call):
        method = call.method.removeprefix(SERVICE)

        def messages(request, context):
            try:
                yield from self._answer(method, request)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata())
                context.abort(error.code(), error.details())

        if method in STREAMS:
            return grpc.unary_stream_rpc_method_handler(messages)
        only = lambda request, context: next(iter(messages(request, context)))  # noqa: E731
        return grpc.unary_unary_rpc_method_handler(only)

    def stop(self):
        self._server.stop(grace=None).wait()


@contextlib.contextmanager
def between(answer):
    standing = Between(answer)
    try:
        yield standing
    finally:
        standing.stop()


class Upstream:
    """A server, spoken to in bytes."""

    def __init__(self, target):
        self._channel = grpc.insecure_channel(target)

    def __call__(self, method, request):
        if method in STREAMS:
            yield from self._channel.unary_stream(SERVICE + method)(request, timeout=120)
        else:
            yield self._channel.unary_unary(SERVICE + method)(request, timeout=120)

    def close(self):
        self._channel.close()


def _text(message: bytes) -> str:
    return base64.b64encode(message).decode()


def record(target, calls=tuple(CALLS)) -> dict:
    """What these calls said and were answered, and the bits that came of it."""
    upstream, tape = Upstream(target), {}

    def taped(exchanges):
        def answer(method, request):
            messages = list(upstream(method, request))
            exchange = {"method": method, "request": _text(request)}
            exchanges.append({**exchange, "answer": [_text(message) for message in messages]})
            yield from messages

        return answer

    for name in calls:
        exchanges: list[dict] = []
        with between(taped(exchanges)) as standing, sg.Client(standing.target, timeout=120) as client:
            tape[name] = {"bits": bits(CALLS[name](client)), "exchanges": exchanges}
    upstream.close()
    return tape


def main(version: str, *calls: str) -> None:
    file = pathlib.Path(FOLDER / f"{version}.json")
    tape = json.loads(file.read_text()) if calls else {}
    server = LiveServer("--replica=release")
    try:
        tape |= record(server.target, calls or tuple(CALLS))
    finally:
        server.stop()
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(tape, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
