"""What a pool of servers costs: bytes on the wire, seconds of its client, and when more servers stop helping.

usage: scale.py [--write]     --write puts the tables into docs/scale.md

The ball of four elements, f32, contact by projection. A call of N instances and T steps over s servers takes

    seconds = s (shard + T column) + N row + message N T / speed + N T / (s speed)

as far as the network does not limit it: `shard`, `column` and `row` are what the client takes for one shard, to merge the
diagnostics of one step of it, and for the rows of one instance; `message` is what it takes for the messages that come in each
second that a server works; `speed` is that of one server, in instance-steps a second.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

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
# What is run, and by how many servers. A server's speed depends on the number of steps, as balls that lie take more
# iterations than those that fly: it is measured at the same number.
RUN = (32768, 500)
SERVERS = (1, 2, 4)


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
    """What one call sends and receives, beside the framing of HTTP/2 (9 bytes of each 16 KiB). A server that is busy
    sends what it has in more messages: the least of as many calls as it takes to see it three times, after one that
    compiles."""
    name = "Gradient" if "objective" in options else "Rollout"
    stub: Any = client._service.stub
    method = getattr(stub, name)
    call(client, instances, steps, **options)
    seen: list[tuple[int, int]] = []
    try:
        while len(seen) < 30 and seen.count(min(seen, default=(0, 0))) < 3:
            counted = Counted(method)
            setattr(stub, name, counted)
            call(client, instances, steps, **options)
            seen.append((counted.down, counted.up))
    finally:
        setattr(stub, name, method)
    down, up = min(seen)
    return up, down


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
    n, t = 256, 32
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


class Parts(NamedTuple):
    """Seconds of a call: of its client, and of the server that takes longest."""

    client: float
    server: float


@dataclass
class Constants:
    """Seconds, seconds per second (message), and instance-steps per second of one server (speed)."""

    shard: float
    column: float
    row: float
    speed: float
    message: float = 0.0

    def parts(self, servers: int, instances: int, steps: int) -> Parts:
        work = instances * steps / self.speed
        client = servers * (self.shard + steps * self.column) + instances * self.row
        return Parts(client + work * self.message, work / servers)

    def seconds(self, servers: int, instances: int, steps: int) -> float:
        return sum(self.parts(servers, instances, steps))

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


def measured_seconds(server: Server, steps: int = RUN[1], repeats: int = 5, **options: Any) -> Constants:
    """Constants from one server of one thread, in processor seconds: its speed at a number of steps, and the client's
    costs by their growth."""
    target = server.target
    empty = _spent(target, 512, 1, repeats, **options)
    long = _spent(target, 512, 1025, repeats, **options)
    wide = _spent(target, 512 + 65536, 1, repeats, **options)
    n, t = 8192, steps
    with sg.Client(target) as client:
        call(client, n, t, **options)  # until the good code is there
        speeds = []
        for _ in range(repeats):
            begun = server.processor_seconds()
            call(client, n, t, **options)
            speeds.append(n * t / (server.processor_seconds() - begun))
    found = Constants(
        shard=empty / 2,
        column=max(long - empty, 0.0) / (2 * 1024),
        row=max(wide - empty, 0.0) / 65536,
        speed=max(speeds),
    )
    # Of two shards, as many seconds of work as messages need to be counted in.
    n = 16384
    own = _spent(target, n, t, repeats, **options) - found.parts(2, n, t).client
    found.message = max(own, 0.0) / (n * t / found.speed)
    return found


def run_seconds(servers: list[Server], instances: int, steps: int, repeats: int = 5, **options: Any) -> Parts:
    """What a pooled call takes, in processor seconds: the least of some calls for each part, after two that tell the
    speeds of the servers. Compiles beside requests, and other work on these cores, add to one part of some calls."""
    times = []
    with sg.Pool([server.target for server in servers]) as pool:
        for _ in range(repeats + 2):
            before = [server.processor_seconds() for server in servers]
            begun = time.process_time()
            call(pool, instances, steps, **options)
            own = time.process_time() - begun
            slowest = max(s.processor_seconds() - b for s, b in zip(servers, before))
            times.append(Parts(own, slowest))
    return Parts(*map(min, zip(*times[2:])))


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
        large = measured_seconds(servers[0], steps=_STEPS, diagnostics=level)
        runs = {k: run_seconds(servers[:k], *RUN, diagnostics=level) for k in SERVERS}
        columns.append((constants, runs, large))
    rows: dict[str, Callable[[Constants, dict[int, Parts], Constants], str]] = {
        "shard, ms": lambda c, r, f: f"{1e3 * c.shard:.1f}",
        "column, µs": lambda c, r, f: f"{1e6 * c.column:.1f}",
        "row, ns": lambda c, r, f: f"{1e9 * c.row:.0f}",
        "message, ms per second of a server": lambda c, r, f: f"{1e3 * c.message:.0f}",
        "speed at 500 steps, millions of instance-steps/s": lambda c, r, f: f"{1e-6 * c.speed:.1f}",
        "speed at 1,000 steps": lambda c, r, f: f"{1e-6 * f.speed:.1f}",
    }
    told = lambda parts: f"{1e3 * parts.client:.0f} + {1e3 * parts.server:.0f}"
    for k in SERVERS:
        rows[f"32,768 × 500, {k} servers: client + server, ms: forecast; run"] = (
            lambda c, r, f, k=k: f"{told(c.parts(k, *RUN))}; {told(r[k])}"
        )
    for k in (1, 8, 64, 1024):
        rows[f"1,000,000 × 1,000, {k:,} servers: forecast, s"] = (
            lambda c, r, f, k=k: f"{f.seconds(k, _LARGE, _STEPS):.2f}"
        )
    rows["servers beyond which it takes longer"] = (
        lambda c, r, f: f"{f.most_useful(_LARGE, _STEPS):,.0f}"
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
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(Server("--device=cpu", "--threads=1")) for _ in range(max(SERVERS))
        ]
        with sg.Client(servers[0].target) as client:
            of_bytes = bytes_table(client)
        print("\n".join(of_bytes), "\n", sep="")
        of_seconds = seconds_table(servers)
        print("\n".join(of_seconds))
    if write:
        page = PAGE.read_text()
        page = _replace(page, "bytes", of_bytes)
        PAGE.write_text(_replace(page, "seconds", of_seconds))


if __name__ == "__main__":
    main()
