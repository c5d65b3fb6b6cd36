"""Runs every benchmark and prints two tables: ratios of figures measured in one run.

usage: run.py [--quick] [--one-core] [--write]     --write puts the tables into docs/performance.md
       run.py [--quick] [--one-core] [--write] --rows PATTERN...     of the table beside JAX the rows that match, no others
       run.py [--quick] [--write] --figures     the table of the engine and of load alone

A whole run takes an hour, most of it JAX's compilations. Each row beside JAX says when it was measured,
and on which processor.

The ball: 4096 instances, 2000 steps, one element, projection, clamp false, y0 uniform in 0.1 to 1,
h 0.01, tol 1e-4, k 1, f32, no trajectory, one thread.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

import simgrad as sg
from simgrad.why.variants import ROLES

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "rows")]

import figures_table  # noqa: E402
import processor  # noqa: E402
import rows as jax_rows  # noqa: E402
import table as jax_table  # noqa: E402
from server_process import BUILD, COMPILES, ROOT, Server  # noqa: E402
from worlds import mixed  # noqa: E402

INSTANCES, STEPS = 4096, 2000
BALL = dict(contact="projection", clamp=False, tol=1e-4)
PARAMS = {"k": np.float32(1.0), "h": np.float32(0.01)}
GRADIENT = "ball, gradient"  # a row beside JAX


def heights() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.1, 1.0, (INSTANCES, 1)).astype(np.float32)


def seconds_of(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_process(program: str, repetitions: int, time: str = "cpu_time") -> dict[str, float]:
    """Medians in seconds of a C++ benchmark on one core, by name; counters as name/counter."""
    core = max(os.sched_getaffinity(0))
    out = subprocess.run(
        ["taskset", "-c", str(core), BUILD / "tests" / "benchmark" / program, "--benchmark_format=json",
         f"--benchmark_repetitions={repetitions}", "--benchmark_enable_random_interleaving=true"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = {}
    for row in json.loads(out)["benchmarks"]:
        if row.get("error_occurred"):
            raise RuntimeError(f"{row['run_name']}: {row['error_message']}")
        if row.get("aggregate_name") != "median":
            continue
        unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[row["time_unit"]]
        # What was registered, without the settings that the library appends: /min_time:0.200.
        name = re.sub(r"/(min_time|min_warmup_time|iterations|repeats):[^/]*", "", row["run_name"])
        figures[name] = row[time] * unit
        figures[f"{name}/wall"] = row["real_time"] * unit
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
    with Server("--threads=1") as server, sg.Client(server.target) as client:
        def roll(level):
            client.rollout(sg.World("bouncing_ball", **BALL), steps=STEPS, policy=sg.Policy("f32"),
                           initial={"y": y0, "v": np.zeros_like(y0)}, params=PARAMS,
                           diagnostics=level)
        server.warm(*(functools.partial(roll, level) for level in samples))
        for _ in range(repetitions):
            for level, list_ in samples.items():
                list_.append(seconds_of(lambda: roll(level)))
        calls = 2000 if repetitions > 3 else 500
        latency = json.loads(subprocess.run(
            [BUILD / "tests" / "benchmark" / "request_latency", server.target, str(calls)], check=True,
            stdout=subprocess.PIPE, text=True).stdout)
    return {level: statistics.median(list_) for level, list_ in samples.items()} | latency


def medians(server: Server, calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Processor seconds of a call, of this process and the server's together, by name: all warm, and taken in turn, forth
    and back, as a call is dearer after one that left other memory behind."""
    server.warm(*calls.values())
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name, call in list(calls.items())[:: -1 if turn % 2 else 1]:
            here, there = time.process_time(), server.processor_seconds()
            call()
            samples[name].append(time.process_time() - here + server.processor_seconds() - there)
    return {name: statistics.median(values) for name, values in samples.items()}


def kept_rollout(rounds: int, instances: int = INSTANCES, steps: int = STEPS) -> dict[str, float]:
    """Processor seconds of a Vjp by each cotangent, over those of the gradient by it less those of the rollout: of one
    cotangent, and of four in one call."""
    y0 = heights()[:instances]
    cotangents = [sg.Cotangents({"y": np.full_like(y0, 1.0 + k)}) for k in range(4)]
    work = dict(steps=steps, policy=sg.Policy("f32"), initial={"y": y0, "v": np.zeros_like(y0)}, params=PARAMS, diagnostics="off")
    with Server("--threads=1") as server, sg.Client(server.target) as client:
        world = sg.World("bouncing_ball", **BALL)
        kept = client.rollout(world, keep=sg.Keep(state=["y"]), **work)
        if not kept.vjp(cotangents[0]).reused:
            raise RuntimeError("the kept rollout was simulated again")
        took = medians(server, {
            "rollout": lambda: client.rollout(world, **work),
            "gradient": lambda: client.gradient(world, cotangents=cotangents[0], **work),
            "one": lambda: kept.vjp(cotangents[0]),
            "four": lambda: kept.vjps(cotangents),
        }, rounds)
    reversal = took["gradient"] - took["rollout"]
    return {"one": took["one"] / reversal, "four": took["four"] / 4 / reversal}


