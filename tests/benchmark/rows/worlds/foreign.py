"""Worlds that no one here wrote, as tests/data/jax holds them: the program, and a state and controls to start from."""

from __future__ import annotations

import functools
import lzma
import pathlib
from typing import Any

import numpy as np

import simgrad as sg
from simgrad.v1 import program_pb2

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "data/jax"
OBJECTIVE = "watched"


@functools.cache
def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def start(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The state and the controls that were measured, by name."""
    known = arrays(name)
    state = {k.partition("/")[2]: x for k, x in known.items() if k.startswith("state/")}
    return state, {k: x for k, x in known.items() if k == "control"}


def world(name: str, watch: str = "", tests: str = "") -> sg.World:
    """`watch`: of a gradient, the leaf of the state whose squares the objective sums. `tests`: another level."""
    program = program_pb2.Program()
    program.ParseFromString(lzma.decompress((FOLDER / f"{name}.program.xz").read_bytes()))
    program.level = tests or program.level
    return sg.World(program=program)


def given(states: Any, params: Any) -> dict[str, Any]:
    """What the rows call params are controls here. A model without actuators has one without elements, and its world none."""
    return {"initial": states, "controls": {n: x for n, x in params.items() if x.size}}
