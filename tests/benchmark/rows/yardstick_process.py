"""The yardsticks in a process of their own: reads lines of JSON, answers with lines of JSON.

usage: .venv-jax/bin/python yardstick_process.py

  {"row": NAME, "size": NAME, "results": FILE}   compiles and runs once; FILE gets the results, .npz
      -> {"compile": seconds, "first": seconds of the first run after it}
  {"turns": N}   runs what was compiled N times
      -> {"wall": seconds, "processor": seconds}, of all turns
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pathlib
import sys
import time
from typing import Any, Callable

if len(os.sched_getaffinity(0)) == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "yardsticks")]

import rows  # noqa: E402
import steps as all_steps  # noqa: E402


def program_of(row: rows.Row, size: rows.Size) -> Callable[[Any, Any], Any]:
    """results by name = program(states, params)."""
    module = importlib.import_module(row.subject)
    if hasattr(module, "prepare"):
        module.prepare(**size.settings)
    if hasattr(module, row.what):
        return functools.partial(getattr(module, row.what), steps=size.steps, **size.settings)
    step = functools.partial(module.step, **size.settings)
    if row.what == "rollout":
        return functools.partial(all_steps.rollout, step, steps=size.steps)
    return functools.partial(all_steps.gradient, step, module.cost, steps=size.steps)


def prepared(row: rows.Row, size: rows.Size) -> tuple[Callable[[], Any], float]:
    """A run, and the seconds that its compilation took."""
    jax.config.update("jax_enable_x64", row.policy == "f64")
    states, params = ({n: jax.numpy.asarray(x) for n, x in g.items()} for g in rows.inputs_of(row, size))
    begin = time.perf_counter()
    compiled = jax.jit(program_of(row, size)).lower(states, params).compile()
    seconds = time.perf_counter() - begin
    return lambda: jax.block_until_ready(compiled(states, params)), seconds


def timed(run: Callable[[], Any], turns: int) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(turns):
        run()
    return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def main() -> None:
    by_name = {row.name: row for row in rows.ROWS}
    run: Callable[[], Any] = dict
    for line in sys.stdin:
        asked = json.loads(line)
        if "turns" in asked:
            answer = timed(run, asked["turns"])
        else:
            row = by_name[asked["row"]]
            run, seconds = prepared(row, row.sizes[asked["size"]])
            begin = time.perf_counter()
            results = run()
            answer = {"compile": seconds, "first": time.perf_counter() - begin}
            np.savez(asked["results"], **results)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
