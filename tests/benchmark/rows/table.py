"""The table of the rows that are measured beside JAX."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import processor  # noqa: E402
import rows  # noqa: E402

JAX_PYTHON = HERE.parents[2] / ".venv-jax" / "bin" / "python"
HEAD = [
    "| work | asked | JAX / ours, wall | processor | two cores, wall | ours: wall, processor [ms] | JAX: wall, processor [ms] | compile: ours (first answer), JAX [s] | results differ by | measured, load before, processor |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


@dataclasses.dataclass
class Measured:
    """What measure.py gave, on one core and on two (None: there are none); or its error.

    Attributes:
      when: date, load before, and the processor, as rows of one table are measured on several machines.
    """

    row: rows.Row
    one: dict[str, Any] | None = None
    two: dict[str, Any] | None = None
    error: str = ""
    when: str = ""


def measure(row: rows.Row, size: str, samples: int, also_on_two: bool) -> Measured:
    cores = sorted(os.sched_getaffinity(0))
    when = f"{datetime.date.today().isoformat()}, {os.getloadavg()[0]:.1f}, {processor.name()}"
    try:
        one = _on(cores[-1:], row, size, samples)
        two = _on(cores[:2], row, size, min(samples, 3)) if also_on_two and len(cores) > 1 else None
    except subprocess.CalledProcessError as error:
        return Measured(row, error=error.stderr.strip().splitlines()[-1], when=when)
    return Measured(row, one, two, when=when)


def _on(cores: list[int], row: rows.Row, size: str, samples: int) -> dict[str, Any]:
    command = [sys.executable, HERE / "measure.py", row.name, f"--size={size}", f"--samples={samples}"]
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    out = subprocess.run(pinned, check=True, capture_output=True, text=True).stdout
    made: dict[str, Any] = json.loads(out)
    return made


def line(measured: Measured, size: str) -> str:
    row, one, two = measured.row, measured.one, measured.two
    work = row.sizes[size]
    name = f"{row.name}: {work.instances} × {work.steps}" + (f" ({row.note})" if row.note else "")
    asked = "" if row.asked is None else f">= {row.asked:g}"
    if one is None:
        return f"| {name} | {asked} | error: {measured.error} |" + " |" * 6 + f" {measured.when} |"
    ours, jax = one["ours"], one["jax"]
    figures = [
        f"{jax['wall'] / ours['wall']:.2g}",
        f"{jax['processor'] / ours['processor']:.2g}",
        f"{two['jax']['wall'] / two['ours']['wall']:.2g}" if two else "",
        f"{1e3 * ours['wall']:.3g}, {1e3 * ours['processor']:.3g}",
        f"{1e3 * jax['wall']:.3g}, {1e3 * jax['processor']:.3g}",
        f"{ours['compile']:.2g} ({ours['first']:.2g}), {jax['compile']:.2g}",
        f"{one['difference']:.0e}",
    ]
    return f"| {name} | {asked} | " + " | ".join([*figures, measured.when]) + " |"


def merged(old: str, measured: list[Measured], size: str) -> str:
    """A table in the order of `rows.py`: lines that were measured without an error, and the old ones of other rows."""
    lines = {of_page[2:].split(":")[0]: of_page for of_page in old.splitlines() if of_page.startswith("| ")}
    lines |= {m.row.name: line(m, size) for m in measured if not m.error}
    return "\n".join([*HEAD, *(lines[row.name] for row in rows.ROWS if row.name in lines)])