def whys(rounds: int, instances: int = INSTANCES, steps: int = 500) -> dict[str, float]:
    """Processor seconds of compare, sensitivity and tune, over those of the gradients that they are made of, asked for one by
    one. Those of the first two record their paths; "plain" is compare over gradients that record none."""
    y0 = np.random.default_rng(1).uniform(0.3, 1.0, (instances, 1))
    work = dict(steps=steps, initial={"y": y0, "v": np.zeros_like(y0)}, params={"restitution": 0.8}, objective="final_height")
    world, formats = sg.World("bouncing_ball", contact="toi"), ["f64", "f32", "bf16_safe"]
    shuffled = [functools.reduce(lambda policy, role: policy.role(role, order=f"shuffled({k})"), ROLES, sg.Policy("f32")) for k in (1, 2, 3)]
    tuning = dict(bound=0.1, keep=0.5, roles=["state", "dynamics", "adjoint"], sites=[], formats=["f64", "f32"])
    with Server("--threads=1") as server, sg.Client(server.target) as client:
        def gradients(policies, diagnostics="summary", **more):
            for policy in policies:
                client.gradient(world, policy=policy, diagnostics=diagnostics, **{**work, **more})

        def trials():
            """The policies that a search tried, on the instances that it tried them on."""
            for sample, ids in (("search", tuned.search_ids), ("confirmation", tuned.confirmation_ids)):
                tried = [t.formats for t in tuned.tried if t.sample == sample]
                policies = [functools.reduce(lambda policy, named: policy.role(named[0], format=named[1]), zip(tuned.formats, formats), sg.Policy("f64"))
                            for formats in tried]
                gradients(["f64", *policies], "off", initial={n: x[ids] for n, x in work["initial"].items()}, instance_ids=ids)

        tuned = client.tune(world, **tuning, **work)
        took = medians(server, {
            "compare": lambda: client.compare(world, policies=formats, **work),
            "runs of compare": lambda: gradients(formats, path=True),
            "plain": lambda: gradients(formats),
            "sensitivity": lambda: client.sensitivity(world, policy="f32", runs=3, stochastic=False, **work),
            "runs of sensitivity": lambda: gradients(["f32", *shuffled], path=True),
            "tune": lambda: client.tune(world, **tuning, **work),
            "runs of tune": trials,
        }, rounds)
    found = {name: took[name] / took[f"runs of {name}"] for name in ("compare", "sensitivity", "tune")}
    return {**found, "plain": took["compare"] / took["plain"]}


def under_load(rounds: int) -> dict[str, float]:
    """Ratios of tests/benchmark/saturation.cc: the server with every core, and its callers on the same; and
    `request_us`, the processor time of the smallest request above that of an echo, on the server's side."""
    with Server("--device=cpu") as server:
        made = subprocess.run(
            [BUILD / "tests" / "benchmark" / "saturation", server.target, str(server.process.pid),
             "2", str(rounds)], check=True, capture_output=True, text=True)
    def server_us(what: str) -> float:
        found = re.findall(rf"^{what} .* server +([\d.]+) us", made.stderr, re.MULTILINE)
        return statistics.median(map(float, found))
    above = server_us("smallest") - server_us("echo smallest")
    return {**json.loads(made.stdout), "request_us": above}


def first_large_gradient() -> float:
    """Seconds from sending a gradient of 20,000 operations that no one has asked for, one step long."""
    # With the literals and broadcasts that they need, 12,500 operations are 19,800 of the program.
    world, ones = mixed.world(12_500, seed=11), np.ones(16, np.float32)
    world.to_proto()  # written before
    with Server("--device=cpu") as server, sg.Client(server.target) as client:
        client.info()
        return seconds_of(lambda: client.gradient(
            world, steps=1, initial={"x": ones, "y": 0.5 * ones}, objective=mixed.OBJECTIVE))


