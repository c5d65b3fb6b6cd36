"""Writes what JAX gives for the worlds of foreign_worlds.py into tests/data/jax.

usage: .venv-jax/bin/python tests/with_jax/make_results.py [--programs] [NAME ...]
  --programs   lowers the worlds again and keeps the numbers of JAX: where a change of simgrad.jax alone changes programs

worlds.json has versions, digests and facts; NAME.npz numbers; NAME.program.xz the world as protobuf.
The last step of each trajectory is compared by tests/integration/jax_results_test.py, without JAX.
"""

from __future__ import annotations

import importlib.metadata
import json
import lzma
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from foreign_worlds import CASES  # noqa: E402
from measured import facts_of, lowered, measure  # noqa: E402

FOLDER = pathlib.Path(__file__).parent.parent / "data/jax"
PACKAGES = (
    *("jax", "jaxlib", "mujoco-mjx", "brax", "jax-md", "diffrax", "equinox", "lineax", "optimistix"),
    *("jaxopt", "numpy", "scipy"),
)


def main(names: list[str], programs_alone: bool) -> None:
    FOLDER.mkdir(exist_ok=True)
    index = FOLDER / "worlds.json"
    known = json.loads(index.read_text())["worlds"] if index.exists() else {}
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    for name in names:
        with jax.enable_x64(True):
            if programs_alone:
                case, world, seconds = lowered(name)
                facts, program = facts_of(case, world, seconds)
                known[name] = {**known[name], **facts}
            else:
                made = measure(name)
                np.savez_compressed(FOLDER / f"{name}.npz", **made.arrays)
                known[name], program = made.facts, made.program
        (FOLDER / f"{name}.program.xz").write_bytes(lzma.compress(program, preset=9))
        text = json.dumps({"versions": versions, "worlds": known}, indent=1, sort_keys=True)
        index.write_text(text + "\n")
        print(name, known[name]["operations"], "operations, growth", known[name]["growth"], flush=True)


if __name__ == "__main__":
    sys.setrecursionlimit(100_000)  # JAX's own tracing of large models
    given = [word for word in sys.argv[1:] if word != "--programs"]
    main(given or list(CASES), "--programs" in sys.argv)
