"""What a pool of servers costs: bytes on the wire, seconds of its client, and when more servers stop helping.

usage: scale.py [--write]     --write puts the tables into docs/scale.md

The ball of four elements, f32, contact by projection. A call of N instances and T steps over s servers takes

    seconds = s (shard + T column) + N row + N T / (s speed)

as far as the network does not limit it: `shard`, `column` and `row` are what the client takes for one shard, to merge the
diagnostics of one step of it, and for the rows of one instance; `speed` is that of one server, in instance-steps a second.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

import simgrad as sg

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from server_process import ROOT, Server  # noqa: E402

PAGE = ROOT / "docs/scale.md"
WORLD = sg.World("bouncing_ball", contact="projection", elements=4, clamp=False)
# What is asked for, of the rows of the table of bytes.
ASKED: dict[str, dict[str, Any]] = {
    "rollout, `off`": {"diagnostics": "off"},
    "rollout, `summary`": {},
    "rollout, `instances`": {"diagnostics": "instances"},
    "rollout, `off`, trajectory of y": {"diagnostics": "off", "record": ["y"]},
    "gradient of k, `off`": {"diagnostics": "off", "objective": "final_height"},
    "gradient of k, `summary`": {"objective": "final_height"},
    "gradient of y, v and k, `off`": {"diagnostics": "off", "objective": "final_height", "wrt": ("y", "v", "k")},
}
_LARGE = 10**6  # instances of the forecast
_STEPS = 1000


def inputs(instances: int, height: float = 0.1) -> dict[str, Any]:
    y = np.random.default_rng(1).uniform(height, height + 1.0, (instances, 4)).astype(np.float32)
    return {"initial": {"y": y, "v": 0 * y}, "params": {"k": np.float32(0.5)}}


def call(client: sg.Client, instances: int, steps: int, height: float = 0.1, **options: Any) -> Any:
    work = {"steps": steps, **inputs(instances, height), **options}
    if "objective" in options:
        work.setdefault("wrt", ("k",))
        return client.gradient(WORLD, **work)
    return client.rollout(WORLD, **work)


# ---- Bytes ----


class Counted:
    """A method of a client's stub that adds up what its messages take."""

    def __init__(self, method: Callable[..., Any]):
        self._method = method
        self.up = self.down = 0

    def __call__(self, message: Any, **options: Any) -> Any:
        self.up += message.ByteSize()
        rpc = self._method(message, **options)
        counted = self

        class Answer:
            cancel = staticmethod(rpc.cancel)

            def __iter__(self) -> Any:
                for response in rpc:
                    counted.down += response.ByteSize()
                    yield response

        return Answer()


def bytes_of(client: sg.Client, instances: int, steps: int, **options: Any) -> tuple[int, int]:
    """What one call sends and receives, beside the framing of HTTP/2 (9 bytes of each 16 KiB)."""
    name = "Gradient" if "objective" in options else "Rollout"
    method = getattr(client._stub, name)
    counted = Counted(method)
    setattr(client._stub, name, counted)
    try:
        call(client, instances, steps, **options)
    finally:
        setattr(client._stub, name, method)
    return counted.up, counted.down


@dataclass
class Bytes:
    """Of N instances and T steps: up_row N up, and for each shard shard + row N + column T + cell N T down."""

    up_row: float
    shard: float
    row: float
    column: float
    cell: float


def measured_bytes(client: sg.Client, **options: Any) -> Bytes:
    """From four sizes. The ball stays above the ground, so that each step has one test of each instance."""
    n, t = 1024, 64
    (up, a), (up2, b), (_, c), (_, d) = (
        bytes_of(client, i * n, j * t, height=100.0, chunk_steps=t, **options)
        for i, j in ((1, 1), (2, 1), (1, 2), (2, 2))
    )
    cell = (d - c - b + a) / (n * t)
    row = (b - a) / n - cell * t
    column = (c - a) / t - cell * n
    shard = a - n * row - t * column - n * t * cell
    return Bytes(*(max(x, 0.0) for x in ((up2 - up) / n, shard, row, column, cell)))


# ---- Seconds ----


@dataclass
class Constants:
    """Seconds, and instance-steps per second of one server."""

    shard: float
    column: float
    row: float
    speed: float

    def seconds(self, servers: int, instances: int, steps: int) -> float:
        own = servers * (self.shard + steps * self.column) + instances * self.row
        return own + instances * steps / (servers * self.speed)

    def most_useful(self, instances: int, steps: int) -> float:
        """Servers beyond which a call takes longer again: where the derivative by their number is 0."""
        return math.sqrt(instances * steps / (self.speed * (self.shard + steps * self.column)))