def falling_ball(number: int) -> sg.FunctionWorld:
    """A ball above a floor, whose impulse is found by projection. Each number has another gravity, and other operations in
    its drag, as programs that differ in constants alone share machine code."""
    @sg.world(name="falling_ball")
    def step(y: sg.State(1), v: sg.State(1), h: sg.Param = 0.01):
        free = v - (9.81 + 1e-6 * number) * h
        for bit in range(6):
            free = free * 0.9999 if number >> bit & 1 else free - 1e-5
        held = sg.fixed_point(lambda p: np.maximum(p - 0.8 * (y + h * (free + p)) / h, 0.0), 0.0 * y,
                              tol=1e-4, max_iter=25, site="projection")
        return {"y": y + h * (free + held), "v": free + held}

    return step


FIRST_SIZES = ((INSTANCES, 10), (16, 10))  # instances and steps
FIRST_BOUND = 0.05
MISSES = "simgrad_program_cache_total"


def first_answers(samples: int, sizes: tuple[tuple[int, int], ...] = FIRST_SIZES) -> dict[tuple[int, int], dict[str, list[float]]]:
    """Of rollouts of balls that no one has asked for, by instances and steps: seconds, "wall" and "processor" of this
    process and the server together, and "compiles", how many kernels were compiled for it. They are sent when the server
    is at rest."""
    found: dict[tuple[int, int], dict[str, list[float]]] = {size: {"wall": [], "processor": [], "compiles": []} for size in sizes}
    balls = map(falling_ball, range(samples * len(sizes) + 1))
    with Server("--device=cpu") as server, sg.Client(server.target) as client:
        def roll(world, instances, steps):
            y0 = heights()[:instances]
            client.rollout(world, steps=steps, policy=sg.Policy("f32"), initial={"y": y0, "v": np.zeros_like(y0)})

        roll(next(balls), 1, 1)  # connects
        for _ in range(samples):
            for size, seconds in found.items():
                world = next(balls)
                world.to_proto()  # written before
                while server.has_running_threads():  # compiles the one before
                    time.sleep(0.02)
                misses, compiles = server.metric(MISSES, 'result="miss"'), server.metric(COMPILES)
                here, there = time.process_time(), server.processor_seconds()
                seconds["wall"].append(seconds_of(lambda: roll(world, *size)))
                seconds["processor"].append(time.process_time() - here + server.processor_seconds() - there)
                seconds["compiles"].append(server.metric(COMPILES) - compiles)
                if server.metric(MISSES, 'result="miss"') == misses:
                    raise RuntimeError("the server knew the program")
    return found


def first_rows(found: dict[tuple[int, int], dict[str, list[float]]]) -> list[tuple[str, float, str]]:
    """The lines of the table for `first_answers`."""
    return [(f"first answer of a ball never asked for before, {instances} × {steps}, {what}, {kind} / 50 ms",
             of(seconds[clock]) / FIRST_BOUND, "<= 1" if clock == "wall" else "")
            for (instances, steps), seconds in found.items()
            for clock, what in (("wall", "wall time"), ("processor", "processor time"))
            for kind, of in (("median", statistics.median), ("worst", max))]


def work_after_the_deadline(rounds: int) -> float:
    """Seconds for which the server goes on after a deadline, in steps of 13 million operations of elements
    without a loop: the worst of the rounds."""
    @sg.world
    def sines(x: sg.State(65_536)):
        for _ in range(200):
            x = np.sin(x)
        return x

    late = []
    with Server("--device=cpu", "--threads=1") as server, sg.Client(server.target) as client:
        def roll(steps, timeout):
            client.rollout(sines, steps=steps, initial={"x": np.full(65_536, 0.5)}, timeout=timeout)
        roll(1, 60)  # compiled before
        for _ in range(rounds):
            deadline = time.perf_counter() + 1
            try:
                roll(1_000_000, 1)
                raise RuntimeError("the work ended before its deadline")
            except sg.DeadlineExceeded:
                late.append(end_of_work(server) - deadline)
    return max(late)


def end_of_work(server: Server) -> float:
    """When the server last used half a core or more, before it rested for 50 ms."""
    now = end = time.perf_counter()
    while now < end + 0.05:
        used, before = server.processor_seconds(), now
        time.sleep(0.002)
        now = time.perf_counter()
        if server.processor_seconds() - used > (now - before) / 2:
            end = now
    return end


