"""Measures one row: our side through the Python client, and its yardstick in JAX.

usage: taskset -c CORES .venv/bin/python measure.py ROW [--size=full] [--samples=5]

Server, client and JAX run on the cores that this process was given, in as many threads. Printed is one line of
JSON. The results of both sides are compared first; where they differ, nothing is timed, and the exit code is 1.

Both sides are warm: ours is asked until its best code is made. Samples are taken in turn, each of enough
calls to take a fifth of a second; a call's wall and processor seconds are medians. Ours are those of client and server together.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import rows  # noqa: E402
from server_process import Server  # noqa: E402
from table import JAX_PYTHON  # noqa: E402

import simgrad as sg  # noqa: E402

SAMPLE_SECONDS = 0.2
NOTHING = 1e-30  # numbers near the smallest normal one are not compared: XLA may flush them to 0


class ResultsDiffer(Exception):
    """The two sides computed different numbers: there is nothing to compare."""


class Yardstick:
    """The process of yardstick_process.py."""

    def __enter__(self) -> Yardstick:
        self._process = subprocess.Popen(
            [JAX_PYTHON, HERE / "yardstick_process.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def prepare(self, row: rows.Row, size: str) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Results, and seconds of the compilation and of the first run."""
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            seconds = self._ask(row=row.name, size=size, results=file.name)
            with np.load(file.name) as results:
                return dict(results), seconds

    def timed(self, turns: int) -> dict[str, float]:
        return self._ask(turns=turns)

    def _ask(self, **question: Any) -> dict[str, float]:
        assert self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the yardstick ended with {self._process.wait()}")
        made: dict[str, float] = json.loads(answer)
        return made


class Ours:
    """A row through the Python client, on one server."""

    def __init__(self, row: rows.Row, size: str, server: Server, client: sg.Client):
        self._server = server
        work = row.sizes[size]
        world = importlib.import_module(f"worlds.{row.subject}")
        states, params = rows.inputs_of(row, work)
        self._call = client.gradient if row.what == "gradient" else client.rollout
        given = getattr(world, "given", lambda initial, params: {"initial": initial, "params": params})
        self._request: dict[str, Any] = dict(
            world=world.world(**work.settings),
            steps=work.steps,
            instances=work.instances,
            policy=row.policy,
            diagnostics=row.diagnostics,
            **given(states, params),
        )
        if row.what == "gradient":
            self._request.update(objective=world.OBJECTIVE, wrt=row.wrt or None)

    def run(self) -> Any:
        return self._call(**self._request)

    def results(self) -> dict[str, np.ndarray]:
        """Of the first call, whose seconds stay in `first`."""
        begin = time.perf_counter()
        made = self.run()
        self.first = time.perf_counter() - begin
        if self._call.__name__ == "rollout":
            return dict(made.state)
        return {"value": np.asarray(made.value), **made.initial, **made.params}

    def warm(self) -> dict[str, float]:
        """Asks until its best code is made; gives the seconds of the first call and of all compilations."""
        self._server.warm(self.run)
        return {"first": self.first, "compile": self._server.metric("simgrad_kernel_compile_seconds_sum")}

    def timed(self, turns: int) -> dict[str, float]:
        wall, client, server = time.perf_counter(), time.process_time(), self._server.processor_seconds()
        for _ in range(turns):
            self.run()
        return {
            "wall": time.perf_counter() - wall,
            "processor": time.process_time() - client + self._server.processor_seconds() - server,
        }


def compare(row: rows.Row, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """The largest difference that counts, as a part of the largest number of its array.

    Raises: ResultsDiffer where it is above the tolerance, or where a number is missing or not finite.
    """
    worst = 0.0
    for name, expected in theirs.items():
        if name not in ours or np.size(ours[name]) != expected.size:
            raise ResultsDiffer(f"{row.name}: {name} has another shape, or is missing")
        found, expected = np.ravel(ours[name]).astype(np.float64), expected.ravel().astype(np.float64)
        if not (np.isfinite(found).all() and np.isfinite(expected).all()):
            raise ResultsDiffer(f"{row.name}: {name} is not finite")
        scale = max(np.max(np.abs(expected)), NOTHING)
        differences = np.sort(np.abs(found - expected)) / scale
        worst = max(worst, float(differences[math.ceil(row.share * differences.size) - 1]))
    if not worst <= row.tolerance:
        raise ResultsDiffer(f"{row.name}: results differ by {worst:.2g}, tolerance {row.tolerance:.2g}")
    return worst


def turns_for(seconds: float) -> int:
    return max(1, min(200, math.ceil(SAMPLE_SECONDS / max(seconds, 1e-6))))


def sampled(sides: dict[str, Any], samples: int) -> dict[str, dict[str, float]]:
    """Medians of a call's seconds, by side."""
    turns = {name: turns_for(side.timed(1)["wall"]) for name, side in sides.items()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(samples):
        for name, side in sides.items():
            taken[name].append(side.timed(turns[name]))
    return {
        name: {k: statistics.median(s[k] for s in list_) / turns[name] for k in ("wall", "processor")}
        for name, list_ in taken.items()
    }


def measured(row: rows.Row, size: str, samples: int) -> dict[str, Any]:
    threads = len(os.sched_getaffinity(0))
    with (
        Yardstick() as yardstick,
        Server("--device=cpu", f"--threads={threads}") as server,
        sg.Client(server.target, timeout=600) as client,
    ):
        ours = Ours(row, size, server, client)
        theirs, of_jax = yardstick.prepare(row, size)
        difference = compare(row, ours.results(), theirs)
        of_us = ours.warm()
        seconds = sampled({"ours": ours, "jax": yardstick}, samples)
        return {
            "difference": difference,
            "ours": {**seconds["ours"], **of_us},
            "jax": {**seconds["jax"], **of_jax},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row")
    parser.add_argument("--size", default="full")
    parser.add_argument("--samples", type=int, default=5)
    arguments = parser.parse_args()
    (row,) = [r for r in rows.ROWS if r.name == arguments.row]
    try:
        print(json.dumps(measured(row, arguments.size, arguments.samples)))
    except ResultsDiffer as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