def _spent(target: str, instances: int, steps: int, repeats: int, **options: Any) -> float:
    """Seconds of processor time that a client takes for a call of two shards, the least of some calls."""
    times = []
    with sg.Pool(target, most_instances=instances // 2) as pool:
        for _ in range(repeats + 1):
            begun = time.process_time()
            call(pool, instances, steps, **options)
            times.append(time.process_time() - begun)
    return min(times[1:])


def measured_seconds(server: Server, repeats: int = 5, **options: Any) -> Constants:
    """Constants from one server of one thread, in processor seconds: its speed, and the client's costs by their growth."""
    target = server.target
    empty = _spent(target, 512, 1, repeats, **options)
    long = _spent(target, 512, 1025, repeats, **options)
    wide = _spent(target, 512 + 65536, 1, repeats, **options)
    n, t = 8192, 400
    with sg.Client(target) as client:
        call(client, n, t, **options)  # until the good code is there
        speeds = []
        for _ in range(repeats):
            begun = server.processor_seconds()
            call(client, n, t, **options)
            speeds.append(n * t / (server.processor_seconds() - begun))
    return Constants(
        shard=empty / 2,
        column=max(long - empty, 0.0) / (2 * 1024),
        row=max(wide - empty, 0.0) / 65536,
        speed=max(speeds),
    )


def run_seconds(servers: list[Server], instances: int, steps: int, repeats: int = 5, **options: Any) -> float:
    """Seconds of a pooled call without other work on the machine: the client's processor time and the slowest server's.

    The least of some calls, after two that tell the speeds of the servers.
    """
    times = []
    with sg.Pool([server.target for server in servers]) as pool:
        for _ in range(repeats + 2):
            before = [server.processor_seconds() for server in servers]
            begun = time.process_time()
            call(pool, instances, steps, **options)
            own = time.process_time() - begun
            slowest = max(s.processor_seconds() - b for s, b in zip(servers, before))
            times.append(own + slowest)
    return min(times[2:])


# ---- Tables ----


def bytes_table(client: sg.Client) -> list[str]:
    lines = [
        "| what is asked for | up, per instance | down, per shard | per instance | per step of a shard | per instance-step |",
        "|---|---|---|---|---|---|",
    ]
    for name, options in ASKED.items():
        b = measured_bytes(client, **options)
        cells = [f"{b.up_row:.0f}", f"{b.shard:.0f}", f"{b.row:.0f}", f"{b.column:.0f}", f"{b.cell:.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def seconds_table(servers: list[Server]) -> list[str]:
    lines = [
        "| | `off` | `summary` |",
        "|---|---|---|",
    ]
    columns = []
    for level in ("off", "summary"):
        constants = measured_seconds(servers[0], diagnostics=level)
        n, t = 32768, 500
        runs = tuple(run_seconds(servers[:k], n, t, diagnostics=level) for k in (1, 2))
        columns.append((constants, runs, n, t))
    rows: dict[str, Callable[[Constants, tuple[float, ...], int, int], str]] = {
        "shard, ms": lambda c, r, n, t: f"{1e3 * c.shard:.1f}",
        "column, µs": lambda c, r, n, t: f"{1e6 * c.column:.1f}",
        "row, ns": lambda c, r, n, t: f"{1e9 * c.row:.0f}",
        "speed, millions of instance-steps/s": lambda c, r, n, t: f"{1e-6 * c.speed:.1f}",
        "32,768 × 500, one server: forecast, run, ms": lambda c, r, n, t: f"{1e3 * c.seconds(1, n, t):.0f}, {1e3 * r[0]:.0f}",
        "32,768 × 500, two servers: forecast, run, ms": lambda c, r, n, t: f"{1e3 * c.seconds(2, n, t):.0f}, {1e3 * r[1]:.0f}",
    }
    for k in (1, 8, 64, 1024):
        rows[f"1,000,000 × 1,000, {k:,} servers: forecast, s"] = (
            lambda c, r, n, t, k=k: f"{c.seconds(k, _LARGE, _STEPS):.2f}"
        )
    rows["servers beyond which it takes longer"] = (
        lambda c, r, n, t: f"{c.most_useful(_LARGE, _STEPS):,.0f}"
    )
    for name, cell in rows.items():
        lines.append(f"| {name} | {' | '.join(cell(*column) for column in columns)} |")
    return lines


def _replace(page: str, mark: str, lines: list[str]) -> str:
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + "\n".join(lines) + "\n" + end + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    write = parser.parse_args().write
    with Server("--device=cpu", "--threads=1") as one, Server("--device=cpu", "--threads=1") as two:
        with sg.Client(one.target) as client:
            of_bytes = bytes_table(client)
        print("\n".join(of_bytes), "\n", sep="")
        of_seconds = seconds_table([one, two])
        print("\n".join(of_seconds))
    if write:
        page = PAGE.read_text()
        page = _replace(page, "bytes", of_bytes)
        PAGE.write_text(_replace(page, "seconds", of_seconds))


if __name__ == "__main__":
    main()