def figures(engine: dict[str, float], torch: dict, client: dict[str, float],
            lowering: dict[str, float], functions: dict[str, float],
            loaded: dict[str, float], large: float, first: list[tuple[str, float, str]], late: float, vjp: dict[str, float], why: dict[str, float],
            gradient: float | None) -> list[tuple]:
    """`gradient`: of the ball, through the client, processor seconds. `first`: lines of their own."""
    f32 = engine["BM_Rollout/f32"]
    summary, by_hand = engine["BM_RolloutSummary/f32"], engine["BM_HandWritten/f32"]
    def at_cap(some, none, alone):
        slowest = engine[f"BM_AtMaxIter/{some}"]
        return slowest / (engine[f"BM_AtMaxIter/{none}"] + engine[f"BM_AtMaxIter/{alone}"])
    return [
        ("eager PyTorch / simgrad", statistics.median(torch["seconds"]) / engine["BM_Rollout/f32/wall"],
         ">= 20"),
        ("hand-written SIMD / simgrad", by_hand / f32, ">= 0.6"),
        ("summary, hand-written SIMD that records the same / simgrad",
         engine["BM_HandWrittenSummary/f32"] / summary, ">= 0.5"),
        *([("12 hand-written rollouts / gradient through the client", 12 * by_hand / gradient,
            ">= 1")] if gradient else []),
        ("f32 / bf16", f32 / engine["BM_Rollout/bf16"], ">= 0.4"),
        ("f32 / f16", f32 / engine["BM_Rollout/f16"], ">= 0.4"),
        ("gradient of all inputs / rollout", engine["BM_Gradient/f32"] / f32, "<= 6"),
        ("Vjp of a kept rollout / (gradient - rollout), through the client", vjp["one"], "<= 1.15"),
        ("each of four cotangents in one Vjp / (gradient - rollout), through the client", vjp["four"], "<= 1.15"),
        *((f"{name} / its runs, asked for one by one", why[name], "<= 1.1") for name in ("compare", "sensitivity", "tune")),
        ("compare / the same gradients, no path recorded", why["plain"], ""),
        ("diagnostics summary / none, engine", summary / f32, ""),
        ("diagnostics summary through the client / none, engine", client["summary"] / engine["BM_Rollout/f32/wall"],
         "<= 1.2"),
        ("diagnostics off through the client / none, engine", client["off"] / engine["BM_Rollout/f32/wall"], ""),
        ("one lane of 256 at max_iter / (none + that lane alone)",
         at_cap("one_of_256", "none_of_256", "one_alone"), "<= 2"),
        ("16 lanes of 4096, each 256 apart, at max_iter / (none + these 16 alone)",
         at_cap("sixteen_of_4096", "none_of_4096", "sixteen_alone"), "<= 2"),
        ("smallest request, p50 above a bare echo [us]",
         client["rollout_p50_us"] - client["echo_p50_us"], "<= 100"),
        ("smallest request, server's processor time above a bare echo's, at saturation [us]",
         loaded["request_us"], "<= 60"),
        ("gradient of 20,000 operations never asked for before, one step through the client [s]",
         large, "<= 2"),
        *first,
        ("lowering a gradient of 20,000 operations, processor time [s]",
         lowering["BM_LowerGradient/20000"], "< 1"),
        *((f"{name} of f32 in an AVX2 loop, an element [ns]", seconds * 1e9,
           "<= 3" if name in ("exp", "log", "sin", "tanh") else "")
          for name, seconds in functions.items()),
        ("work after a deadline of 1 s, in steps of 13 million operations, worst [ms]", late * 1e3,
         "<= 100"),
        ("GetServerInfo / bare echo, calls at saturation", loaded["info_over_echo"], ">= 0.8"),
        ("tiny rollouts / bare echo, calls at saturation", loaded["tiny_over_echo"], ">= 0.5"),
        ("goodput at 4 times saturation / best, callers are threads", loaded["overload_over_best"], ">= 0.9"),
        ("goodput at 4 times saturation / best, callers are calls in flight",
         loaded["overload_over_best_calls_in_flight"], ">= 0.9"),
        ("tiny rollouts beside 8 huge ones / alone, rate", loaded["beside_huge_rate"], ">= 0.5"),
        ("tiny rollouts beside 8 huge ones / alone, p99", loaded["beside_huge_p99"], "<= 10"),
    ]


def what_is_said(engine: dict[str, float], torch: dict, client: dict[str, float]) -> str:
    iterations = engine.get("BM_Rollout/f32/iterations_per_step", float("nan"))
    return (f"mean iterations per step and instance: {iterations:.3f} (PyTorch: {torch['iterations_per_step']:.3f}). "
            f"Rollout {engine['BM_Rollout/f32'] * 1e3:.1f} ms of processor time, "
            f"{engine['BM_Rollout/f32/wall'] * 1e3:.1f} of wall time; PyTorch {torch['torch']} "
            f"{statistics.median(torch['seconds']) * 1e3:.0f} ms; echo {client['echo_p50_us']:.0f} us.")


