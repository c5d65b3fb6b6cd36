"""Runs every benchmark and prints one table: each figure is a ratio measured in one run.

usage: run.py [--quick] [--write]     --write puts the table into docs/performance.md

The ball: 4096 instances, 2000 steps, one element, projection, clamp false, y0 uniform in 0.1 to 1,
h 0.01, tol 1e-4, k 1, f32, no trajectory, one thread.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import simgrad as sg

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
INSTANCES, STEPS = 4096, 2000
BALL = dict(contact="projection", clamp=False, tol=1e-4)
PARAMS = {"k": np.float32(1.0), "h": np.float32(0.01)}


def heights() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.1, 1.0, (INSTANCES, 1)).astype(np.float32)


class Server:
    """simgrad-server on free ports."""

    def __init__(self, *flags: str):
        self.flags = flags

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [BUILD / "server" / "simgrad-server", "--port=0", "--metrics_port=0", *self.flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        return re.search(r"listening on (\S+:\d+)", line).group(1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def seconds_of(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_process(program: str, repetitions: int, time: str = "real_time") -> dict[str, float]:
    """Medians in seconds of a C++ benchmark, by name; counters as name/counter."""
    out = subprocess.run(
        [BUILD / "tests" / "benchmark" / program, "--benchmark_format=json",
         f"--benchmark_repetitions={repetitions}", "--benchmark_enable_random_interleaving=true"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = {}
    for row in json.loads(out)["benchmarks"]:
        if row.get("aggregate_name") != "median":
            continue
        unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[row["time_unit"]]
        # What was registered, without the settings that the library appends: /min_time:0.200.
        name = re.sub(r"/(min_time|min_warmup_time|iterations|repeats):[^/]*", "", row["run_name"])
        figures[name] = row[time] * unit
        if "iterations_per_step" in row:
            figures[f"{name}/iterations_per_step"] = row["iterations_per_step"]
    return figures


def eager_torch(repetitions: int) -> dict:
    with tempfile.NamedTemporaryFile() as file:
        file.write(heights().tobytes())
        file.flush()
        out = subprocess.run(
            ["/usr/bin/python3", ROOT / "tests/benchmark/torch_ball.py", f"--instances={INSTANCES}",
             f"--steps={STEPS}", f"--repetitions={repetitions}", f"--y0={file.name}"],
            check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out)


def through_the_client(repetitions: int) -> dict[str, float]:
    """Median wall seconds of the rollout as a Python caller sees it, by diagnostics level."""
    y0 = heights()
    samples: dict[str, list[float]] = {"off": [], "summary": []}
    with Server("--threads=1") as target, sg.Client(target) as client:
        def roll(level):
            client.rollout(sg.World("bouncing_ball", **BALL), steps=STEPS, policy=sg.Policy("f32"),
                           initial={"y": y0, "v": np.zeros_like(y0)}, params=PARAMS,
                           diagnostics=level)
        for level in samples:
            roll(level)
        for _ in range(repetitions):
            for level, list_ in samples.items():
                list_.append(seconds_of(lambda: roll(level)))
        calls = 2000 if repetitions > 3 else 500
        latency = json.loads(subprocess.run(
            [BUILD / "tests" / "benchmark" / "request_latency", target, str(calls)], check=True,
            stdout=subprocess.PIPE, text=True).stdout)
    return {level: statistics.median(list_) for level, list_ in samples.items()} | latency


def under_load(rounds: int) -> dict[str, float]:
    """Ratios of tests/benchmark/saturation.cc: the server with every core, and its callers on the same."""
    server = Server("--device=cpu")
    with server as target:
        return json.loads(subprocess.run(
            [BUILD / "tests" / "benchmark" / "saturation", target, str(server.process.pid), "2",
             str(rounds)], check=True, stdout=subprocess.PIPE, text=True).stdout)


def processor() -> str:
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def rows(engine: dict[str, float], torch: dict, client: dict[str, float],
         lowering: dict[str, float], functions: dict[str, float],
         loaded: dict[str, float]) -> list[tuple]:
    f32 = engine["BM_Rollout/f32"]
    summary = engine["BM_RolloutSummary/f32"]
    def at_cap(some, none, alone):
        slowest = engine[f"BM_AtMaxIter/{some}"]
        return slowest / (engine[f"BM_AtMaxIter/{none}"] + engine[f"BM_AtMaxIter/{alone}"])
    return [
        ("eager PyTorch / simgrad", statistics.median(torch["seconds"]) / f32, ">= 20"),
        ("hand-written SIMD / simgrad", engine["BM_HandWritten/f32"] / f32, ">= 0.4"),
        ("f32 / bf16", f32 / engine["BM_Rollout/bf16"], ">= 0.4"),
        ("f32 / f16", f32 / engine["BM_Rollout/f16"], ">= 0.4"),
        ("gradient of all inputs / rollout", engine["BM_Gradient/f32"] / f32, "<= 6"),
        ("diagnostics summary / none, engine", summary / f32, ""),
        ("diagnostics summary through the client / none, engine", client["summary"] / f32, "<= 1.2"),
        ("diagnostics off through the client / none, engine", client["off"] / f32, ""),
        ("one lane of 256 at max_iter / (none + that lane alone)",
         at_cap("one_of_256", "none_of_256", "one_alone"), "<= 2"),
        ("16 lanes of 4096, each 256 apart, at max_iter / (none + these 16 alone)",
         at_cap("sixteen_of_4096", "none_of_4096", "sixteen_alone"), ""),
        ("smallest request, p50 above a bare echo [us]",
         client["rollout_p50_us"] - client["echo_p50_us"], "<= 100"),
        ("lowering a gradient of 20,000 operations, processor time [s]",
         lowering["BM_LowerGradient/20000"], "< 1"),
        *((f"{name} of f32 in an AVX2 loop, an element [ns]", seconds * 1e9,
           "<= 3" if name in ("exp", "log", "sin", "tanh") else "")
          for name, seconds in functions.items()),
        ("GetServerInfo / bare echo, calls at saturation", loaded["info_over_echo"], ">= 0.8"),
        ("tiny rollouts / bare echo, calls at saturation", loaded["tiny_over_echo"], ">= 0.4"),
        ("goodput at 4 times saturation / best", loaded["overload_over_best"], ">= 0.9"),
        ("tiny rollouts beside 8 huge ones / alone, rate", loaded["beside_huge_rate"], ">= 0.5"),
        ("tiny rollouts beside 8 huge ones / alone, p99", loaded["beside_huge_p99"], "<= 10"),
    ]


def table(engine, torch, client, lowering, functions, loaded, load: float) -> str:
    lines = ["| figure | measured | asked |", "|---|---|---|"]
    lines += [f"| {name} | {value:.3g} | {asked} |" for name, value, asked in
              rows(engine, torch, client, lowering, functions, loaded)]
    iterations = engine.get("BM_Rollout/f32/iterations_per_step", float("nan"))
    lines += [
        "",
        f"Mean iterations per step and instance: {iterations:.3f} (PyTorch: "
        f"{torch['iterations_per_step']:.3f}). Rollout {engine['BM_Rollout/f32'] * 1e3:.1f} ms, PyTorch "
        f"{torch['torch']} {statistics.median(torch['seconds']) * 1e3:.0f} ms, echo "
        f"{client['echo_p50_us']:.0f} us, all on one thread of {processor()}, "
        f"{datetime.date.today().isoformat()}; load average before the run {load:.1f} on "
        f"{os.cpu_count()} cores.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    arguments = parser.parse_args()
    repetitions = 3 if arguments.quick else 9
    load = os.getloadavg()[0]  # other work makes every figure worse, and ratios uncertain
    text = table(in_process("cpu_executor_bench", repetitions), eager_torch(repetitions),
                 through_the_client(repetitions),
                 in_process("lowering_bench", repetitions, "cpu_time"),
                 {name.split("/")[1]: seconds for name, seconds in
                  in_process("elementary_bench", repetitions, "cpu_time").items()},
                 under_load(1 if arguments.quick else 5), load)
    print(text)
    if arguments.write:
        page = ROOT / "docs" / "performance.md"
        old = page.read_text(encoding="utf-8")
        begin, end = "<!-- table: scripts/bench --write -->\n", "<!-- end of table -->"
        head, rest = old.split(begin)
        page.write_text(head + begin + text + "\n" + end + rest.split(end)[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