def where(load: float) -> str:
    return (f"{processor.name()}, {datetime.date.today().isoformat()}; load average before "
            f"the run {load:.1f}, after it {os.getloadavg()[0]:.1f}.")


def put(page: str, mark: str, text: str) -> str:
    """The page with the text between the two marks."""
    begin, end = f"<!-- {mark}: scripts/bench --write -->\n", f"<!-- end of {mark} -->"
    head, rest = page.split(begin)
    return head + begin + text + "\n" + end + rest.split(end)[1]


def between(page: str, mark: str) -> str:
    """The text between the two marks."""
    return page.split(f"<!-- {mark}: scripts/bench --write -->\n")[1].split(f"<!-- end of {mark} -->")[0].rstrip("\n")


def with_rows(page: str, measured: list[jax_table.Measured], size: str) -> str:
    """The page with the lines of these rows. Lines of others stay as they are, and so does what is said below the table."""
    old = between(page, "rows")
    said = "\n".join(line for line in old.splitlines() if not line.startswith("|")).strip()
    rows = jax_table.merged(old, measured, size)
    return put(page, "rows", f"{rows}\n\n{said}" if said else rows)


def rows_table(patterns: list[str], size: str, samples: int, also_on_two: bool) -> list[jax_table.Measured]:
    """Prints each line as soon as it is there."""
    all_measured = []
    print(*jax_table.HEAD, sep="\n", flush=True)
    for row in jax_rows.chosen(patterns):
        all_measured.append(jax_table.measure(row, size, samples, also_on_two))
        print(jax_table.line(all_measured[-1], size), flush=True)
    return all_measured


def engine_table(quick: bool, gradient: float | None, load: float, old: str) -> str:
    """The table of this run, and of the columns of `old` that are of other makers' processors."""
    repetitions = 3 if quick else 9
    engine = in_process("cpu_executor_bench", repetitions)
    torch = eager_torch(repetitions)
    client = through_the_client(repetitions)
    functions = in_process("elementary_bench", repetitions)
    made = figures(engine, torch, client, in_process("lowering_bench", repetitions),
                   {name.split("/")[1]: functions[name] for name in sorted(functions) if not name.endswith("/wall")},
                   under_load(1 if quick else 5), first_large_gradient(),
                   first_rows(first_answers(3 if quick else 15)), work_after_the_deadline(3 if quick else 10),
                   kept_rollout(3 if quick else 9), whys(3 if quick else 9), gradient)
    said = f"{what_is_said(engine, torch, client)} On {where(load)}"
    own = figures_table.Column({name: f"{value:.3g}" for name, value, _ in made}, said)
    columns = {**figures_table.parsed(old), processor.maker(): own}
    return figures_table.printed(columns, {name: asked for name, _, asked in made})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, small sizes beside JAX")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--rows", nargs="+", metavar="PATTERN", help="only these rows beside JAX")
    parser.add_argument("--figures", action="store_true", help="only the engine and load, and the row they need beside JAX")
    parser.add_argument("--one-core", action="store_true", help="beside JAX, leave out two cores")
    arguments = parser.parse_args()
    if arguments.write and arguments.quick:
        parser.error("--write is for full sizes")
    if arguments.figures and arguments.rows:
        parser.error("--figures and --rows are two tables")
    load = os.getloadavg()[0]  # other work makes every figure worse, and ratios uncertain
    size, samples = ("quick", 3) if arguments.quick else ("full", 5)
    patterns = [GRADIENT] if arguments.figures else arguments.rows or []
    measured = rows_table(patterns, size, samples, not arguments.one_core)
    print(f"\n{where(load)}")
    failed = [m.row.name for m in measured if m.error]
    page = ROOT / "docs" / "performance.md"
    if arguments.write:
        page.write_text(with_rows(page.read_text(encoding="utf-8"), measured, size), encoding="utf-8")
    if not arguments.rows:
        (gradient,) = [m.one for m in measured if m.row.name == GRADIENT]
        # Its quick size is no ball of the engine's benchmarks.
        of_the_ball = gradient["ours"]["processor"] if gradient and not arguments.quick else None
        old = page.read_text(encoding="utf-8")
        text = engine_table(arguments.quick, of_the_ball, load, between(old, "table") if arguments.write else "")
        print(f"\n{text}")
        if arguments.write:
            page.write_text(put(old, "table", text), encoding="utf-8")
    if failed:
        print(f"bench: failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
